"""Helpers to run a LocalCluster to its end, delay assignments of workers, and read counters."""

from __future__ import annotations

from typing import Any

from millrace.testing.local_cluster import LocalCluster


def run_through(topology: Any, workers: int = 2, seconds: float = 1.0, **config: Any) -> LocalCluster:
    """Run a topology with finite spouts until it is drained and has ended."""
    cluster = LocalCluster(workers)
    graph = cluster.submit(topology, config=config)
    cluster.run(seconds)
    drain(cluster, graph.name)
    return cluster


def drain(cluster: LocalCluster, name: str, seconds: float = 60.0) -> None:
    """Kill a topology as `millrace kill` does; raises if it does not drain in time."""
    cluster.stop(name, wait=10 * seconds)
    cluster.run_until(lambda: name not in cluster.master.topologies, seconds)


def spouts_done(cluster: LocalCluster, spouts: int = 2) -> bool:
    """Return whether all tasks of `numbers` exist, have sent everything and have got every ack."""
    tasks = [task.component for task in cluster.tasks("numbers")]
    return len(tasks) == spouts and all(spout and spout.exhausted and not spout.unacked_tuples
                                        for spout in tasks)


class Late(LocalCluster):
    """A cluster whose slots in `late` get new assignments only at `hear`."""

    late: tuple[int, ...] = ()

    def tell(self, event: Any) -> None:
        deaf = {slot: self.workers.pop(slot) for slot in set(self.late) & set(self.workers)}
        super().tell(event)
        for slot, worker in deaf.items():
            self.workers.setdefault(slot, worker)  # unless it has just been restarted

    def hear(self) -> None:
        late, self.late = self.late, ()
        for slot in set(late) & set(self.workers) & set(self.master.workers):
            if self.workers[slot].generation == self.master.workers[slot].address.generation:
                self.workers[slot].assign(self.master.distribution().parts[self.node(slot).name])


def meter(cluster: LocalCluster, component: str, name: str) -> int:
    return sum(getattr(task.meters, name) for task in cluster.tasks(component))


def counter(cluster: LocalCluster, name: str) -> int:
    return sum(worker.counters[name] for worker in cluster.workers.values())


def errors(cluster: LocalCluster) -> list[str]:
    return [error["error"] for worker in cluster.workers.values() for error in worker.errors]

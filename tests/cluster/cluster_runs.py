"""Runs of a LocalCluster: to their end, with workers that hear late, and what was counted on the way."""

from __future__ import annotations

from typing import Any

from millrace.testing.local_cluster import LocalCluster


def run_through(topology: Any, workers: int = 2, seconds: float = 1.0, **config: Any) -> LocalCluster:
    """Runs a topology whose spouts come to an end, until everything is through and it has ended."""
    cluster = LocalCluster(workers)
    graph = cluster.submit(topology, config=config)
    cluster.run(seconds)
    drain(cluster, graph.name)
    return cluster


def drain(cluster: LocalCluster, name: str, seconds: float = 60.0) -> None:
    """Ends a topology as `millrace kill` does; an error if it does not get done by itself."""
    cluster.stop(name, wait=10 * seconds)
    cluster.run_until(lambda: name not in cluster.master.topologies, seconds)


def spouts_done(cluster: LocalCluster, spouts: int = 2) -> bool:
    """All tasks of `numbers` are there, have sent everything, and have been told that it is done."""
    tasks = [task.component for task in cluster.tasks("numbers")]
    return len(tasks) == spouts and all(spout and spout.exhausted and not spout.unacked_tuples
                                        for spout in tasks)


class Late(LocalCluster):
    """The slots in `late` do not hear of new assignments until `hear`."""

    late: tuple[int, ...] = ()

    def tell(self, event: Any) -> None:
        deaf = {slot: self.workers.pop(slot) for slot in set(self.late) & set(self.workers)}
        super().tell(event)
        for slot, worker in deaf.items():
            self.workers.setdefault(slot, worker)  # unless it has just been started anew

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

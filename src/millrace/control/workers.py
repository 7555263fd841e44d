"""The master's view of its workers: the cluster that schedulers see, the agent of each node, and the patience with silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from millrace.control.assignment import WorkerAddress
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.frozen import FrozenMap
from millrace.model.graph import TaskId

LONG_CALL_SECONDS = 10.0  # a call of this duration is worth a warning
SILENT_SECONDS = 2.0  # without a report, after which a worker's loop counts as stopped
FIRST_LIMIT = 4  # heartbeat timeouts that a silent worker gets at first if its process answers


class LongCall(NamedTuple):
    """A call in a worker that has not returned for a while. `of_user`: it is user code and not, for example, the store's.
    `topology` and `task`: whose code it is, where that is known. `on_loop`: it stops all tasks of its worker."""

    what: str
    seconds: float
    of_user: bool = True
    topology: str = ""
    task: TaskId | None = None
    on_loop: bool = False

    def __str__(self) -> str:
        return f"{self.what} has not returned for {self.seconds:.0f} s"


@dataclass(slots=True)
class WorkerView:
    """A worker as the master sees it."""

    address: WorkerAddress
    executor: str
    node: Node
    revision: int = 0
    long_calls: tuple[LongCall, ...] = ()
    heard: float = 0.0  # time of its last report, which its loop sends

    def silent(self, now: float) -> bool:
        return now - self.heard > SILENT_SECONDS

    def stops(self, topology: str, tasks: Collection[TaskId], now: float) -> LongCall | None:
        """The longest call that keeps one of these tasks of the topology from working here. A loop that does not report is in
        one, too: code that holds the interpreter lock cannot be seen otherwise."""
        calls = [call for call in self.long_calls if call.on_loop or (call.topology == topology and call.task in tasks)]
        if self.silent(now) and not any(call.on_loop for call in calls):
            calls.append(LongCall(f"the loop of worker {self.address.slot}", now - self.heard, on_loop=True))
        return max(calls, key=lambda call: call.seconds, default=None)

    def warnings(self) -> list[LongCall]:
        """The calls that take so long that users should know."""
        return [call for call in self.long_calls if call.seconds >= LONG_CALL_SECONDS]


class Patience:
    """Decides how long a worker may be silent before it is presumed dead.

    A worker of which nothing at all is heard gets `timeout`. One whose process still answers on the network is silent because
    its code holds the interpreter lock: another worker would run the same code and fall silent, too. It gets a longer limit,
    which doubles each time such a worker has needed more than half of it, up to `longest`. The limit is common to all workers,
    because tasks move and take their code with them.
    """

    def __init__(self, timeout: float, longest: float) -> None:
        self.timeout, self._longest = timeout, max(timeout, longest)
        self._granted = min(FIRST_LIMIT * timeout, self._longest)

    def limit(self, answers: bool) -> float:
        """Seconds of silence after which a worker is presumed dead. `answers`: its process does, on the network."""
        return self._granted if answers else self.timeout

    def spoke_again(self, seconds: float) -> None:
        """Learn from a worker that was silent for so long while its process answered, presumed dead or not."""
        while seconds > self._granted / 2 and self._granted < self._longest:
            self._granted = min(2 * self._granted, self._longest)


def cluster_from(workers: Mapping[int, WorkerView], others: Mapping[str, float] = FrozenMap(),
                 links: Mapping[tuple[str, str], float] = FrozenMap()) -> Cluster:
    """The nodes and slots of these workers, as schedulers see them. `others`: cores that processes other than workers use, by
    machine. `links`: as in `Cluster`."""
    by_slot = sorted(workers.items())
    nodes = {worker.node.name: worker for _, worker in by_slot}
    on_machine = Counter(machine_of(worker) for _, worker in by_slot)
    on_node = Counter(worker.node.name for _, worker in by_slot)
    shares = [_share(worker.node, on_node[name] / on_machine[machine_of(worker)], others.get(machine_of(worker), 0.0))
              for name, worker in sorted(nodes.items())]
    return Cluster(tuple(shares), tuple(Slot(worker.node.name, worker.executor, slot) for slot, worker in by_slot), links)


def machine_of(worker: WorkerView) -> str:
    """Names the machine whose cores the worker shares with all others of that name."""
    return worker.node.machine or worker.address.boot or worker.node.name


def _share(node: Node, share: float, others: float) -> Node:
    """The node's share of its machine, by the number of workers: executors of a host have its cores and memory together."""
    return replace(node, cores=node.cores * share, memory_mb=max(1, int(node.memory_mb * share)),
                   others_mhz=others * share * node.mhz)


def agents_of(workers: Mapping[int, WorkerView], before: Mapping[str, int]) -> dict[str, int]:
    """node -> slot of its agent: the agent of `before` while it lives, otherwise the worker with the lowest slot."""
    lowest = {worker.node.name: slot for slot, worker in sorted(workers.items(), reverse=True)
              if worker.address.ipc}  # a Spark executor has no address and no agent
    still = {node: slot for node, slot in before.items() if slot in workers and workers[slot].node.name == node}
    return {**lowest, **still}

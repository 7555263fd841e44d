"""DataFrame spouts on a `LocalCluster`: in Spark's place, `Query` sends micro-batches through feeds in memory.

It follows the steps of the feeding query and its feeders, with the same records of what is in transit."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from millrace.api.grouping import Grouping
from millrace.api.spout import Spout
from millrace.api.topology import Topology
from millrace.control.events import WaveRequested
from millrace.control.feeding import FEED, FEED_WINDOW, FeedAddress, Receivers, SendWindow
from millrace.master.load.observed import TaskObserved, TopologyObserved
from millrace.master.workers.feeds import feeds_for
from millrace.runtime.feeds.feed import SocketFeed
from millrace.runtime.feeds.messages import Done, Push, Refused, Returned
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import encode_batch
from millrace.testing.local_cluster import LocalCluster
from support.cluster.wave_parts import KEYS, AtLeast, AtMost, FakeLedger, Pass
from support.cluster.wave_runs import tasks
from support.scaling.scaled_runs import Counting

SPLITS = 8
PARTITIONS, PIECES, ROWS = 3, 12, 5  # of a micro-batch, of a partition, of a piece
BATCH_ROWS = PARTITIONS * PIECES * ROWS
ASK_SECONDS, RESEND_SECONDS = 0.02, 0.3

FRAME = "support.none:frame"  # nobody makes it


class FedAtLeast(Topology):
    config: ClassVar[dict[str, Any]] = AtLeast.config
    numbers = Spout.from_dataframe(FRAME, outputs=["key", "number"], par=2, splits=SPLITS)
    tally = Counting.spec(inputs={numbers: Grouping.fields("key")}, par=3)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class FedPlain(Topology):
    """At least once without state: no waves."""

    config: ClassVar[dict[str, Any]] = AtLeast.config
    numbers = Spout.from_dataframe(FRAME, outputs=["key", "number"], par=2, config={"splits": SPLITS})
    one = Pass.spec(inputs={numbers: Grouping.fields("key")}, par=2)


class FedAtMost(Topology):
    config: ClassVar[dict[str, Any]] = AtMost.config
    numbers = Spout.from_dataframe(FRAME, outputs=["key", "number"], par=2, splits=SPLITS)
    one = Pass.spec(inputs={numbers: Grouping.fields("key")}, par=2)


class MemoryFeed(SocketFeed):
    """A feed whose batches come from a deque, and whose answers go to their sender's."""

    def __init__(self, ipc: str, close: Callable[[], None]) -> None:
        super().__init__([], Path("/none"), Counter())
        self.ipc, self._close = ipc, close
        self.inbox: deque[tuple[Any, list[Any]]] = deque()

    def _receive(self) -> Any:
        return self.inbox.popleft() if self.inbox else None

    def answer(self, sender: Any, answer: Any) -> None:
        sender[0].append((self.ipc, answer))

    def close(self) -> None:
        self._closed = True
        self._close()


class MemoryFeeds:
    """The feeds of all workers, by address."""

    def __init__(self) -> None:
        self.open_feeds: dict[str, MemoryFeed] = {}
        self._opened = 0

    def open(self, name: str, tell: Callable[[str, Any], None]) -> MemoryFeed:
        self._opened += 1
        ipc = f"{name} {self._opened}"
        feed = self.open_feeds[ipc] = MemoryFeed(ipc, lambda: self.open_feeds.pop(ipc, None) and None)
        tell(FEED, FeedAddress(ipc, "", "here"))
        return feed


class Partition:
    """A feeder: sends one partition of a micro-batch."""

    def __init__(self, query: Query, batch: int, number: int) -> None:
        self._query, self._batch, self._number = query, batch, number
        self._outbox, self._answers = SendWindow(FEED_WINDOW), deque[tuple[str, Any]]()
        self._asked, self._receivers = float("-inf"), Receivers()
        self._pieces = list(self._encoded())

    def _encoded(self) -> Iterator[Any]:
        for piece in range(PIECES):
            first = self._batch * BATCH_ROWS + (self._number * PIECES + piece) * ROWS
            numbers = range(first, first + ROWS)
            yield encode_batch(pa.record_batch({"key": [f"k{n % KEYS}" for n in numbers], "number": list(numbers)}))

    @property
    def over(self) -> bool:
        return self._outbox.empty and self._outbox.next_sequence == PIECES

    def turn(self, now: float) -> None:
        while not self._outbox.full and self._outbox.next_sequence < PIECES:
            sequence = self._outbox.next_sequence
            push = Push("q", self._batch, self._number, sequence, 1 << 63 | sequence, (self._number + sequence) % SPLITS)
            self._outbox.put([wire.encode(push), self._pieces[sequence]])
        if now - self._asked >= ASK_SECONDS:
            self._asked, self._receivers = now, self._query.receivers()
            self._outbox.look_again(lambda ipc, sequence: self._receivers.receives(ipc, self._number + sequence),
                                    now - RESEND_SECONDS)
        for sending in self._outbox.unsent():
            feed = self._receivers.feed(self._number + sending.sequence, "here")
            if feed is not None:
                self._query.post(feed.ipc, (self._answers, b""), sending.payload)
                sending.target, sending.at = feed.ipc, now
        while self._answers:
            self._take(*self._answers.popleft())

    def _take(self, ipc: str, answer: Any) -> None:
        assert not isinstance(answer, Refused), answer
        if isinstance(answer, Returned):
            self._query.returned += 1
            self._outbox.give_back(answer.sequence, ipc)
        elif isinstance(answer, Done) and not self._query.loses(answer):
            self._outbox.acked(answer.sequence)


class Query:
    """Sends micro-batches one after the other, until it is told to finish. `read`: the number that are committed."""

    def __init__(self, cluster: LocalCluster, name: str, feeds: MemoryFeeds,
                 loses: Callable[[Any], bool] = lambda answer: False) -> None:
        self._cluster, self._name, self._feeds, self.loses = cluster, name, feeds, loses
        self._batches: int | None = None  # the last one is known
        self.read = self.returned = self.repeated = 0
        self._partitions: list[Partition] = []
        self._roll_backs, self._wave = 0, -1

    @property
    def over(self) -> bool:
        return self.read == self._batches

    @property
    def rows(self) -> range:
        """The numbers that it has read."""
        return range(self.read * BATCH_ROWS)

    def finish(self) -> None:
        """Send the micro-batch that is under way and another one to their end, and run until everything is processed."""
        self._batches = self.read + 2
        self.run_until(lambda: self.over)
        self._cluster.run(0.5)

    def receivers(self) -> Receivers:
        """As the master answers a feeder."""
        topology = self._cluster.master.topologies[self._name]
        observed = TopologyObserved(topology.graph, 0.0)
        for worker in self._cluster.workers.values():
            for run in worker.topologies.values():
                for task in run.tasks.values():
                    feed = self._feed_of(task)
                    if feed is not None:
                        observed.tasks[task.name] = TaskObserved(incarnation=task.incarnation,
                                                                 custom={FEED: FeedAddress(feed.ipc, "", "here")})
        answer = feeds_for(wire.AskFeeds(self._name, "numbers"), {self._name: topology}, {self._name: observed})
        return Receivers(answer.feeds, answer.owners)

    def _feed_of(self, task: Any) -> MemoryFeed | None:
        feed = getattr(task.component, "feed", None) if task.definition.dataframe else None
        return feed if isinstance(feed, MemoryFeed) else None

    def post(self, ipc: str, sender: Any, frames: list[Any]) -> None:
        feed = self._feeds.open_feeds.get(ipc)
        if feed is not None:
            feed.inbox.append((sender, frames))

    def turn(self) -> None:
        """Do what can be done now."""
        topology = self._cluster.master.topologies[self._name]
        if self.over or topology.status != "running":
            return
        if not self._partitions:
            self._partitions = [Partition(self, self.read, number) for number in range(PARTITIONS)]
            self._roll_backs, self._wave = topology.roll_backs, -1
        for partition in self._partitions:
            partition.turn(self._cluster.clock.now())
        if all(partition.over for partition in self._partitions) and self._saved(topology):
            self.read += topology.roll_backs == self._roll_backs
            self.repeated += topology.roll_backs != self._roll_backs
            self._partitions = []

    def _saved(self, topology: Any) -> bool:
        if topology.waves is None or topology.roll_backs != self._roll_backs:
            return True
        if self._wave < 0:
            self._wave = topology.waves.wave + 1
        self._cluster.tell(WaveRequested(self._name))
        return bool(topology.waves.committed >= self._wave)

    def run_until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Run the cluster and the query."""

        def turned() -> bool:
            self.turn()
            return condition()

        self._cluster.run_until(turned, seconds)


def splits_of(cluster: LocalCluster) -> dict[int, list[int]]:
    """The splits that each running task of the spout reads."""
    return {task.name.index: sorted(task.component.parts) for task in tasks(cluster, "numbers")}

"""Frames that are lost, repeated, late, forged, or sent by a worker that is presumed dead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.control.assignment import WorkerAddress
from millrace.control.events import Paused, Unpaused
from millrace.errors import WireError
from millrace.runtime.clock import ManualClock
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import encode_rows
from millrace.testing.local_cluster import LocalCluster
from support.cluster.cluster_runs import Late, counter, drain, meter, spouts_done
from support.cluster.plain_parts import Numbers, Pass, Sink
from support.cluster.records import SEEN, forget

N = 4000
CONFIG: dict[str, Any] = {"limit": N, "burst": 10, "topology.chunk.tuples": 10, "topology.message.timeout.secs": 2.0}
AT_MOST_ONCE = {**CONFIG, "topology.guarantee": "at-most-once"}


class Line(Topology):
    numbers = Numbers.spec(par=2)
    through = Pass.spec(inputs=[numbers], par=3)
    sink = Sink.spec(inputs={through: Grouping.fields("n")}, par=2)


def line(config: dict[str, Any] = CONFIG, cluster: LocalCluster | None = None) -> LocalCluster:
    cluster = cluster or LocalCluster(2)
    cluster.submit(Line, config=config)
    return cluster


def finish(cluster: LocalCluster) -> None:
    cluster.run_until(lambda: spouts_done(cluster))
    cluster.run(0.5)
    drain(cluster, "line", seconds=120)


def total(cluster: LocalCluster, name: str) -> int:
    return sum(meter(cluster, component, name) for component in ("through", "sink"))


def kind_of(frames: list[bytes]) -> type:
    return type(wire.decode_data(frames[0]))


# ---- lost ----


@pytest.mark.parametrize("kind", [wire.Chunk, wire.Credits, wire.Acks, wire.Roots, wire.Verdicts],
                         ids=lambda kind: kind.__name__)
def test_lost_frames_of_one_kind_cost_time_and_no_tuples(kind: type) -> None:
    cluster, seen = line({**CONFIG, "topology.acker.executors": 1}), 0

    def drop(sender: int, receiver: int, frames: list[bytes]) -> bool:
        nonlocal seen
        seen += kind_of(frames) is kind
        return kind_of(frames) is kind and seen % 7 == 3 and seen < 200

    cluster.drop = drop
    cluster.run(1.0)
    gaps = total(cluster, "gaps")
    finish(cluster)
    assert seen > 10
    assert (gaps > 0) == (kind is wire.Chunk)
    assert set(SEEN["sink"]) == set(range(N))


@pytest.mark.parametrize("config", [CONFIG, AT_MOST_ONCE], ids=["at-least-once", "at-most-once"])
@pytest.mark.parametrize("begin", [100, 130, 200], ids=["from the first frame", "early", "later"])
def test_a_connection_that_is_dead_for_a_while_does_not_stop_the_stream(begin: int, config: dict[str, Any]) -> None:
    cluster = line(config)
    cluster.step(begin)
    cluster.drop = lambda sender, receiver, frames: True
    cluster.run(0.2)
    cluster.drop = lambda sender, receiver, frames: False
    finish(cluster)
    lost = set(range(N)) - set(SEEN["sink"])
    if config is CONFIG:
        assert not lost
    else:
        assert 0 < len(lost) <= 2 * 7 * 4 * 40, "what was under way in full windows, and no more"
        assert set(Counter(SEEN["sink"]).values()) == {1}


def test_the_gaps_are_as_many_as_the_chunks_that_were_lost() -> None:
    cluster, lost = line(AT_MOST_ONCE), Counter()

    def drop(sender: int, receiver: int, frames: list[bytes]) -> bool:
        header = wire.decode_data(frames[0])
        if isinstance(header, wire.Chunk) and header.seq % 5 == 2:
            lost.update(chunks=1, tuples=header.count)
            return True
        return False

    cluster.drop = drop
    cluster.run(2.0)
    cluster.drop = lambda sender, receiver, frames: False
    cluster.run(3.0)  # full channels probe for their last chunk
    assert total(cluster, "gaps") <= lost["chunks"]
    assert total(cluster, "gaps") >= lost["chunks"] - 2 * 7, "a gap shows when the next chunk comes"
    assert len(SEEN["sink"]) == N - lost["tuples"] - (N - meter(cluster, "numbers", "emitted"))


def test_frames_lost_at_random_lose_no_tuple() -> None:
    for seed in range(4):
        forget()
        random, cluster = Random(seed), line()
        cluster.drop = lambda sender, receiver, frames, random=random: random.random() < 0.05
        cluster.run(3.0)
        cluster.drop = lambda sender, receiver, frames: False
        finish(cluster)
        assert set(SEEN["sink"]) == set(range(N))


# ---- repeated and late ----


class Echoing(LocalCluster):
    """A cluster on which frames arrive twice if `echo` is true for them."""

    echo: Callable[[list[bytes]], bool] = staticmethod(lambda frames: False)

    def post(self, sender: int, address: WorkerAddress, frames: list[bytes]) -> None:
        super().post(sender, address, frames)
        if self.echo(frames):
            super().post(sender, address, frames)


@pytest.mark.parametrize("config", [CONFIG, AT_MOST_ONCE], ids=["at-least-once", "at-most-once"])
def test_a_chunk_that_comes_twice_is_counted_and_processed_once(config: dict[str, Any]) -> None:
    cluster, echoes = Echoing(2), 0

    def echo(frames: list[bytes]) -> bool:
        nonlocal echoes
        echoes += kind_of(frames) is wire.Chunk
        return kind_of(frames) is wire.Chunk

    cluster.echo = echo
    line(config, cluster)
    cluster.run(1.0)
    assert total(cluster, "repeats") == echoes > 100
    assert total(cluster, "gaps") == 0
    finish(cluster)
    assert Counter(SEEN["sink"]) == dict.fromkeys(range(N), 1)


def test_credits_that_come_twice_do_not_widen_the_window() -> None:
    cluster = Echoing(2)
    cluster.echo = lambda frames: kind_of(frames) is wire.Credits
    line(CONFIG, cluster)
    finish(cluster)
    assert Counter(SEEN["sink"]) == dict.fromkeys(range(N), 1)


class Short(Topology):
    numbers = Numbers.spec(par=2)
    sink = Sink.spec(inputs=[numbers], par=6)


@pytest.mark.parametrize("ackers", [0, 1])
@pytest.mark.parametrize("late", [0, 1])
def test_chunks_for_a_task_that_a_worker_does_not_know_yet_are_kept(late: int, ackers: int) -> None:
    cluster = Late(3)
    cluster.submit(Short, name="line", config={**CONFIG, "topology.acker.executors": ackers})
    cluster.step(120)
    cluster.tell(Paused("line"))  # so that nothing is lost with the killed worker
    cluster.run_until(lambda: cluster.master.drained(cluster.master.topologies["line"]))
    cluster.late = (late,)
    cluster.kill(2)
    cluster.tell(Unpaused("line"))
    cluster.step(50)
    assert sum(map(len, cluster.workers[late].arrivals._stash.values())) > 0
    cluster.hear()
    finish(cluster)
    assert set(SEEN["sink"]) == set(range(N))
    assert counter(cluster, "stale") == 0
    if not ackers:  # roots that overtake the new plan of a moved acker are dropped: they time out and are replayed
        assert len(SEEN["sink"]) == N


# ---- clocks ----


class Ahead:
    """A clock that is ahead of another."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds

    def now(self) -> float:
        return self._clock.now() + self._seconds

    wall = now

    def cpu(self) -> float:
        return self._clock.cpu()


class Apart(LocalCluster):
    """A cluster on which each slot's clock is a thousand seconds ahead of the previous one."""

    def start(self, slot: int) -> None:
        right, self.clock = self.clock, Ahead(self.clock, 1000.0 * slot)  # type: ignore[assignment]
        try:
            super().start(slot)
        finally:
            self.clock = right


def test_the_clocks_of_hosts_need_not_agree() -> None:
    cluster = line(CONFIG, Apart(3))
    cluster.run(0.5)
    cluster.kill(1)
    cluster.run(0.5)
    cluster.start(1)
    cluster.run_until(lambda: spouts_done(cluster))
    assert total(cluster, "expired") == 0
    assert set(SEEN["sink"]) == set(range(N))


# ---- forged ----


def forgeries(cluster: LocalCluster) -> list[list[Any]]:
    """Frames that no worker has sent; some resemble real ones."""
    graph = cluster.master.topologies["line"].graph
    numbers, through, sink = (graph.components[i] for i in range(3))
    source, target = (1 << 16), (2 << 16)
    incarnation = cluster.master.topologies["line"].places[graph.task(target)].incarnation
    generation = max(worker.generation for worker in cluster.workers.values())
    assert [numbers.name, through.name, sink.name] == ["numbers", "through", "sink"]

    def chunk(**changes: Any) -> wire.Chunk:
        real = {"worker": 0, "generation": generation, "topology": 1, "epoch": 0, "version": 1, "source": source,
                "source_incarnation": 77, "target": target, "target_incarnation": incarnation, "stream": 0, "seq": 0,
                "count": 1, "form": wire.ROWS, "edge": 0, "roots": [], "attempt": 0, "age": 0.0}
        return wire.Chunk(**{**real, **changes})

    body = encode_rows([(5,)])
    headers = [chunk(topology=99, version=0), chunk(source=99), chunk(source=3 << 16), chunk(stream=9),
               chunk(stream=-1), chunk(target=99, version=0), chunk(target=source),
               chunk(target_incarnation=99, version=0)]
    bodies = [b"", b"junk", encode_rows([(1, 2)]), encode_rows([5]), encode_rows({"n": 1}),
              b"\x91\x91" + b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", bytes(1000)]
    return [
        [], [b""], [b"junk"], [b"junk", body], [wire.encode(chunk())], [wire.encode(chunk()), body, body],
        *([wire.encode(header), body] for header in headers),
        *([wire.encode(chunk(source_incarnation=n, form=n % 2)), broken] for n, broken in enumerate(bodies * 2)),
        [wire.encode(wire.Acks(0, generation, 1, 1, [(2**63, 5), (5, 5)]))],
        [wire.encode(wire.Fails(0, generation, 1, 1, [7]))],
        [wire.encode(wire.Roots(0, generation, 1, 1, (0, 99, 1), [(1, 0), (2, 1)]))],
        [wire.encode(wire.Roots(0, generation, 1, 1, (0, source, 99), [(3, 0)]))],
            [wire.encode(wire.Roots(0, generation, 1, 99, (77, source, 99), [(2**60, 0)]))],
            [wire.encode(wire.LedgerHandover(0, generation, 1, 1, 99, [(3, 0, None)], [4]))],
            [wire.encode(wire.LedgerHandover(0, generation, 1, 1, 0, [(3, 0, (7, 7, 7)), (9, 9, None)], [4]))],
        [wire.encode(wire.Verdicts(0, generation, 1, source, 1, [123], [456]))],
        [wire.encode(wire.Verdicts(0, generation, 1, target, 1, [1], [2]))],
        [wire.encode(wire.Credits(0, generation, [(1, 99, 1, 99, 1, 5, 9, 3), (99, source, 1, target, 1, 5, 9, 3)]))],
        [wire.encode(wire.Stop())],
    ]


@pytest.mark.parametrize("config", [CONFIG, AT_MOST_ONCE], ids=["at-least-once", "at-most-once"])
def test_forged_frames_are_counted_and_have_no_effect(config: dict[str, Any]) -> None:
    cluster = line(config)
    cluster.step(120)
    for frames in forgeries(cluster):
        for worker in cluster.workers.values():
            worker.arrivals.receive(frames)
        cluster.step()
    assert counter(cluster, "malformed") > 20
    finish(cluster)
    assert Counter(SEEN["sink"]) == dict.fromkeys(range(N), 1)


def test_random_bytes_are_counted_and_have_no_effect() -> None:
    cluster, random = line(), Random(1)
    cluster.step(120)
    for _ in range(300):
        frame = random.randbytes(random.randint(0, 60))
        with pytest.raises(WireError):
            wire.decode_data(frame)
        cluster.workers[random.randint(0, 1)].arrivals.receive([frame] * random.randint(1, 3))
    assert counter(cluster, "malformed") == 300
    finish(cluster)
    assert Counter(SEEN["sink"]) == dict.fromkeys(range(N), 1)


# ---- presumed dead ----


def test_frames_of_a_worker_that_is_presumed_dead_are_refused() -> None:
    cluster = line({**CONFIG, "limit": 1_000_000}, LocalCluster(3))
    cluster.step(150)
    cluster.cut.add(1)
    cluster.run(3.0)
    assert "worker 1 lost: no heartbeat" in cluster.said
    assert sorted(cluster.master.workers) == [0, 2]
    fenced = {slot: worker.counters["fenced"] for slot, worker in cluster.workers.items()}
    assert fenced[0] > 0
    assert fenced[2] > 0
    assert fenced[1] == 0, "it does not know better"


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_live_worker_that_is_cut_off_loses_no_tuple(slot: int) -> None:
    cluster = line(CONFIG, LocalCluster(3))
    cluster.step(150)
    cluster.cut.add(slot)
    cluster.run(4.0)
    drain(cluster, "line")
    assert set(SEEN["sink"]) == set(range(N))


def test_a_restarted_worker_is_not_taken_for_its_predecessor() -> None:
    cluster = line({**CONFIG, "limit": 20_000}, LocalCluster(3))
    cluster.step(150)
    old = cluster.workers[1]
    cluster.kill(1, noticed=False)
    cluster.start(1)
    cluster.step(5)
    chunk = wire.Chunk(1, old.generation, 1, 0, 1, 1 << 16, 1, 2 << 16, 1, 0, 0, 1, wire.ROWS, 0, [], 0, 0.0)
    for worker in cluster.workers.values():
        worker.arrivals.receive([wire.encode(chunk), encode_rows([(-1,)])])
    assert all(worker.counters["fenced"] > 0 for worker in cluster.workers.values())
    assert -1 not in SEEN["sink"]
    finish(cluster)
    assert set(SEEN["sink"]) == set(range(20_000))


def test_a_worker_that_has_just_joined_is_accepted_before_all_know_it() -> None:
    """Its first chunks may overtake the assignment that introduces it."""
    cluster = line(AT_MOST_ONCE)
    cluster.step(120)
    newcomer = wire.Chunk(7, 99, 1, 0, 1, 1 << 16, 55, 2 << 16, 1, 0, 0, 1, wire.ROWS, 0, [], 0, 0.0)
    for worker in cluster.workers.values():
        worker.arrivals.receive([wire.encode(newcomer), encode_rows([(-1,)])])
    assert counter(cluster, "fenced") == 0
    cluster.step(70)
    assert SEEN["sink"].count(-1) == 1

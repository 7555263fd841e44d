"""Batches without Spark, in the corners: tasks that come, go and come back, time that passes between batches, stores that lose
something, user code that raises."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kept_state import own_of, state_of
from parts import Numbers

from millrace.api.component import BatchingBolt, Bolt, TicklessBatchingBolt, Tuple
from millrace.api.grouping import Grouping
from millrace.api.state import CounterState, State
from millrace.api.topology import Stream, Topology
from millrace.connectors.sinks import JsonLinesSink
from millrace.errors import CheckpointMissing
from millrace.model.graph import graph_of
from millrace.runtime.clock import ManualClock
from millrace.spark.microbatch import batched
from millrace.state.checkpoint import manifest_names
from millrace.state.fragments import Held
from millrace.testing.local_batches import AttemptFailed, LocalBatches

N = 200
MADE: Counter[str] = Counter()  # calls of `initialize`, by task
CLOSED: list[str] = []
RAISE: list[BaseException] = []  # what is to be raised next


@pytest.fixture(autouse=True)
def nothing_yet() -> Iterator[None]:
    MADE.clear()
    CLOSED.clear()
    RAISE.clear()
    yield


def start(topology: type[Topology], tmp_path: Path, processes: int = 1, most_tuples: int = 20, config: Any = (),
          **more: Any) -> LocalBatches:
    """A batch brings `most_tuples` from each task of the spout."""
    graph = batched(graph_of(topology, config={"path": str(tmp_path / "out"), "limit": N, "burst": 5,
                                               "topology.chunk.tuples": 5, **dict(config)}))
    return LocalBatches(graph, str(tmp_path / "store"), processes, most_tuples=most_tuples, **more)


def run_to_the_end(batches: LocalBatches) -> None:
    for _ in range(100):
        if not sum(task.meters["emitted"] for report in batches.batch() for task in report.tasks):
            return
    raise AssertionError("the spouts never come to an end")


def all_in(batches: LocalBatches, process: int) -> None:
    batches.choose = lambda task: process


def fail_after(batches: LocalBatches, stage: int) -> None:
    """An attempt that breaks off when all of the stage is done."""
    last = len(batches._work(0).stages().partitions[stage]) - 1
    batches.fault = lambda at, partition: (at, partition) == (stage, last)
    with pytest.raises(AttemptFailed):
        batches.batch()
    batches.fault = lambda at, partition: False


def rows_in(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(directory.glob("part-*.jsonl")) for line in path.read_text().splitlines()]


def numbers_in(directory: Path) -> list[int]:
    return sorted(row["n"] for row in rows_in(directory))


def counters(batches: LocalBatches) -> Counter[str]:
    """Of one more batch."""
    found: Counter[str] = Counter()
    for report in batches.batch():
        found.update(report.counters)
    return found


class Remembers:
    """Keeps account of its instances."""

    component_name: str
    task_index: int

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)  # type: ignore[misc]
        MADE[f"{self.component_name}[{self.task_index}]"] += 1

    def close(self) -> None:
        CLOSED.append(f"{self.component_name}[{self.task_index}]")
        super().close()  # type: ignore[misc]


class Source(Remembers, Numbers):
    pass


class Tally(Remembers, Bolt):
    """How often each last digit came; passes every number on."""

    outputs: ClassVar[list[str]] = ["n"]
    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        self.counts[tup.values.digit] += 1
        self.emit([tup.values.n])


class Digits(Bolt):
    outputs: ClassVar[list[str]] = ["n", "digit"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values.n, tup.values.n % 10])


class Tallied(Topology):
    numbers = Source.spec(par=2)
    digits = Digits.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    tally = Tally.spec(inputs={digits: Grouping.fields("digit")}, par=3)
    sink = JsonLinesSink.spec(inputs={tally: Grouping.SHUFFLE}, par=2)


def check_tally(batches: LocalBatches, out: Path) -> None:
    assert numbers_in(out) == list(range(N))
    assert counts_of(batches) == {digit: N // 10 for digit in range(10)}


def counts_of(batches: LocalBatches) -> dict[Any, Any]:
    return state_of(batches.checkpoints.store, batches.graph)["tally"]["counts"]


# -- direct streams ----------------------------------------------------------------------------------------------------


class Chooser(Remembers, Bolt):
    """Learns in `initialize` which tasks there are, and names one of them for each number."""

    outputs: ClassVar[list[Any]] = [Stream(["n"], "chosen", direct=True)]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self.targets = sorted(int(task) for task, name in context["task->component"].items() if name == "named")

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        self.emit([n], stream="chosen", direct_task=self.targets[n % len(self.targets)])


class Named(JsonLinesSink):
    """Says which task it is."""

    def encode(self, rows: list[Any]) -> bytes:
        return b"".join(b'{"n": %d, "task": %d}\n' % (row.n, self.task_index) for row in rows)


class Chosen(Topology):
    numbers = Source.spec(par=1)
    chooser = Chooser.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    named = Named.spec(inputs=[chooser["chosen"]], par=3)


@pytest.mark.parametrize("processes", [1, 3])
def test_who_names_its_targets_learns_of_other_ones(tmp_path: Path, processes: int) -> None:
    batches = start(Chosen, tmp_path, processes)
    tasks = []
    for par in (3, 5, 2, 4, 1):
        if par != batches.graph.component("named").par:
            batches.scale("named", par)
        before = len(rows_in(tmp_path / "out"))
        batches.batch()
        assert len(rows_in(tmp_path / "out")) == before + 20
        made = max(batches.good)
        found = [json.loads(line)["task"] for path in (tmp_path / "out").glob(f"part-*-{made}-*")
                 for line in path.read_text().splitlines()]
        tasks.append(set(found))
    assert tasks == [set(range(par)) for par in (3, 5, 2, 4, 1)]
    run_to_the_end(batches)
    assert numbers_in(tmp_path / "out") == list(range(N))


def test_who_does_not_name_any_stays_as_it_is_under_a_new_plan(tmp_path: Path) -> None:
    batches = start(Tallied, tmp_path)
    batches.batch()
    made = MADE.copy()
    batches.scale("sink", 3)
    run_to_the_end(batches)
    assert made == MADE
    host = batches.processes[0]
    assert host is not None
    for kept in host.kept.values():
        assert list(kept.task.component.context["task->component"].values()).count("sink") == 3
    check_tally(batches, tmp_path / "out")


# -- what processes keep -----------------------------------------------------------------------------------------------


def kept_in(batches: LocalBatches, process: int) -> set[str]:
    host = batches.processes[process]
    assert host is not None
    assert set(host.run.tasks) == set(host.kept)
    return {str(kept.task.name) for kept in host.kept.values()}


def test_tasks_that_are_no_more_are_let_go(tmp_path: Path) -> None:
    batches = start(Tallied, tmp_path)
    batches.scale("tally", 5)
    batches.batch()
    assert kept_in(batches, 0) == set(map(str, batches.graph.tasks()))
    batches.scale("tally", 2)
    batches.batch()
    assert kept_in(batches, 0) == set(map(str, batches.graph.tasks()))
    assert sorted(CLOSED) == ["tally[2]", "tally[3]", "tally[4]"]
    run_to_the_end(batches)
    check_tally(batches, tmp_path / "out")


def test_tasks_that_have_their_place_elsewhere_are_let_go(tmp_path: Path) -> None:
    """Each process runs what is planned there; then the plan changes round."""
    batches = start(Tallied, tmp_path, processes=2)
    batches.choose = lambda task: batches.place(task)
    batches.batch()
    first = [kept_in(batches, 0), kept_in(batches, 1)]
    assert not first[0] & first[1]
    batches.place = lambda task: (task.index + 1) % 2  # type: ignore[method-assign]
    batches.version += 1
    batches.batch()
    assert [kept_in(batches, 1), kept_in(batches, 0)] == first
    run_to_the_end(batches)
    check_tally(batches, tmp_path / "out")


def test_nothing_is_let_go_without_a_new_plan(tmp_path: Path) -> None:
    """Spark runs partitions elsewhere now and then, and comes back."""
    batches = start(Tallied, tmp_path, processes=2)
    for process in (0, 1, 0):
        all_in(batches, process)
        batches.batch()
    assert kept_in(batches, 0) == kept_in(batches, 1) == set(map(str, batches.graph.tasks()))
    assert not [each for each in CLOSED if each.startswith(("tally", "numbers"))]


# -- processes that were behind ----------------------------------------------------------------------------------------


def test_a_process_that_was_behind_goes_on_with_what_it_has(tmp_path: Path) -> None:
    batches = start(Tallied, tmp_path, processes=2)
    for process in (0, 1, 0, 1, 1, 0):
        all_in(batches, process)
        batches.batch()
    assert set(MADE) == {"numbers[0]", "numbers[1]", "tally[0]", "tally[1]", "tally[2]"}
    assert set(MADE.values()) == {2}, "once in each process"
    run_to_the_end(batches)
    check_tally(batches, tmp_path / "out")


def test_after_an_attempt_that_broke_off_components_are_made_anew(tmp_path: Path) -> None:
    batches = start(Tallied, tmp_path)
    batches.batch()
    assert set(MADE.values()) == {1}
    fail_after(batches, stage=2)
    batches.batch()
    assert set(MADE.values()) == {2}
    fail_after(batches, stage=0)
    batches.batch()
    assert {name: count for name, count in MADE.items() if count != 2} == {"numbers[0]": 3, "numbers[1]": 3}
    run_to_the_end(batches)
    check_tally(batches, tmp_path / "out")


def test_an_attempt_that_broke_off_elsewhere_is_no_concern_of_who_slept(tmp_path: Path) -> None:
    """It only was behind: neither made anew nor read from the store where nothing has changed. What the other has staged is
    thrown away."""
    batches = start(Tallied, tmp_path, processes=2)
    all_in(batches, 0)
    batches.batch()
    all_in(batches, 1)
    fail_after(batches, stage=3)
    assert list((tmp_path / "out").glob(".staged-*/*"))
    all_in(batches, 0)
    found = counters(batches)
    assert found["resident"] == 3 and not found["restored"]
    assert set(MADE.values()) == {2}, "once in each process"
    assert not list((tmp_path / "out").glob(".staged-*/*"))
    all_in(batches, 1)
    run_to_the_end(batches)
    check_tally(batches, tmp_path / "out")


class Own(Remembers, Bolt):
    """Its state belongs to the task."""

    outputs: ClassVar[list[str]] = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self.total = 0

    def process(self, tup: Tuple) -> None:
        self.total += tup.values.n
        self.emit([tup.values.n])

    def snapshot(self) -> int:
        return self.total

    def restore(self, snapshot: int) -> None:
        self.total = snapshot


class Summed(Topology):
    numbers = Source.spec(par=1)
    own = Own.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    sink = JsonLinesSink.spec(inputs={own: Grouping.SHUFFLE}, par=1)


def test_a_task_with_state_of_its_own_is_made_anew_when_it_was_behind(tmp_path: Path) -> None:
    batches = start(Summed, tmp_path, processes=2)
    for process in (0, 1, 0, 0):
        all_in(batches, process)
        batches.batch()
    assert MADE["own[0]"] == MADE["own[1]"] == 3
    all_in(batches, 1)
    run_to_the_end(batches)
    assert sum(own_of(batches.checkpoints.store, batches.graph)["own"]) == sum(range(N))
    assert numbers_in(tmp_path / "out") == list(range(N))


# -- sinks -------------------------------------------------------------------------------------------------------------


def test_files_that_a_consumer_takes_away(tmp_path: Path) -> None:
    """Between batches, also what one process has written and another has made visible."""
    batches, out, taken = start(Tallied, tmp_path, processes=2), tmp_path / "out", tmp_path / "taken"
    taken.mkdir()
    publish = batches.publish

    def elsewhere() -> None:
        all_in(batches, 1)
        publish()

    for number in range(8):
        all_in(batches, 0)
        batches.publish = elsewhere if number % 2 else publish  # type: ignore[method-assign]
        batches.batch()
        for path in out.glob("part-*"):
            path.rename(taken / path.name)
    assert numbers_in(taken) == list(range(N))


# -- a store that loses something --------------------------------------------------------------------------------------


def lose_blobs(batches: LocalBatches) -> None:
    """All but the manifests."""
    store = batches.checkpoints.store
    names = store.names("")
    store.delete(set(names).difference(manifest_names(names)))


class Spans(Bolt):
    """So many numbers one after the other have one key: most keys have all they will ever get."""

    outputs: ClassVar[list[str]] = ["n", "digit"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values.n, tup.values.n // self.storm_conf["span"]])


class TalliedSpans(Topology):
    numbers = Source.spec(par=2)
    spans = Spans.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    tally = Tally.spec(inputs={spans: Grouping.fields("digit")}, par=3)
    sink = JsonLinesSink.spec(inputs={tally: Grouping.SHUFFLE}, par=2)


def three_batches(tmp_path: Path, span: int) -> LocalBatches:
    """120 numbers."""
    batches = start(TalliedSpans, tmp_path, config={"span": span})
    for _ in range(3):
        batches.batch()
    return batches


def check_spans(batches: LocalBatches, out: Path, span: int, numbers: int = N) -> None:
    assert numbers_in(out) == list(range(numbers))
    assert counts_of(batches) == Counter(n // span for n in range(numbers))


@pytest.mark.parametrize("span", [7, 12])
def test_what_is_resident_is_written_again(tmp_path: Path, span: int) -> None:
    batches = three_batches(tmp_path, span)
    lose_blobs(batches)
    batches.whole = True
    batches.batch()
    batches.whole = False
    check_spans(batches, tmp_path / "out", span, 160)
    batches.kill(0)
    run_to_the_end(batches)
    check_spans(batches, tmp_path / "out", span)


def test_nothing_is_committed_whose_blobs_are_gone(tmp_path: Path) -> None:
    """The attempt that has found out is over. All keys that had anything before are as they were: the next one writes them."""
    batches = three_batches(tmp_path, 12)
    lose_blobs(batches)
    with pytest.raises(CheckpointMissing):
        batches.batch()
    assert batches.committed is not None and batches.committed.wave == 3
    batches.whole = True
    batches.batch()
    batches.whole = False
    batches.kill(0)
    run_to_the_end(batches)
    check_spans(batches, tmp_path / "out", 12)


def test_what_neither_the_store_nor_a_process_has_must_be_brought_back(tmp_path: Path) -> None:
    """The attempt that has found out has added to a key and cannot take it back. It goes on when the blobs are there again."""
    batches = three_batches(tmp_path, 7)
    shutil.copytree(tmp_path / "store", tmp_path / "saved")
    lose_blobs(batches)
    batches.whole = False
    for _ in range(3):
        with pytest.raises(CheckpointMissing):
            batches.batch()
        batches.whole = True
    shutil.copytree(tmp_path / "saved", tmp_path / "store", dirs_exist_ok=True)
    run_to_the_end(batches)
    check_spans(batches, tmp_path / "out", 7)


# -- fragments ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def short_paths(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where processes meet: the path of a socket must not be long."""
    with tempfile.TemporaryDirectory(prefix="hold") as directory:
        monkeypatch.setenv("TMPDIR", directory)
        yield


def wait_for_fragments(batches: LocalBatches, process: int) -> None:
    """Until the process holds all that the tasks of others amount to: they are sent beside what follows."""
    host, manifest = batches.processes[process], batches.committed
    assert host is not None and host.holding is not None and manifest is not None
    wanted = {piece.blob for record in manifest.records if batches.place(record.task) != process for piece in record.pieces()}
    deadline = time.monotonic() + 20
    while True:
        told: Future[list[Held]] = Future()
        host.holding.exchange.listing(told.set_result)
        missing = wanted - {held.blob for held in told.result(20)}
        if not missing:
            return
        assert time.monotonic() < deadline, f"not sent: {missing}"


@pytest.mark.usefixtures("short_paths")
def test_a_process_that_takes_over_gets_state_from_fragments(tmp_path: Path) -> None:
    """In its own memory or another's, and without the store, which has lost it."""
    with contextlib.closing(start(Tallied, tmp_path, processes=2, holds=True)) as batches:
        batches.choose = lambda task: batches.place(task)
        for _ in range(3):  # in the first one nobody knows yet where the others are
            batches.batch()
        wait_for_fragments(batches, 1)
        batches.kill(0)
        lose_blobs(batches)
        all_in(batches, 1)
        batches.whole = True
        found = counters(batches)
        assert found["blobs_from_fragments"] and not found["blobs_from_store"]
        assert (found["restored"], found["resident"]) == (2, 1), "tally[0] and tally[2] were in the one that is gone"
        batches.whole = False
        batches.choose = lambda task: batches.place(task)
        wait_for_fragments(batches, 1)
        found = counters(batches)
        assert found["blobs_from_fragments"] and not found["blobs_from_store"], "one that has just come knows where they are"
        run_to_the_end(batches)
        check_tally(batches, tmp_path / "out")


# -- time --------------------------------------------------------------------------------------------------------------


class OnTick(Bolt):
    """Says at each tick how many it has had."""

    outputs: ClassVar[list[str]] = ["n"]
    config: ClassVar[dict[str, Any]] = {"topology.tick.tuple.freq.secs": 10}

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.had = 0

    def process(self, tup: Tuple) -> None:
        self.had += 1

    def process_tick(self, tup: Tuple) -> None:
        self.emit([self.had])


class Ticking(Topology):
    numbers = Source.spec(par=1)
    ticked = OnTick.spec(inputs={numbers: Grouping.SHUFFLE}, par=1)
    sink = JsonLinesSink.spec(inputs={ticked: Grouping.SHUFFLE}, par=1)


def test_ticks_fall_due_between_batches_and_come_once_in_the_next(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    batches = start(Ticking, tmp_path, clock=clock)
    told = []
    for seconds in (0, 4, 4, 4, 4, 40, 0, 10):
        clock.advance(seconds)
        batches.batch()
        told.append(numbers_in(tmp_path / "out"))
    assert told == [[], [], [], [80], [80], [80, 120], [80, 120], [80, 120, 160]]


class ByDigit(BatchingBolt):
    """How many of each last digit, whenever it is time."""

    outputs: ClassVar[list[str]] = ["n"]
    config: ClassVar[dict[str, Any]] = {"topology.tick.tuple.freq.secs": 10}

    def group_key(self, tup: Tuple) -> int:
        return int(tup.values.n % 10)

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        assert {tup.values.n % 10 for tup in tups} == {key}
        for tup in tups:
            self.emit(tup.values)


class ByDigitOnTime(ByDigit, TicklessBatchingBolt):
    secs_between_batches: ClassVar[float] = 10


class Grouped(Topology):
    numbers = Source.spec(par=2)
    grouped = ByDigit.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    sink = JsonLinesSink.spec(inputs={grouped: Grouping.SHUFFLE}, par=2)


class GroupedOnTime(Topology):
    numbers = Source.spec(par=2)
    grouped = ByDigitOnTime.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    sink = JsonLinesSink.spec(inputs={grouped: Grouping.SHUFFLE}, par=2)


@pytest.mark.parametrize("topology", [Grouped, GroupedOnTime])
def test_what_a_batching_bolt_has_collected_is_out_by_the_end_of_the_batch(tmp_path: Path, topology: type[Topology]) -> None:
    """Whether its time has come or not: nothing of it is in the checkpoint."""
    clock = ManualClock(1000.0)
    batches = start(topology, tmp_path, processes=2, clock=clock)
    for number, seconds in enumerate((0, 3, 30, 3)):
        clock.advance(seconds)
        if number == 2:
            fail_after(batches, stage=1)
        batches.batch()
        assert len(numbers_in(tmp_path / "out")) == 40 * (number + 1)
    run_to_the_end(batches)
    assert numbers_in(tmp_path / "out") == list(range(N))


class Fresh(Bolt):
    """Passes on what it had not seen for a while."""

    outputs: ClassVar[list[str]] = ["n", "digit"]
    seen = State(ttl=10)

    def process(self, tup: Tuple) -> None:
        if tup.values.digit not in self.seen:
            self.emit(tup.values)
            self.seen[tup.values.digit] = True


class Freshly(Topology):
    numbers = Source.spec(par=1)
    digits = Digits.spec(inputs={numbers: Grouping.SHUFFLE}, par=1)
    fresh = Fresh.spec(inputs={digits: Grouping.fields("digit")}, par=2)
    sink = JsonLinesSink.spec(inputs={fresh: Grouping.SHUFFLE}, par=1)


@pytest.mark.parametrize("processes", [1, 2])
def test_entries_expire_between_batches(tmp_path: Path, processes: int) -> None:
    """Whether they stayed in the process, came from the store, or belong to another task now."""
    clock = ManualClock(1000.0)
    batches = start(Freshly, tmp_path, processes, clock=clock)
    told = []
    for number, seconds in enumerate((0, 6, 3, 2, 6, 6, 6)):
        clock.advance(seconds)
        all_in(batches, number % processes)
        if number == 4:
            batches.scale("fresh", 3)
        batches.batch()
        told.append(len(numbers_in(tmp_path / "out")) // 10)
    assert told == [1, 1, 1, 2, 2, 3, 3]


# -- user code that raises ---------------------------------------------------------------------------------------------


class Moody(Source):
    def generate(self, position: int) -> tuple[int]:
        if position == 30 and RAISE:
            raise RAISE.pop()
        return super().generate(position)


class FromMoody(Topology):
    numbers = Moody.spec(par=2)
    sink = JsonLinesSink.spec(inputs={numbers: Grouping.SHUFFLE}, par=1)


def test_a_spout_that_raises(tmp_path: Path) -> None:
    """The batch ends there for it; the next one goes on at the same place."""
    batches = start(FromMoody, tmp_path)
    RAISE.append(ValueError("not now"))
    batches.batch()
    errors = [error for report in batches.batch() for error in report.errors]
    assert len(errors) == 1 and "not now" in str(errors[0])
    run_to_the_end(batches)
    assert numbers_in(tmp_path / "out") == list(range(N))


class Reluctant(Tally):
    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        if RAISE and self.task_index == 1:
            raise RAISE.pop()


class FromReluctant(Topology):
    numbers = Source.spec(par=2)
    digits = Digits.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    tally = Reluctant.spec(inputs={digits: Grouping.fields("digit")}, par=3)
    sink = JsonLinesSink.spec(inputs={tally: Grouping.LOCAL_OR_SHUFFLE}, par=3)


@pytest.mark.parametrize("batch", [0, 2])
def test_an_initialize_that_raises_fails_the_attempt(tmp_path: Path, batch: int) -> None:
    batches = start(FromReluctant, tmp_path)
    for _ in range(batch):
        batches.batch()
    batches.kill(0)
    RAISE.append(ValueError("not yet"))
    with pytest.raises(Exception, match="not yet"):
        batches.batch()
    run_to_the_end(batches)
    check_tally(batches, tmp_path / "out")

"""Tuples that are larger than a frame: dead letters that fit, with the beginning of the values and their sizes."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import DEAD_LETTERS, Tuple
from millrace.config import FRAME_LIMIT
from millrace.connectors.sinks import JsonLinesSink
from millrace.model.graph import batched, graph_of
from millrace.runtime.tasks.dead_letters import shortened
from millrace.runtime.wire.bodies import encode_extended, encode_rows
from millrace.testing.local_batches import LocalBatches
from millrace.testing.local_cluster import LocalCluster
from support.cluster.batch_parts import Source, run_to_the_end
from support.cluster.cluster_runs import drain, errors, meter
from support.cluster.plain_parts import Numbers, Reliable, Sink
from support.cluster.records import SEEN
from support.cluster.refusing_parts import Refusal

LIMIT = 4096
N = 40
LARGE = {7, 8, 23}
SETTINGS = {FRAME_LIMIT.key: LIMIT}


def text_of(n: int) -> str:
    return f"{n} " + ("é" * LIMIT if n in LARGE else "small")


class Swells(Bolt):
    """Emits a text for each number; some texts are larger than a frame."""

    outputs = ["n", "text"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values.n, text_of(tup.values.n)])


class SwellsArrow(Bolt):
    outputs = ["n", "text"]

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        numbers = batch.column("n")
        self.emit_arrow(pa.record_batch([numbers, pa.array(list(map(text_of, numbers.to_pylist())))], names=["n", "text"]))


class SwellingSpout(Reliable):
    outputs = ["n", "text"]

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.next += 1
            self.emit([self.next - 1, text_of(self.next - 1)], tup_id=self.next - 1)


class RefusesLarge(Bolt):
    """Raises for large numbers, with an error that quotes the text."""

    outputs = ["n", "text"]

    def process(self, tup: Tuple) -> None:
        if tup.values.n in LARGE:
            raise Refusal(tup.values.text)
        self.emit(list(tup.values))


class WritesLetters(Bolt):
    """Emits its own dead letters for large numbers."""

    outputs = ["n", "text"]

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        if n in LARGE:
            self.emit([self.component_name, self.task_index, "default", [n, text_of(n)], text_of(n)], stream=DEAD_LETTERS)
        else:
            self.emit([n, text_of(n)])


def decimals_of(n: int) -> list[Decimal]:
    """Decimals that fit into a frame as text, but not as the extensions that are sent."""
    return [Decimal(n) + Decimal("0.5")] * (LIMIT // 6 if n in LARGE else 1)


class WritesDecimalLetters(Bolt):
    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        if n in LARGE:
            self.emit([self.component_name, self.task_index, "default", [n, *decimals_of(n)], "refused"], stream=DEAD_LETTERS)
        else:
            self.emit([n])


class RefusesDecimals(Bolt):
    """Raises for large numbers, with many decimals in the tuple."""

    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        if tup.values.n in LARGE:
            raise Refusal("many decimals")
        self.emit([tup.values.n])


class Decimals(Bolt):
    outputs = ["n", "decimals"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values.n, decimals_of(tup.values.n)])


def remote(spout: Any, bolt: type[Bolt]) -> type[Topology]:
    """A topology whose bolt sends everything to every task, so that some of it leaves the worker."""

    class Remote(Topology):
        source = spout.spec()
        middle = bolt.spec(inputs=[source])
        sink = Sink.spec(inputs={middle: Grouping.ALL}, par=2)
        letters = Sink.spec(inputs={middle.dead_letters: Grouping.ALL}, par=2)

    return Remote


def check_letter(letter: tuple[Any, ...]) -> int:
    """Check a dead letter of two values; returns the number in it."""
    component, _, stream, (n, text), _ = letter
    assert component == "middle" and stream == "default"
    assert len(encode_rows([letter])) <= LIMIT
    assert text.startswith(text_of(n)[:20]) and text.endswith(f"... ({len(encode_rows([text_of(n)])) - 1} bytes)")
    return int(n)


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once", "at-most-once"])
@pytest.mark.parametrize("bolt", [Swells, SwellsArrow])
def test_a_bolt_that_emits_one(bolt: type[Bolt], guarantee: str) -> None:
    cluster = LocalCluster(3, settings=SETTINGS)
    cluster.submit(remote(Numbers, bolt), config={"limit": N, "burst": 10, "topology.guarantee": guarantee,
                                                  "topology.chunk.tuples": 10})
    cluster.run(2.0)
    assert meter(cluster, "middle", "errors") >= len(LARGE)
    drain(cluster, "remote")
    assert {n for n, text in SEEN["sink"] if text == text_of(n)} >= set(range(N)) - LARGE
    assert {check_letter(letter) for letter in SEEN["letters"]} == LARGE
    assert len(SEEN["sink"]) + len(SEEN["letters"]) // 2 == 2 * N, "each copy arrives, or is a dead letter for both tasks"


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_tuple_whose_dead_letter_is_too_large(guarantee: str) -> None:
    """The tuple arrives, by reference or in a frame, and fails: its letter is larger."""
    cluster = LocalCluster(1, settings=SETTINGS)

    class Large(Topology):
        source = Numbers.spec()
        first = Swells.spec(inputs=[source])
        middle = RefusesLarge.spec(inputs=[first])
        sink = Sink.spec(inputs=[middle])
        letters = Sink.spec(inputs=[middle.dead_letters])

    cluster.submit(Large, config={"limit": N, "topology.guarantee": guarantee})
    cluster.run(2.0)
    drain(cluster, "large")
    assert {n for n, _ in SEEN["sink"]} == set(range(N)) - LARGE
    assert sorted(map(check_letter, SEEN["letters"])) == sorted(LARGE)
    assert all(error.startswith("Refusal: ") for *_, error in SEEN["letters"])


def test_a_letter_that_a_bolt_writes_itself() -> None:
    cluster = LocalCluster(3, settings=SETTINGS)
    cluster.submit(remote(Reliable, WritesLetters), config={"limit": N})
    cluster.run(2.0)
    drain(cluster, "remote")
    assert {n for n, _ in SEEN["sink"]} == set(range(N)) - LARGE
    assert {letter[3][0] for letter in SEEN["letters"]} == LARGE
    assert any(letter[3][1].endswith(" bytes)") and len(encode_rows([letter])) <= LIMIT for letter in SEEN["letters"])


def check_decimals(letters: list[tuple[Any, ...]]) -> None:
    """Each large number has a letter, which a frame can hold."""
    assert all(len(encode_extended([letter])) <= LIMIT for letter in letters)
    assert {int(re.findall(r"\d+", str(letter[3]))[0]) for letter in letters} == LARGE


def test_a_letter_of_many_decimals_that_a_bolt_writes_itself() -> None:
    cluster = LocalCluster(3, settings=SETTINGS)
    cluster.submit(remote(Reliable, WritesDecimalLetters), config={"limit": N})
    cluster.run(2.0)
    drain(cluster, "remote")
    sent = [letter for letter in SEEN["letters"] if len(encode_extended([letter])) <= LIMIT]  # others are in the same worker
    check_decimals(sent)


def test_a_tuple_of_many_decimals_whose_dead_letter_is_too_large() -> None:
    class Large(Topology):
        source = Numbers.spec()
        first = Decimals.spec(inputs=[source])
        middle = RefusesDecimals.spec(inputs=[first])
        sink = Sink.spec(inputs=[middle])
        letters = Sink.spec(inputs=[middle.dead_letters])

    cluster = LocalCluster(1, settings=SETTINGS)
    cluster.submit(Large, config={"limit": N, "topology.guarantee": "at-least-once"})
    cluster.run(2.0)
    drain(cluster, "large")
    assert set(SEEN["sink"]) == set(range(N)) - LARGE
    check_decimals(SEEN["letters"])


def test_a_spout_that_emits_one_reports_it() -> None:
    class FromSpout(Topology):
        source = SwellingSpout.spec()
        sink = Sink.spec(inputs={source: Grouping.ALL}, par=3)

    cluster = LocalCluster(3, settings=SETTINGS)
    cluster.submit(FromSpout, config={"limit": N, "topology.chunk.tuples": 10})
    cluster.run_until(lambda: len(errors(cluster)) > 0)
    entry = next(entry for worker in cluster.workers.values() for entry in worker.errors)
    assert "emitted a chunk of 1 tuples and " in entry["error"] and "the limit is 4096 bytes" in entry["error"]
    assert entry["tuple"].startswith("source/default (") and len(entry["tuple"]) < 400
    cluster.run(1.0)
    assert meter(cluster, "source", "dead_letters") == 2 * len(LARGE), "for the two tasks in other workers"
    assert {n for n, _ in SEEN["sink"]} == set(range(N))
    drain(cluster, "fromspout")


def test_in_batches_it_is_a_dead_letter(tmp_path: Path) -> None:
    class Swollen(Topology):
        numbers = Source.spec(par=2)
        middle = Swells.spec(inputs=[numbers], par=2)
        sink = JsonLinesSink.spec(inputs={middle: Grouping.fields("n")}, par=2)
        letters = Sink.spec(inputs=[middle.dead_letters])

    graph = batched(graph_of(Swollen, config={"path": str(tmp_path / "out"), "limit": N}))
    batches = LocalBatches(graph, str(tmp_path / "store"))
    batches.setup.settings[FRAME_LIMIT.key] = LIMIT
    run_to_the_end(batches)
    written = sum(len(path.read_text().splitlines()) for path in (tmp_path / "out").glob("part-*.jsonl"))
    assert written == N - len(LARGE)
    assert sorted(map(check_letter, SEEN["letters"])) == sorted(LARGE)


@pytest.mark.parametrize("values", [
    ["x" * 10_000, 1, None], [b"\x00" * 10_000], [list(range(10_000))], [10**5000], ["é" * 9000] * 5, list(range(2000)),
    [{"a": "b" * 9000}, "small"]], ids=lambda values: f"{len(values)} values")
@pytest.mark.parametrize("room", [1024, 16 * 2**20])
def test_shortened_values_fit(values: list[Any], room: int) -> None:
    short = shortened(values, room)
    assert len(encode_rows(short)) <= room
    assert (short == values) == (room > 2**20)

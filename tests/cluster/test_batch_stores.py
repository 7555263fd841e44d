"""Batches without Spark, when their state has to come from somewhere: a store that lost blobs, fragments in other processes."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import ClassVar

import pytest
from batch_parts import N, Source, Tallied, Tally, all_in, check_tally, counters, counts_of, numbers_in, run_to_the_end, start

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.sinks import JsonLinesSink
from millrace.errors import CheckpointMissing
from millrace.state.checkpoint import manifest_names
from millrace.state.fragments import HeldBlob
from millrace.testing.local_batches import LocalBatches

# ---- a store that loses something ----


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


# ---- fragments ----


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
        told: Future[list[HeldBlob]] = Future()
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

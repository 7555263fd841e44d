"""Batches without Spark whose state must be restored: from a store that lost blobs, from fragments in other processes."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.sinks import JsonLinesSink
from millrace.control.batches.decisions import LACKING
from millrace.errors import CheckpointMissing
from millrace.state.checkpoint import manifest_names
from millrace.state.fragments import HeldBlob
from millrace.testing.local_batches import LocalBatches
from support.cluster.batch_parts import (
    N,
    Source,
    Tallied,
    Tally,
    all_in,
    check_tally,
    counters,
    counts_of,
    numbers_in,
    run_to_the_end,
    start,
)

# ---- a store that loses something ----


def lose_blobs(batches: LocalBatches) -> None:
    """Delete everything but the manifests."""
    store = batches.checkpoints.store
    names = store.names("")
    store.delete(set(names).difference(manifest_names(names)))


class Spans(Bolt):
    """Gives consecutive numbers the same key, so that most keys no longer change."""

    outputs: ClassVar[list[str]] = ["n", "digit"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values.n, tup.values.n // self.storm_conf["span"]])


class TalliedSpans(Topology):
    numbers = Source.spec(par=2)
    spans = Spans.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    tally = Tally.spec(inputs={spans: Grouping.fields("digit")}, par=3)
    sink = JsonLinesSink.spec(inputs={tally: Grouping.SHUFFLE}, par=2)


def three_batches(tmp_path: Path, span: int, **more: Any) -> LocalBatches:
    """A topology that has processed 120 numbers."""
    batches = start(TalliedSpans, tmp_path, config={"span": span}, **more)
    for _ in range(3):
        batches.batch()
    return batches


def check_spans(batches: LocalBatches, out: Path, span: int, numbers: int = N) -> None:
    assert numbers_in(out) == list(range(numbers))
    assert counts_of(batches) == Counter(n // span for n in range(numbers))


@pytest.mark.parametrize("span", [7, 12])
def test_resident_state_is_written_again(tmp_path: Path, span: int) -> None:
    batches = three_batches(tmp_path, span)
    lose_blobs(batches)
    batches.batch()
    check_spans(batches, tmp_path / "out", span, 160)
    batches.kill(0)
    run_to_the_end(batches)
    check_spans(batches, tmp_path / "out", span)


def test_a_manifest_whose_blobs_are_gone_is_not_committed(tmp_path: Path) -> None:
    """Nothing could be repaired: the attempt fails. No key that had a value has changed, so the next attempt writes all state
    whole."""
    batches = three_batches(tmp_path, 12, repair_rounds=0)
    lose_blobs(batches)
    with pytest.raises(CheckpointMissing):
        batches.batch()
    assert batches.committed is not None and batches.committed.wave == 3
    batches.batch()
    batches.kill(0)
    run_to_the_end(batches)
    check_spans(batches, tmp_path / "out", 12)


def test_state_that_neither_the_store_nor_a_process_has_must_be_restored(tmp_path: Path) -> None:
    """The failed attempt has added to a key, and that cannot be undone. Batches continue once the blobs are back."""
    batches = three_batches(tmp_path, 7, repair_rounds=0)
    shutil.copytree(tmp_path / "store", tmp_path / "saved")
    lose_blobs(batches)
    for _ in range(LACKING - 1):
        with pytest.raises(CheckpointMissing):
            batches.batch()
    shutil.copytree(tmp_path / "saved", tmp_path / "store", dirs_exist_ok=True)
    run_to_the_end(batches)
    check_spans(batches, tmp_path / "out", 7)


def test_state_counts_as_lost_after_several_attempts_have_missed_it(tmp_path: Path) -> None:
    batches = three_batches(tmp_path, 7)
    lose_blobs(batches)
    batches.kill(0)
    for _ in range(LACKING - 1):
        with pytest.raises(CheckpointMissing, match="tally"):
            batches.batch()
    with pytest.raises(CheckpointMissing, match=r"the state of tally\[.* as of wave 3 is lost: no process .* store has lost"):
        batches.batch()


# ---- fragments ----


@pytest.fixture
def short_paths(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A short directory for sockets: their paths are limited."""
    with tempfile.TemporaryDirectory(prefix="hold") as directory:
        monkeypatch.setenv("TMPDIR", directory)
        yield


def wait_for_fragments(batches: LocalBatches, process: int) -> None:
    """Wait until the process holds fragments of all tasks of others; they are sent in the background."""
    host, manifest = batches.processes[process], batches.committed
    assert host is not None and host.holding is not None and manifest is not None
    wanted = {piece.blob for record in manifest.records if batches.place(record.task) != process for piece in record.pieces()}
    deadline = time.monotonic() + 20
    while True:
        listing: Future[list[HeldBlob]] = Future()
        host.holding.exchange.listing(listing.set_result)
        missing = wanted - {held.blob for held in listing.result(20)}
        if not missing:
            return
        assert time.monotonic() < deadline, f"not sent: {missing}"


@pytest.mark.usefixtures("short_paths")
def test_a_process_that_takes_over_gets_state_from_fragments(tmp_path: Path) -> None:
    """The fragments are in its own memory or another's; the store has lost the state."""
    with contextlib.closing(start(Tallied, tmp_path, processes=2, holds=True)) as batches:
        batches.choose = lambda task: batches.place(task)
        for _ in range(3):  # in the first batch the processes do not know each other yet
            batches.batch()
        wait_for_fragments(batches, 1)
        batches.kill(0)
        lose_blobs(batches)
        all_in(batches, 1)
        total = counters(batches)
        assert total["blobs_from_fragments"] and not total["blobs_from_store"]
        assert (total["restored"], total["resident"]) == (2, 1), "tally[0] and tally[2] were in the killed process"
        batches.choose = lambda task: batches.place(task)
        wait_for_fragments(batches, 1)
        total = counters(batches)
        assert total["blobs_from_fragments"] and not total["blobs_from_store"], "a new process knows the holders"
        run_to_the_end(batches)
        check_tally(batches, tmp_path / "out")

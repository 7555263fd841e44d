"""Spark's offsets of a committed batch that are lost or changed between two runs, as by a power cut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.control.submission import Resume
from millrace.control.topology_status import ENDED
from millrace.errors import CorruptCheckpoint
from millrace.model.graph import batched, graph_of
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.spark.microbatch import MicrobatchEngine
from millrace.spark.running_topology import RunningTopology
from millrace.state.checkpoint import base_wave
from support.suites.kept_state import state_of
from support.topologies.dataframe_parts import SOURCE, TARGET, DataFrameCount
from support.topologies.text_files import TextFiles

SECONDS = 120.0


class Runs:
    """Runs of one topology on one engine, and the files that it reads."""

    def __init__(self, engine: MicrobatchEngine, directory: Path) -> None:
        self.engine, self.store, self.files = engine, directory / "store", TextFiles(directory / "source")
        self.before = 0  # lines counted by earlier runs

    def start(self, resume: Resume) -> RunningTopology:
        return self.engine.submit(DataFrameCount, "lost", resume=resume)

    def finish(self, running: RunningTopology) -> None:
        """Wait until all files are counted, then stop."""
        assert self.engine.master.wait_until(lambda: self._lines() >= self.files.lines, SECONDS), self.events()
        running.kill(wait=SECONDS)
        assert running.wait(SECONDS)

    def _lines(self) -> int:
        log = self.engine.master.batch_logs.get("lost")
        return sum(record.tuples_in for record in log.records) + self.before if log is not None else 0

    def events(self) -> list[str]:
        return [event["text"] for event in list(self.engine.master.events)]

    def counts(self) -> dict[str, int]:
        graph = batched(graph_of(DataFrameCount, "lost"))
        return dict(state_of(open_store(str(self.store)), graph)["count"]["counts"])

    def last_batch(self) -> tuple[Path, int]:
        """Spark's directory of the run, and the last committed batch."""
        manifest = Checkpoints(open_store(str(self.store)), "lost").latest()
        assert manifest is not None and manifest.offsets_digest
        return self.store / ".spark" / "lost" / manifest.offsets, manifest.wave - base_wave(manifest.offsets) - 1

    def lose(self, *names: str) -> None:
        """Delete files below Spark's directory, with their checksums. Spark may have been stopped before it wrote `commits`."""
        place, batch = self.last_batch()
        for name in names:
            path = place / name.format(batch=batch)
            path.unlink(missing_ok=name.startswith("commits"))
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    monkeypatch.setenv(SOURCE, str(tmp_path / "source"))
    monkeypatch.setenv(TARGET, str(tmp_path / "target"))
    with MicrobatchEngine("local[2]", name=f"lost-{os.getpid()}", code=["support"],
                          settings={"checkpoint.store": str(tmp_path / "store"), "history.url": "none"}) as engine:
        yield Runs(engine, tmp_path)


def test_a_committed_batch_comes_back_as_it_was_or_is_refused(runs: Runs) -> None:
    """The same topology goes through all cases, because a Spark session takes long to start."""
    runs.files.write(3)
    runs.finish(runs.start(resume="auto"))  # nothing to resume
    check_the_same_batch_again(runs)
    check_changed_offsets(runs)
    check_a_larger_batch(runs)


def check_the_same_batch_again(runs: Runs) -> None:
    """Spark plans the lost batch with the same files: it is done, and what comes later is counted once."""
    place, batch = runs.last_batch()
    entry = max(int(path.name) for path in (place / "sources" / "0").iterdir() if path.name.isdigit())
    runs.lose("offsets/{batch}", "commits/{batch}", f"sources/0/{entry}")
    runs.before = runs.files.lines
    running = runs.start(resume="auto")
    done = place / "commits" / str(batch)
    assert runs.engine.master.wait_until(lambda: done.exists() or running.status == ENDED, SECONDS)
    assert done.exists(), runs.events()
    runs.files.write(1)
    runs.finish(running)
    assert runs.counts() == runs.files.counts


def check_changed_offsets(runs: Runs) -> None:
    """Spark does not offer the batch again, but would continue from the changed offsets."""
    place, batch = runs.last_batch()
    notes = place / "offsets" / str(batch)
    checksum, content = notes.with_name(f".{batch}.crc"), notes.read_text()
    kept = checksum.read_bytes()
    checksum.unlink()
    notes.write_text(content.replace('"logOffset":', '"logOffset":1'))
    with pytest.raises(CorruptCheckpoint, match=rf"batch {batch} of 'lost' is committed, but Spark's offsets of it are not"):
        runs.start(resume=True)
    notes.write_text(content)
    checksum.write_bytes(kept)


def check_a_larger_batch(runs: Runs) -> None:
    """More files have arrived since: taken for done, the batch would swallow them."""
    batch = runs.last_batch()[1]
    runs.lose("offsets/{batch}", "commits/{batch}")
    counts = dict(runs.files.counts)
    runs.files.write(1)
    running = runs.start(resume=True)
    assert runs.engine.master.wait_until(lambda: running.status == ENDED, SECONDS), runs.events()
    [refusal] = [text for text in runs.events() if "were lost or changed" in text]
    assert f"batch {batch} of 'lost' is committed, but Spark's offsets of it are not those" in refusal, refusal
    assert runs.counts() == counts and runs.last_batch()[1] == batch

"""A world in which the decisions about batches are carried out, without a store or processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from millrace.api.grouping import Grouping
from millrace.control.batches.actions import Attempted, run_steps
from millrace.control.batches.decisions import FIRST_PAUSE, LAST_PAUSE, Batches, start_from
from millrace.control.batches.steps import (
    Announce,
    BatchDone,
    BatchStep,
    Collect,
    CommitPoint,
    CommitSinks,
    FindLost,
    Life,
    ReplaceManifest,
    Rest,
    Rewrite,
    RunAttempt,
    WriteRows,
)
from millrace.errors import CheckpointMissing
from millrace.model.graph import ComponentDef, Input, StreamDef, TopologyGraph
from millrace.state.checkpoint import Manifest, PieceRef, TaskRecord, blob_name, manifest_name

KEEP = 2
OK, FAILS, MISSES = "ok", "fails", "misses"  # outcomes of a step


def graph_with(sinks: int = 2) -> TopologyGraph:
    """numbers[0] → count[0] → sink[0..]; count keeps state, sinks commit."""
    stream = StreamDef("default", ("n",))
    numbers = ComponentDef("numbers", "spout", "parts:numbers", 1, {}, (stream,), (), False, "next_tuple")
    count = ComponentDef("count", "bolt", "parts:count", 1, {}, (stream,), (Input("numbers", "default", Grouping.fields("n")),),
                         False, "process", stateful=True)
    sink = ComponentDef("sink", "bolt", "parts:sink", sinks, {}, (stream,), (Input("count", "default", Grouping.SHUFFLE),),
                        False, "process", commits=True)
    return TopologyGraph("words", (numbers, count, sink) if sinks else (numbers, count), {})


class StepFails(Exception):
    """The world's transport error."""


class World:
    """The actions of a driver on a store that is two sets of names. `outcomes` says how each step that can fail ends, except
    waiting for a plan, which `plans` does; when they are exhausted all succeed. The rules that must always hold are checked at
    each step."""

    transport_errors: tuple[type[Exception], ...] = (StepFails,)

    def __init__(self, writes_rows: bool = False, graph: TopologyGraph | None = None) -> None:
        self.graph, self.writes_rows = graph or graph_with(), writes_rows
        self.blobs: set[str] = set()
        self.manifests: dict[str, Manifest] = {}
        self.published: list[int] = []  # waves, as sinks made them visible
        self.written: list[int] = []  # waves whose rows the driver wrote
        self.committed: list[int] = []
        self.announced: list[Manifest] = []
        self.steps: list[BatchStep] = []
        self.version = 1
        self.ran_by: list[int] = []  # versions of the plan by which attempts ran
        self.keeps_state = True  # processes still have what the last attempt left
        self.answers_rewrites = True
        self.outcomes: Iterator[str] = iter(())
        self.plans: Iterator[str] = iter(())
        self.moves: Iterator[bool] = iter(())  # for each attempt: a new plan arrives just before it
        self._ending, self._life, self._number = Life.RUNNING, Life.RUNNING, 0
        self._ends_at: int | None = None
        self.epochs = itertools.count(1)
        self.decider = self._started(None)

    def _started(self, checkpoint: Manifest | None) -> Batches:
        start = start_from(checkpoint, next(self.epochs))
        if start.committed is not None:
            self._enter(start.committed)
        return Batches(self.graph, start, lambda: next(self.epochs), keep=KEEP, writes_rows=self.writes_rows)

    def newest(self) -> Manifest | None:
        return self.manifests[max(self.manifests)] if self.manifests else None

    def resume(self) -> None:
        """The driver died, and its processes with it."""
        self.keeps_state = False
        self.decider = self._started(self.newest())

    def offer(self, batch: int | None = None, life: Life = Life.RUNNING, ends_at: int | None = None,
              digest: str = "") -> BatchStep:
        """Offer the next batch and carry out its steps up to the end. `life`: that of the topology as of the step of that
        number; without one, as of the first step that fails."""
        decider = self.decider
        if batch is None:
            batch = decider.batch_of((decider.committed.wave if decider.committed is not None else decider.base) + 1)
        self._ending, self._ends_at, self._number, self._life = life, ends_at, 0, Life.RUNNING
        end = run_steps(decider.offered(batch, digest), decider, self)
        self.steps.append(end)
        return end

    def entering(self, step: BatchStep) -> None:
        known = self._life
        self._life = self._ending if self._ends_at is not None and self._number >= self._ends_at else Life.RUNNING
        self._number += 1
        assert self._number < 1000, "the batch does not end"
        self._check(step)
        assert not (isinstance(step, RunAttempt) and known is not Life.RUNNING), "an attempt begins after the kill"
        self.steps.append(step)

    def _check(self, step: BatchStep) -> None:
        newest = self.newest()
        match step:
            case CommitSinks() | WriteRows():
                assert newest is not None and newest.wave == self.decider.restore[0], "published before its manifest"
            case Collect() if step.names is not None:
                assert newest is not None and not set(step.names) & newest.blobs(), "a needed blob is collected"
                assert max(self.manifests) not in step.names, "the committed manifest is collected"
        if isinstance(step, RunAttempt | CommitSinks | Rewrite):
            earlier = [old.epoch for old in self.steps if isinstance(old, RunAttempt | CommitSinks | Rewrite)]
            assert step.epoch > max(earlier, default=0), "epochs do not rise"

    def rest(self, step: Rest) -> None:
        self.entering(step)
        assert FIRST_PAUSE <= step.seconds <= LAST_PAUSE and step.failed

    def life(self) -> Life:
        return self._life

    def note_failure(self, error: Exception) -> Life:
        return self._ending if self._ends_at is None else self._life

    def _fail_if_told(self, outcomes: Iterator[str]) -> None:
        outcome = next(outcomes, OK)
        if outcome != OK:
            raise CheckpointMissing("a blob") if outcome == MISSES else StepFails

    def await_plan(self) -> int:
        self._fail_if_told(self.plans)
        return self.version

    def run_attempt(self, step: RunAttempt) -> Attempted | None:
        if next(self.moves, False):
            self.version += 1
        if step.version != self.version:
            return None
        self._fail_if_told(self.outcomes)
        self.keeps_state = True
        self.ran_by.append(step.version)
        return Attempted(self.graph, [self._record(step)], 0.0)

    def commit(self, step: CommitPoint) -> None:
        self._fail_if_told(self.outcomes)
        if step.manifest.blobs() - self.blobs:
            raise CheckpointMissing("a blob of the manifest")
        self._enter(step.manifest)
        self.committed.append(step.manifest.wave)

    def replace_manifest(self, step: ReplaceManifest) -> None:
        self._fail_if_told(self.outcomes)
        self._enter(step.manifest)

    def announce(self, step: Announce) -> None:
        self.announced.append(step.manifest)

    def find_lost(self, step: FindLost) -> set[str]:
        self._fail_if_told(self.outcomes)
        return step.manifest.blobs() - self.blobs

    def rewrite(self, step: Rewrite) -> list[TaskRecord]:
        self._fail_if_told(self.outcomes)
        return [self._rewritten(step)] if self.keeps_state and self.answers_rewrites else []

    def commit_sinks(self, step: CommitSinks) -> None:
        self._fail_if_told(self.outcomes)
        self.published.append(self.decider.restore[0])

    def write_rows(self, step: WriteRows) -> None:
        self._fail_if_told(self.outcomes)
        self.written.append(step.manifest.wave)

    def _enter(self, manifest: Manifest) -> None:
        self.manifests[manifest_name("words", manifest.epoch, manifest.wave)] = manifest

    def _piece(self, epoch: int, wave: int, whole: bool) -> PieceRef:
        blob = blob_name("words", "count", 0, epoch, wave)
        self.blobs.add(blob)
        return PieceRef(blob, 0, 1, 0, whole)

    def _record(self, step: RunAttempt) -> TaskRecord:
        """Every third wave is whole, as is the first; the others are deltas upon it."""
        done = self.decider.committed
        before = done.chains("count").get(0, []) if done is not None else []
        whole = step.whole or not before or step.wave % 3 == 0
        piece = self._piece(step.epoch, step.wave, whole)
        return TaskRecord("count", 0, {0: [piece] if whole else [*before, piece]})

    def _rewritten(self, step: Rewrite) -> TaskRecord:
        [record] = step.records
        return msgspec.structs.replace(record, chains={0: [self._piece(step.epoch, step.manifest.wave, True)]})

    def collect(self, step: Collect) -> None:
        if step.names is None:
            kept = sorted(self.manifests)[-KEEP:]
            self.manifests = {name: self.manifests[name] for name in kept}
            self.blobs &= set().union(*(manifest.blobs() for manifest in self.manifests.values()))
        for name in step.names or ():
            self.manifests.pop(name, None)
            self.blobs.discard(name)

    def kinds(self) -> list[type]:
        return [type(step) for step in self.steps]


def after(batches: int, **more: Any) -> World:
    """A world in which so many batches are done; what was recorded of them is cleared."""
    world = World(**more)
    for _ in range(batches):
        assert world.offer() == BatchDone(ran=True)
    world.steps.clear()
    return world

"""`millrace bench guard`: the cost of a tuple in this process, step by step and in all, compared with the figures kept in the
repository.

What is counted are instructions, so a busy machine makes no difference; a child process with a fixed hash seed counts them.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from millrace.api.grouping import stable_hash
from millrace.api.keyed.declared import CounterState
from millrace.api.keyed.keys import KeyPlaces
from millrace.api.keyed.plain import KeyedState
from millrace.bench.instructions import INSTRUCTIONS, WorkMeter
from millrace.checkout import project_root
from millrace.config import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, GUARANTEE
from millrace.control.ledger import Ledger
from millrace.errors import MillraceError
from millrace.hotpath.plain import BOLT
from millrace.hotpath.steps import COMPILED, fast_emit, tuples_of
from millrace.model.graph import StreamDef, TaskId
from millrace.runtime.flow.routing import ByFields
from millrace.runtime.tasks.output import Output
from millrace.runtime.wire.bodies import encode_rows, row_decoder
from millrace.testing.local_cluster import LocalCluster
from millrace.workloads.wordcount import WORDS_PER_LINE, TallyArrowCount, WordCount, table_words

KEPT = Path("docs") / "guard.json"
ROWS = 20_000
LINES = 20_000
REPEATS = 3
TOLERANCE = {INSTRUCTIONS: 0.05}  # share above the kept figure; of CPU time, much more is noise
NOISY = 0.4
GuardStep = Callable[[int], Callable[[], Any]]  # a number of tuples -> the work for them


# -- steps -------------------------------------------------------------------------------------------------------------

def _rows(count: int) -> list[tuple[Any, ...]]:
    words = [word for line in table_words() for word in line]
    return [(words[number % len(words)], number) for number in range(count)]


def _emit(count: int) -> Callable[[], Any]:
    output = Output(TaskId("words", 0), 0, StreamDef("default", ("word", "count")))
    emit, rows = fast_emit(output, lambda *_: None, BOLT, track=False), _rows(count)

    def work() -> None:
        for row in rows:
            emit(row)
        output.take()

    return work


def _route(count: int) -> Callable[[], Any]:
    channels: list[Any] = [object(), object()]
    route, rows = ByFields(channels, [0], [group % 2 for group in range(128)]), _rows(count)
    return lambda: route.split(rows)


def _encode(count: int) -> Callable[[], Any]:
    rows = _rows(count)
    return lambda: encode_rows(rows)


def _decode(count: int) -> Callable[[], Any]:
    body, decoder = encode_rows(_rows(count)), row_decoder(tuple)
    return lambda: decoder.decode(body)


def _tuples(count: int) -> Callable[[], Any]:
    rows: list[Any] = _rows(count)
    delivery: Any = object()
    return lambda: list(tuples_of(rows, delivery))


def _count(count: int) -> Callable[[], Any]:
    rows, places = _rows(count), KeyPlaces(stable_hash, range(128), 128, "count[0]")

    def work() -> None:
        counts = KeyedState(CounterState(), places)
        for word, _ in rows:
            counts[word] = counts[word] + 1

    return work


def _ledger(count: int) -> Callable[[], Any]:
    def work() -> None:
        ledger = Ledger()
        for root in range(count):
            ledger.open(root, root ^ 1, (0, 0, 1))
            ledger.ack(root, root ^ 1)

    return work


def _word_count(topology: Any, guarantee: str) -> GuardStep:
    """All steps together, over two workers: nothing but sockets, threads and the network is missing."""
    def step(words: int) -> Callable[[], Any]:
        cluster, lines = LocalCluster(workers=2), words // WORDS_PER_LINE

        def executed() -> int:
            return sum(task.meters.executed for task in cluster.tasks("count"))

        cluster.submit(topology, config={"limit": lines, GUARANTEE.key: guarantee})
        total = 2 * lines * WORDS_PER_LINE  # of two spouts, each with its limit
        return lambda: cluster.run_until(lambda: executed() >= total // 2)

    return step


STEPS: dict[str, tuple[GuardStep, int]] = {
    "emit": (_emit, ROWS), "route by key": (_route, ROWS), "encode rows": (_encode, ROWS), "decode rows": (_decode, ROWS),
    "make tuples": (_tuples, ROWS), "count by key": (_count, ROWS), "ledger, per root": (_ledger, ROWS),
    **{f"word count, {guarantee}": (_word_count(WordCount, guarantee), LINES * WORDS_PER_LINE)
       for guarantee in (AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE)},
    f"word count in Arrow batches, {AT_MOST_ONCE}": (_word_count(TallyArrowCount, AT_MOST_ONCE), LINES * WORDS_PER_LINE),
}


def measure(share: float = 1.0) -> dict[str, Any]:
    """The work per tuple of each step, the least of some runs, in this process. `share`: of the tuples."""
    gc.collect()
    with WorkMeter() as meter:
        steps = {name: _least(step, max(100, int(count * share)), meter) for name, (step, count) in STEPS.items()}
        return {"unit": meter.unit, "python": platform.python_version(), "machine": platform.machine(),
                "compiled": COMPILED, "steps": steps}


def _least(step: GuardStep, count: int, meter: WorkMeter) -> float:
    costs = []
    for _ in range(REPEATS):
        work = step(count)
        before = meter.read()
        work()
        costs.append((meter.read() - before) / count)
    return round(min(costs), 1)


# -- the comparison ----------------------------------------------------------------------------------------------------

SAME = ("unit", "machine", "compiled")  # figures of runs that differ in one of these say nothing about each other
KeptFigures = Sequence[Mapping[str, Any]]


def compared(result: Mapping[str, Any], kept: KeptFigures) -> dict[str, Any]:
    """Each step beside its kept figure, and those that cost more than is tolerated. `not_comparable`: why the kept figures say
    nothing about this run; empty if they do."""
    of_like = next((each for each in kept if _alike(each, result)), None)
    before = of_like["steps"] if of_like is not None else {}
    limit = 1 + TOLERANCE.get(result["unit"], NOISY)
    steps = [{"step": name, "per_tuple": cost, "kept": before.get(name), "ratio": _ratio(cost, before.get(name))}
             for name, cost in result["steps"].items()]
    slower = [row["step"] for row in steps if row["ratio"] is not None and row["ratio"] > limit]
    return {**{key: result[key] for key in ("unit", "python", "machine", "compiled")}, "steps": steps, "slower": slower,
            "not_comparable": "" if of_like is not None else f"{KEPT} has no figures for {_described(result)}"}


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return _release(one) == _release(other) and all(one[key] == other[key] for key in SAME)


def _release(result: Mapping[str, Any]) -> str:
    return ".".join(result["python"].split(".")[:2])


def _described(result: Mapping[str, Any]) -> str:
    path = "the compiled hot path" if result["compiled"] else "the hot path in Python"
    return f"{result['unit']} of {path} with Python {_release(result)} on {result['machine']}"


def replaced(kept: KeptFigures, result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The kept figures with those of this run in place of those that it is compared with."""
    return [*(each for each in kept if not _alike(each, result)), result]


def _ratio(cost: float, before: float | None) -> float | None:
    return round(cost / before, 3) if before else None


def run_guard(keep: bool, live: bool) -> dict[str, Any]:
    """Measure in a child process, and compare. `keep`: the figures become those to compare with."""
    console, path = Console(stderr=not live), project_root() / KEPT
    kept = json.loads(path.read_text()) if path.exists() else []
    done = subprocess.run([sys.executable, "-m", "millrace.bench.guard"], env={**os.environ, "PYTHONHASHSEED": "0"},
                          capture_output=True, text=True, check=False)
    if done.returncode:
        raise MillraceError(f"the measuring process failed: {done.stderr[-2000:]}")
    measured = json.loads(done.stdout)
    if keep:
        kept = replaced(kept, measured)
        path.write_text(json.dumps(kept, indent=1) + "\n")
    result = compared(measured, kept)
    table = Table("step", f"{result['unit']} per tuple", "kept", "ratio")
    for row in result["steps"]:
        table.add_row(row["step"], *("–" if row[key] is None else f"{row[key]:,}" for key in ("per_tuple", "kept", "ratio")))
    console.print(table)
    if result["not_comparable"]:
        console.print(f"not compared: {result['not_comparable']}. `millrace bench guard --keep` keeps the figures of this run")
    return result


if __name__ == "__main__":
    print(json.dumps(measure()))

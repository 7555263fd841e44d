"""`millrace demo`: counts words, kills a worker, and compares the output with the input."""

from __future__ import annotations

import io
import os
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from millrace.cli.begin import demo_master
from millrace.cli.dashboard import components_listing, event_line
from millrace.cli.figures import milliseconds
from millrace.cli.running import show_live
from millrace.errors import MillraceError
from millrace.master.load.observed import rate_between
from millrace.runtime.leftovers import UsedDirectory
from millrace.spark.engine import ResidentEngine
from millrace.spark.running_topology import RunningTopology
from millrace.spark.session import start_up
from millrace.workloads.audit import AuditedWordCount, AuditResult, audit
from millrace.workloads.wordcount import WORDS_PER_LINE

DRAIN_SECONDS = 60.0
FIRST_TUPLE_SECONDS = 30.0
PROGRESS_LINES = 10
BAR_WIDTH = 24
PICTURE_WIDTH = 88
PICTURE_TITLE = "./millrace demo"


class Screen:
    """The terminal, and a copy of the main lines on it for `--svg`."""

    def __init__(self, console: Console, picture: str | None) -> None:
        self.console, self._path = console, picture
        self._copy = Console(record=True, width=PICTURE_WIDTH, file=io.StringIO(), force_terminal=True, markup=True,
                             color_system="truecolor", highlight=False, emoji=False) if picture else None
        if picture and (Path(picture).is_dir() or not os.access(Path(picture).parent, os.W_OK)):
            raise MillraceError(f"--svg {picture}: cannot write there; name a file in a directory that you can write to")

    def print(self, line: RenderableType) -> None:
        self.console.print(line, highlight=False)
        self.keep(line)

    def keep(self, shown: RenderableType) -> None:
        """Add to the picture something that the terminal already shows."""
        if self._copy is not None:
            self._copy.print(shown)

    def save(self) -> None:
        if self._copy is not None and self._path is not None:
            svg = self._copy.export_svg(title=PICTURE_TITLE)
            # The fonts would be fetched from a server; every machine has some monospaced font.
            Path(self._path).write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S))
            self.console.print(f"saved to {self._path}", markup=False)


def run_demo(seconds: float, rate: float, workers: int, cluster: str, live: bool,
             svg: str | None = None) -> dict[str, Any]:
    """Returns the figures of `demo --json`. `svg`: a file to save the picture of the terminal to."""
    screen = Screen(Console(stderr=not live), svg)
    scratch = UsedDirectory(Path(tempfile.mkdtemp(prefix="millrace-demo-")))
    directory = str(scratch.path)
    try:
        screen.print(f"starting Spark with {workers} workers ...")
        with ResidentEngine(demo_master(workers), workers, name=cluster) as engine:
            running = engine.submit(AuditedWordCount, "wordcount", {"path": directory, "rate": rate})
            if not running.wait_running():
                raise MillraceError(f"the topology did not start; the last events are: {engine.status()['events'][-3:]}")
            start_up.reached("topology")
            engine.master.wait_until(lambda: running.observed().total("count", "executed") > 0, FIRST_TUPLE_SECONDS)
            first_tuple = start_up.reached("first tuple")
            screen.print(f"the first tuple was processed {first_tuple:.1f} s after the start")
            result = _measure(engine, running, screen, seconds, rate, live, directory)
            result |= {"first_tuple_s": first_tuple, "start_up_s": start_up.steps()}
        screen.save()
        return result
    finally:
        scratch.leave()


def _measure(engine: ResidentEngine, running: RunningTopology, screen: Screen, seconds: float, rate: float, live: bool,
             directory: str) -> dict[str, Any]:
    show = Show(engine, running, screen, seconds, rate)
    before = running.measured(lambda observed: observed.marks("count", "executed"))
    if live:
        show_live(engine, screen.console, lambda wait: running.wait(wait) or show.over())
    else:
        while not (running.wait(0.25) or show.over()):
            continue
    screen.keep(components_listing(engine.status()["topologies"][0]))
    after = running.measured(lambda observed: observed.marks("count", "executed"))
    latency = running.measured(lambda observed: observed.latency("lines", "complete_latency"))
    if not running.drain(DRAIN_SECONDS):
        raise MillraceError(f"tuples were still in flight {DRAIN_SECONDS:g} s after the spouts were stopped")
    audited = audit(directory, {task.index: position for task, position in running.positions().items()})
    running.kill(wait=0)
    result = {"tuples_in": audited.tuples_in, "tuples_out": audited.tuples_out, "lost": audited.lost,
              "repeated": audited.repeated, "wrong": audited.wrong + audited.beyond, "workers_killed": show.killed,
              "words_per_s": round(rate_between(before, after)),
              "p50_ms": latency.percentile_ms(50), "p99_ms": latency.percentile_ms(99)}
    _explain(screen, audited, result)
    return result


class Show:
    """Prints how the count rises, kills one worker with SIGKILL after a third of the time, and prints what the master does."""

    def __init__(self, engine: ResidentEngine, running: RunningTopology, screen: Screen, seconds: float, rate: float) -> None:
        self._engine, self._running, self._screen = engine, running, screen
        self._full = rate * WORDS_PER_LINE  # words per second at which the bar is full
        self._start = time.monotonic()
        self._kill_at, self._end = self._start + seconds / 3, self._start + seconds
        self._step = seconds / PROGRESS_LINES
        self._last, self._counted = self._start, 0.0
        self._last_event = 0.0  # time of the last event before the kill, or printed
        self.killed = 0

    def over(self) -> bool:
        """Called a few times a second until it returns True."""
        now = time.monotonic()
        if now - self._last >= self._step:
            self._progress(now)
        if self.killed:
            self._new_events()
        elif now >= self._kill_at:
            self._kill()
        return now >= self._end

    def _progress(self, now: float) -> None:
        counted = self._running.measured(lambda observed: observed.total("count", "executed"))
        share = (counted - self._counted) / (now - self._last) / self._full
        workers = len(self._engine.status()["workers"])
        self._screen.print(f"{now - self._start:5.1f} s {counted:11,.0f} words counted  {workers} workers  "
                           f"{'█' * min(BAR_WIDTH, round(share * BAR_WIDTH / 2))}")
        self._last, self._counted = now, counted

    def _kill(self) -> None:
        status = self._engine.status()
        victim, self._last_event = status["workers"][-1], time.time()
        os.kill(victim["pid"], signal.SIGKILL)
        self.killed += 1
        self._screen.print(f"[bold red]kill -9 {victim['pid']}[/]: worker {victim['slot']} with {len(victim['tasks'])} tasks")


    def _new_events(self) -> None:
        for event in self._engine.status()["events"]:
            if event["time"] > self._last_event:
                self._screen.print(event_line(event))
                self._last_event = event["time"]


def _explain(screen: Screen, audited: AuditResult, result: dict[str, Any]) -> None:
    screen.print("")
    screen.print(f"{audited.tuples_in:,} words went in. Every one of them was looked up in the output: "
                 f"[bold green]{audited.lost:,} lost[/], {audited.repeated:,} repeated (at-least-once), "
                 f"{result['workers_killed']} worker killed.")
    screen.print(f"{result['words_per_s']:,} words/s. A line and all its words took {milliseconds(result['p50_ms'])} ms (p50), "
                 f"{milliseconds(result['p99_ms'])} ms (p99, including the crash).")

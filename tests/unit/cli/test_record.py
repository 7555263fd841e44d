"""`moves`, `migrations` and `events` in 80 columns, and the picture of a migration."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.cli.record import print_cancelled, print_events, print_migration, print_migrations, print_moves
from millrace.cli.timeline import _marks, _phases, _shown_phases, check_plot, draw
from millrace.control.migrations import BUCKET_SECONDS, Bucket, Effect, Flow, Migration, TaskMove, effect_of, timeline
from millrace.errors import BadParameter, MillraceError
from millrace.model.graph import TaskId

Capture = pytest.CaptureFixture[str]
BUCKETS = [Bucket(number, 50, 0.5, 0.02) for number in (*range(200, 404), *range(410, 460))]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")


def printed(capsys: Capture) -> str:
    """The printed text without trailing blanks; no line is too long."""
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    return "\n".join(lines) + "\n"


def migration(number: int = 1, tasks: int = 1, outcome: str = "done", **changed: Any) -> dict[str, Any]:
    moved = tuple(TaskMove(TaskId("count", index), 0, 1, 0.0123, 10_000_000, 2_000) for index in range(tasks))
    began, ended = 400.5 * BUCKET_SECONDS, 411.5 * BUCKET_SECONDS
    made = Migration("words", "handover", "scheduler: decision 12, otd: less traffic between nodes", outcome, "", 3, 5, began,
                     began + 0.2, ended, moved, 77)
    row = made.to_json(effect_of(BUCKETS, began, ended, 23.0), Flow(0, 0, 4))
    return {"id": number, "at": 1000.0, **row, "final": True, "timeline": timeline(BUCKETS, began, ended), **changed}


def test_the_newest_migrations(capsys: Capture) -> None:
    print_migrations([migration(), migration(2, 100, "rolled back"),
                      migration(3, longest_gap_ms=None, usual_gap_ms=None, throughput_ratio=None)])
    text = printed(capsys)
    assert "count[0]" in text and "count[0..99]" in text and "rolled back" in text and " 350 " in text
    print_migrations([])
    assert printed(capsys) == "there have been no migrations\n"


def test_lost_chunks_and_replayed_tuples_are_named_so_where_there_is_room(capsys: Capture,
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    print_migrations([migration()])
    above, below = capsys.readouterr().out.splitlines()[:2]
    for unit, what in (("chunks", "lost"), ("tuples", "replayed")):
        end = below.index(f" {what}") + 1 + len(what)
        assert above[:end].endswith(f" {unit}"), "the unit stands above"


def test_phases_are_durations() -> None:
    def phases(switched: float | None) -> Any:
        made = Migration("words", "handover", "person", "done", "", 3, 5, 10.0, switched, 12.0, ())
        return made.to_json(Effect(), Flow())["phases_ms"]

    assert phases(11.5) == {"arm": 1500.0, "switch": 500.0, "done": 2000.0}
    assert phases(10.0) == {"arm": 0.0, "switch": 2000.0, "done": 2000.0}, "after a loss nothing arms"
    assert phases(None) == {"arm": 2000.0, "switch": None, "done": 2000.0}, "it was cancelled"


def test_a_picture_has_each_phase_where_it_was() -> None:
    assert [phase[:3] for phase in _phases({"arm": 150.0, "switch": 50.0, "done": 200.0})] == [
        ("arm", 0.0, 150.0), ("switch", 150.0, 200.0)]
    assert [phase[:3] for phase in _phases({"arm": 200.0, "switch": None, "done": 200.0})] == [("arm", 0.0, 200.0)]
    assert [phase[:3] for phase in _phases({"arm": 0.0, "switch": 200.0, "done": 200.0})] == [("switch", 0.0, 200.0)]


def test_one_migration(capsys: Capture) -> None:
    print_migration(migration(), None)
    assert printed(capsys) == """\
migration 1 of words: handover, done
  began     1970-01-01 00:16:40
  cause     scheduler: decision 12, otd: less traffic between nodes
  plan      version 3 -> 5
  phases    armed in 200 ms, switched in 350 ms, ended after 550 ms
  sinks     longest gap 350 ms (usually 50 ms), 50% of the throughput before
  degraded  throughput missing: at least 20 % for 0.5 s, 40 % for 0.25 s, 60 %
            for 0.25 s, 80 % for 0.25 s, 100 % for 0.25 s
  latency   10 ms before, 20 ms at most, 10 ms after
  tuples    77 in flight, 4 replayed
  chunks    0 lost, 0 repeated
                    pause  copied  handed
task      from  to     ms  before    over
count[0]     0  1      12   10 MB    2 kB
"""


ROLLED_BACK = {"strategy": "dcr", "drain_ms": 105.0, "rebalance_ms": 52.0, "restore_ms": 180.0, "catchup_ms": None,
               "recovery_ms": 1234.5, "stabilise_ms": 2000.0, "steps_ms": [["checkpoint", 105.0], ["replace", 52.0]],
               "parameters": {"delay": 3.0}, "new_pids": [4711, 4712], "complete": True}


def test_the_metrics_of_a_migration(capsys: Capture) -> None:
    print_migration(migration(**ROLLED_BACK), None)
    assert """
  steps     checkpoint 105 ms, replace 52 ms, ended after 550 ms; delay=3
  metrics   drained in 105 ms, rebalanced in 52 ms, first tuple after 180 ms,
            last replayed tuple after 1,234 ms, stable after 2,000 ms
  workers   restarted, with the process ids 4711, 4712
""" in printed(capsys)
    print_migration(migration(**{**ROLLED_BACK, "steps_ms": [["replace", 52.0]], "parameters": {}}), None)
    text = printed(capsys)
    assert "\n  steps     replace 52 ms, ended after 550 ms\n" in text and "armed" not in text, "nothing arms for it"
    print_migration(migration(steps_ms=[["handover", 550.0]]), None)
    text = printed(capsys)
    assert "phases    armed in 200 ms, switched in 350 ms, ended after 550 ms" in text and "steps" not in text
    print_migration(migration(**{**ROLLED_BACK, "stabilise_ms": None, "complete": False}), None)
    assert "last replayed tuple after 1,234 ms; it is still watched" in printed(capsys)


def test_only_metrics_that_some_migration_has_are_listed(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_migrations([migration(), migration(2, **ROLLED_BACK)])
    text = capsys.readouterr().out
    assert "catch-up" not in text and all(title in text for title in ("drain", "rebal.", "restore", "recovery", "stable"))
    assert text.splitlines()[-1].split()[-5:] == ["105", "52", "180", "1,234", "2,000"]
    assert text.splitlines()[-2].split()[-5:] == ["-"] * 5, "one of an older version has none"


def test_a_picture_shows_the_phases_and_metrics_of_the_strategy() -> None:
    row = migration(phases_ms={"arm": 105.0, "switch": 60.0, "done": 165.0}, **ROLLED_BACK)
    assert [phase[:3] for phase in _shown_phases(row)] == [("drain", 0.0, 105.0), ("rebalance", 105.0, 157.0)]
    assert [phase[0] for phase in _shown_phases({**row, "drain_ms": None})] == ["wait", "rebalance"]
    assert [mark[:2] for mark in _marks(row)] == [("first tuple", 180.0), ("last replayed tuple", 1234.5), ("stable", 2000.0)]
    assert _marks(migration()) == []


def test_a_migration_of_key_groups(capsys: Capture) -> None:
    row = migration()
    groups = TaskMove(TaskId("count", 0), 0, 1, 0.0123, 10_000_000, 2_000, (3, 4, 5), TaskId("count", 2)).to_json()
    assert (groups["task"], groups["groups"], groups["to_task"]) == ("count[0]", [3, 4, 5], "count[2]")
    print_migration({**row, "moved": [groups]}, None)
    assert "3 key groups of count[0]     0  count[2] on 1     12   10 MB    2 kB" in printed(capsys)
    print_migrations([{**row, "moved": [groups]}])
    assert "3 key groups of count[0]" in printed(capsys)


def test_a_change_of_parallelism(capsys: Capture) -> None:
    row = migration(strategy="scale", parameters={"split": 2.0, "count": 5.0}, steps_ms=[["grow", 20.0], ["regroup", 5.0]])
    print_migrations([row])
    assert " count=5, split=2 " in printed(capsys)
    print_migration(row, None)
    assert "  steps     grow 20 ms, regroup 5 ms, ended after 550 ms; split=2; count=5\n" in printed(capsys)


def test_moves_under_way(capsys: Capture) -> None:
    moving = [{"task": f"count[{index}]", "groups": [], "to_task": f"count[{index}]", "from": 0, "to": 1, "cause": "person",
               "armed": index < 1, "taken": False, "precopied_bytes": 4_000_000} for index in range(2)]
    waiting = [{"task": "split[0]", "groups": [], "to_task": "split[0]", "from": 1, "to": 2,
                "cause": "return: worker 2 is back"},
               {"task": "count[2]", "groups": [3, 4], "to_task": "count[1]", "from": 0, "to": 1, "cause": "person"}]
    print_moves([{"topology": "words", "phase": "arm", "seconds": 1.23, "progress": 0.5, "moving": moving,
                  "waiting": waiting, "migration": None}])
    assert printed(capsys) == """\
words ━━━━━━━━━━━━━━━                arm, 1.2 s
task      from  to  ready   copied  cause
count[0]     0  1   armed     4 MB  person
count[1]     0  1   copies    4 MB  person
words, waiting:
  split[0] to worker 2 (return: worker 2 is back)
  2 key groups of count[2] to count[1] (person)
"""
    print_moves([{"topology": "words", "phase": "switch", "seconds": 1.23, "progress": 0.9,
                  "moving": [{**waiting[1], "armed": True, "taken": False, "precopied_bytes": 1000}], "waiting": [],
                  "migration": None}])
    assert "2 key groups of count[2]     0  count[1] on 1  armed    1 kB  person" in printed(capsys)
    print_moves([{"topology": "words", "phase": "resting", "seconds": 0.0, "progress": 0.0, "moving": [],
                  "waiting": waiting[:1], "migration": None}])
    assert printed(capsys).startswith("words, waiting for the topology to run:\n  split[0] to worker 2")
    print_moves([])
    assert printed(capsys) == "nothing is being moved\n"
    print_cancelled({"topology": "words", "task": "count[0]", "groups": [], "worker": 1})
    assert printed(capsys) == "count[0] of words stays on worker 1\n"
    print_cancelled({"topology": "words", "task": "count[0]", "groups": [7, 8], "worker": 1})
    assert printed(capsys) == "count[0] of words stays on worker 1 and keeps 2 key groups\n"
    print_cancelled({"topology": "words", "task": "count[0]", "groups": [7], "worker": None})
    assert printed(capsys) == "count[0] of words waits for a worker and keeps 1 key group\n"


def test_events_tell_the_cause_once(capsys: Capture) -> None:
    print_events([
        {"time": 60.0, "topology": "", "text": "worker 1 lost: no heartbeat", "level": "warning", "cause": "no heartbeat",
         "tasks": ["count[0]"]},
        {"time": 61.0, "topology": "words", "text": "count[0] placed on worker 2", "level": "info",
         "cause": "worker 1 lost: no heartbeat", "tasks": ["count[0]"]}])
    assert printed(capsys) == """\
00:01:00  worker 1 lost: no heartbeat
00:01:01  words: count[0] placed on worker 2
          cause: worker 1 lost: no heartbeat
"""
    print_events([])
    assert printed(capsys) == "no events\n"


def test_a_plot_needs_an_id_and_a_known_format() -> None:
    with pytest.raises(BadParameter, match="--plot draws one migration: name it"):
        check_plot("move.svg", None)
    with pytest.raises(BadParameter, match=r"--plot move.gif: write a name that ends in .svg or .png"):
        check_plot("move.gif", 1)


def test_a_plot_without_the_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    with pytest.raises(MillraceError, match=r"'matplotlib', which is not installed: pip install millrace\[plot\]"):
        check_plot("move.svg", 1)


@pytest.mark.parametrize("suffix", [".svg", ".png", ".SVG"])
def test_a_picture(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"move{suffix}"
    check_plot(str(path), 1)
    draw(migration(tasks=9), str(path))
    start = path.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if suffix == ".png" else b"<svg" in path.read_bytes() and start.startswith(b"<?xml")
    groups = TaskMove(TaskId("count", 0), 0, 1, 0.0123, 10_000_000, 2_000, (3, 4, 5), TaskId("count", 2)).to_json()
    draw(migration(moved=[groups]), str(path))
    draw(migration(**ROLLED_BACK), str(path))
    draw(migration(outcome="cancelled", phases_ms={"arm": 80.0, "switch": None, "done": 80.0}), str(path))
    with pytest.raises(MillraceError, match="its sinks processed nothing then"):
        draw(migration(timeline=[]), str(path))
    with pytest.raises(MillraceError, match="cannot write"):
        draw(migration(), str(tmp_path / "no" / f"move{suffix}"))

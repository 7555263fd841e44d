"""The output of moves, migrations and events: the same figures as the JSON, in 80 columns."""

from __future__ import annotations

import time
from typing import Any

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from millrace.cli.figures import UNKNOWN, count, milliseconds, number_of, share, size
from millrace.cli.listing import Column, Hanging, Listing, plain_console, shortened, task_names
from millrace.control.migrations import HAND_OVER
from millrace.control.scaling import BY_SCALING

BAR_WIDTH = 30
TASKS_SHOWN = 40  # characters
METRICS = {"drain_ms": ("drain", "drained in {} ms"), "rebalance_ms": ("rebal.", "rebalanced in {} ms"),
           "restore_ms": ("restore", "first tuple after {} ms"), "catchup_ms": ("catch-up", "last old tuple after {} ms"),
           "recovery_ms": ("recovery", "last replayed tuple after {} ms"), "stabilise_ms": ("stable", "stable after {} ms")}


def print_cancelled(answer: dict[str, Any]) -> None:
    groups = number_of(len(answer["groups"]), part_of(answer))
    kept = f" and keeps {groups}" if answer["groups"] else ""
    stays = "waits for a worker" if answer["worker"] is None else f"stays on worker {answer['worker']}"
    plain_console().print(f"{answer['task']} of {answer['topology']} {stays}{kept}")


def print_moves(answer: list[dict[str, Any]]) -> None:
    console = plain_console()
    if not answer:
        console.print("nothing is being moved")
    for moves in answer:
        if (migration := moves["migration"]) is not None:
            console.print(_migration_bar(moves["topology"], migration))
        if moves["moving"]:
            bar = Table.grid(padding=(0, 1))
            bar.add_row(Text(moves["topology"], style="bold"), ProgressBar(1.0, moves["progress"], width=BAR_WIDTH),
                        f"{moves['phase']}, {moves['seconds']:.1f} s")
            console.print(bar)
            console.print(_moving(moves["moving"]))
        if moves["waiting"]:
            console.print(Hanging(f"{moves['topology']}, waiting:" if moves["moving"] else
                                  f"{moves['topology']}, waiting for the topology to run:", style="dim"))
        for row in moves["waiting"]:
            target = row["to_task"] if row["groups"] else f"worker {row['to']}"
            console.print(Hanging(f"{_what(row)} to {target} ({row['cause']})", "  "))


def print_rebalance(answer: dict[str, Any]) -> None:
    console = plain_console()
    if not answer["moves"]:
        console.print(f"every task of {answer['topology']} is already where the plan wants it")
        return
    console.print(f"{number_of(len(answer['moves']), 'task')} of {answer['topology']} "
                  f"{'moves' if len(answer['moves']) == 1 else 'move'} by {answer['strategy']}; `moves` shows the progress")


def _migration_bar(topology: str, migration: dict[str, Any]) -> Table:
    bar = Table.grid(padding=(0, 1))
    trouble = f"; it fails: {migration['trouble']}" if migration["trouble"] else ""
    bar.add_row(Text(topology, style="bold"), ProgressBar(1.0, migration["progress"], width=BAR_WIDTH),
                f"{number_of(len(migration['tasks']), 'task')} by {migration['strategy']}: {migration['step']}, "
                f"{migration['seconds']:.1f} s ({migration['cause']}){trouble}")
    return bar


def _moving(rows: list[dict[str, Any]]) -> Listing:
    return Listing(
        "",
        Column("task", [_what(row) for row in rows], figures=False),
        Column("from", [str(row["from"]) for row in rows]),
        Column("to", [_target(row) for row in rows], figures=False),
        Column("ready", ["taken" if row["taken"] else "armed" if row["armed"] else "copies" for row in rows], figures=False),
        Column("copied", [size(row["precopied_bytes"]) for row in rows]),
        Column("cause", [row["cause"] for row in rows], figures=False))


def print_migrations(answer: list[dict[str, Any]]) -> None:
    console = plain_console()
    if not answer:
        console.print("there have been no migrations")
        return
    console.print(Listing(
        "",
        Column("id", [str(row["id"]) for row in answer]),
        Column("topology", [row["topology"] for row in answer], figures=False),
        Column("tasks", [_tasks(row) for row in answer], figures=False),
        Column("strategy", [row["strategy"] for row in answer], figures=False, spare=True),
        Column("outcome", [row["outcome"] for row in answer], figures=False),
        Column("ms", [_ms(row["phases_ms"]["done"]) for row in answer]),
        Column("gap\nms", [_ms(row["longest_gap_ms"]) for row in answer]),
        Column("usual\nms", [_ms(row["usual_gap_ms"]) for row in answer]),
        Column("rate", [share(row["throughput_ratio"]) for row in answer]),
        Column("pause\nms", [_ms(_longest_pause(row)) for row in answer], spare=True),
        Column("chunks\nlost", [count(row["lost"]) for row in answer], spare=True),
        Column("tuples\nreplayed", [count(row["replayed"]) for row in answer], spare=True),
        *(Column(f"{title}\nms", [_ms(row.get(name)) for row in answer], spare=True)  # records of older versions have none
          for name, (title, _) in METRICS.items() if any(row.get(name) is not None for row in answer))))


def print_migration(row: dict[str, Any], plot: str | None) -> None:
    console = plain_console()
    console.print(Hanging(f"migration {row['id']} of {row['topology']}: {row['strategy']}, {row['outcome']}"
                          f"{': ' + row['reason'] if row['reason'] else ''}", style="bold"))
    for label, text in (
            ("began", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at"]))),
            ("cause", row["cause"]),
            ("plan", f"version {row['from_version']} -> {row['to_version']}"),
            _phases(row),
            *_course(row),
            ("sinks", f"longest gap {_ms(row['longest_gap_ms'])} ms (usually {_ms(row['usual_gap_ms'])} ms), "
                      f"{share(row['throughput_ratio'])} of the throughput before"),
            ("degraded", _degraded(row["degraded_s"])),
            ("latency", f"{_ms(row['latency_before_ms'])} ms before, {_ms(row['peak_latency_ms'])} ms at most, "
                        f"{_ms(row['latency_after_ms'])} ms after"),
            ("tuples", f"{count(row['in_flight'])} in flight, {count(row['replayed'])} replayed"),
            ("chunks", f"{count(row['lost'])} lost, {count(row['repeated'])} repeated")):
        console.print(Hanging(text, f"  {label:<10}"))
    moved = row["moved"]
    console.print(Listing(
        "",
        Column("task", [_what(move) for move in moved], figures=False),
        Column("from", [str(move["from"]) for move in moved]),
        Column("to", [_target(move) for move in moved], figures=False),
        Column("pause\nms", [_ms(move["pause_ms"]) for move in moved]),
        Column("copied\nbefore", [size(move["precopied_bytes"]) for move in moved]),
        Column("handed\nover", [size(move["delta_bytes"]) for move in moved])))
    if plot is not None:
        console.print(f"drawn to {plot}", soft_wrap=True)


def print_events(answer: list[dict[str, Any]]) -> None:
    console = plain_console()
    if not answer:
        console.print("no events")
    for event in answer:
        topic = f"{event['topology']}: " if event["topology"] else ""
        stamp = time.strftime("%H:%M:%S  ", time.localtime(event["time"]))
        console.print(Hanging(shortened(f"{topic}{event['text']}"), stamp, "yellow" if event["level"] == "warning" else ""))
        if event["cause"] and event["cause"] not in event["text"]:
            console.print(Hanging(shortened(event["cause"]), " " * len(stamp) + "cause: ", "dim"))


def part_of(*moves: dict[str, Any]) -> str:
    """The word for one of the parts that are given to other tasks. Records of older versions do not tell splits."""
    kinds = {bool(move.get("splits")) for move in moves if move["groups"]}
    return "split" if kinds == {True} else "key group"


def _what(move: dict[str, Any]) -> str:
    """The task that moves, or how many of its key groups."""
    return f"{number_of(len(move['groups']), part_of(move))} of {move['task']}" if move["groups"] else str(move["task"])


def _target(move: dict[str, Any]) -> str:
    where = UNKNOWN if move["to"] is None else str(move["to"])
    return f"{move['to_task']} on {where}" if move["groups"] else where


def _tasks(row: dict[str, Any]) -> str:
    """The tasks that moved; of a change of parallelism, the numbers of tasks that were wanted."""
    if row["strategy"] == BY_SCALING:
        return ", ".join(f"{name}={tasks:g}" for name, tasks in sorted(row["parameters"].items()))
    tasks = [move["task"] for move in row["moved"]]
    groups = sum(len(move["groups"]) for move in row["moved"])
    part = part_of(*row["moved"])
    named = f"{number_of(groups, part)} of {task_names(tasks)}" if groups else task_names(tasks)
    if len(named) <= TASKS_SHOWN:
        return named
    return f"{number_of(groups, part)} of {number_of(len(tasks), 'task')}" if groups else number_of(len(tasks), "task")


def _phases(row: dict[str, Any]) -> tuple[str, str]:
    """The phases of a single hand-over, or the steps of any other strategy."""
    phases, steps = row["phases_ms"], row.get("steps_ms", [])
    ended = f"ended after {_ms(phases['done'])} ms"
    if [name for name, _ in steps] in ([], [HAND_OVER]):
        switched = f"switched in {_ms(phases['switch'])} ms, " if phases["switch"] is not None else ""
        return "phases", f"armed in {_ms(phases['arm'])} ms, {switched}{ended}"
    parameters = "".join(f"; {name}={value:g}" for name, value in row["parameters"].items())
    return "steps", f"{''.join(f'{name} {_ms(ms)} ms, ' for name, ms in steps)}{ended}{parameters}"


def _course(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Lines that only some migrations have: metrics, workers that were restarted."""
    lines = []
    if metrics := [text.format(_ms(row[name])) for name, (_, text) in METRICS.items() if row.get(name) is not None]:
        lines.append(("metrics", ", ".join(metrics) + ("" if row["complete"] else "; it is still watched")))
    if row.get("new_pids"):
        lines.append(("workers", f"restarted, with the process ids {', '.join(map(str, row['new_pids']))}"))
    return lines


def _degraded(seconds: dict[str, float | None]) -> str:
    missing = ", ".join(f"{level} % for {value:g} s" for level, value in seconds.items() if value is not None)
    return f"throughput missing: at least {missing}" if missing else UNKNOWN


def _longest_pause(row: dict[str, Any]) -> float | None:
    return max((move["pause_ms"] for move in row["moved"] if move["pause_ms"] is not None), default=None)


def _ms(value: float | None) -> str:
    return UNKNOWN if value is None else milliseconds(value)

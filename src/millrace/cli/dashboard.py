"""The tables that `status` prints and that `run` and `demo` refresh: they fit 80 columns, and show more where there is room."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from millrace.cli.figures import count, duration, number_of, p50_and_p99, share, size
from millrace.cli.listing import Column, Hanging, Listing, plain_console, short_hosts, shortened, task_names
from millrace.master.batch_log import RUN_TASKS

EVENTS_SHOWN, TRACEBACK_LINES = 8, 4
TASKS_NAMED = 100  # characters; a worker whose task names need more shows how many tasks it has
TROUBLE = {"failed": "failed", "dead_letters": "dead letters", "replayed": "replayed", "expired": "skipped after a timeout",
           "gaps": "chunks missing", "repeats": "chunks received twice"}


def print_status(status: dict[str, Any]) -> None:
    console = plain_console()
    console.print(_cluster(status))
    console.print(dashboard(status))


def dashboard(status: dict[str, Any], rates: dict[str, dict[str, float]] | None = None) -> Group:
    """`rates`: recent tuples per second by topology and component; without them the mean since the start is shown."""
    parts: list[RenderableType] = []
    for topology in status["topologies"]:
        parts += [*topology_lines(topology, (rates or {}).get(topology["name"])), Text()]
    workers = workers_listing(status) if status["workers"] else Hanging("no workers", style="yellow")
    return Group(*parts, workers, Text(), *event_lines(status))


def _cluster(status: dict[str, Any]) -> Group:
    lines = [Hanging(f"cluster {status['cluster']}, scheduler {status['scheduler']}, master at {status['endpoint']}")]
    if status["superseded"]:
        lines.append(Hanging(status["superseded"], style="red"))
    lines += [Hanging(text, style="yellow") for text in status["warnings"]]
    for key, what in (("refused_connections", "refused connections"), ("malformed", "malformed messages dropped")):
        if status[key]:
            lines.append(Hanging(f"{count(status[key])} {what}", style="yellow"))
    if status["hosts_without_workers"]:
        lines.append(Hanging(f"hosts without workers: {', '.join(status['hosts_without_workers'])}", style="yellow"))
    auto = status["workers_auto"]
    if auto["on"]:
        lines.append(Hanging(f"workers auto {auto['min']}..{auto['max']}: {auto['under_way'] or auto['decision']}"))
    if not status["topologies"]:
        lines.append(Hanging("no topology is running"))
    return Group(*lines, Text())


def topology_lines(topology: dict[str, Any], rates: dict[str, float] | None = None) -> list[RenderableType]:
    lines: list[RenderableType] = [components_listing(topology, rates)]
    lines += [Hanging(text, f"  {name}: ", style) for name, text, style in _details(topology)]
    if topology["batches"] is not None:
        lines += batch_lines(topology["batches"])
    return lines + error_lines(topology)


def components_listing(topology: dict[str, Any], rates: dict[str, float] | None = None) -> Listing:
    lost = f", {number_of(topology['losses'], 'worker')} lost" if topology["losses"] else ""
    title = (f"{topology['name']}: {topology['status']} ({topology['engine']}) for {duration(topology['uptime_seconds'])}, "
             f"{number_of(topology['tasks'], 'task')}, plan version {topology['version']}{lost}")
    rows, seconds, rate_title = topology["components"], max(topology["uptime_seconds"], 1e-9), "now/s"
    work = {row["name"]: row["emitted"] if row["kind"] == "spout" else row["executed"] for row in rows}
    if rates is None:
        rates, rate_title = {name: done / seconds for name, done in work.items()}, "mean/s"
    return Listing(
        title,
        Column("component", [row["name"] for row in rows], figures=False),
        Column("tasks", [str(row["par"]) for row in rows]),
        Column(rate_title, [count(rates.get(row["name"], 0.0)) for row in rows]),
        Column("executed", ["-" if row["kind"] == "spout" else count(row["executed"]) for row in rows]),
        Column("emitted", [count(row["emitted"]) for row in rows]),
        Column("busy", [share(row["capacity"]) for row in rows], spare=True),
        Column("queue", [count(row["queue_length"]) for row in rows], spare=True),
        Column("execute\nms p50/p99", [p50_and_p99(row["execute_latency_ms"]) for row in rows], spare=True),
        Column("process\nms p50/p99", [p50_and_p99(row["process_latency_ms"]) for row in rows], spare=True),
        Column("acked", [count(row["acked"]) for row in rows], spare=True),
        Column("CPU s", [f"{row['cpu_seconds']:,.1f}" for row in rows], spare=True))


def _details(topology: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(component, text, style) of figures that only some components have."""
    details = []
    metrics = _metrics(topology["metrics"])
    for row in topology["components"]:
        complete = row["complete_latency_ms"]
        if complete is not None:
            details.append((row["name"], f"complete latency of a tuple {p50_and_p99(complete)} ms (p50/p99)", ""))
        if row["merged"]:
            details.append((row["name"], f"{count(row['merged'])} tuples merged into others before they were sent", ""))
        trouble = [f"{count(row[key])} {what}" for key, what in TROUBLE.items() if row[key]]
        if trouble:
            details.append((row["name"], ", ".join(trouble), "yellow"))
        if row["name"] in metrics:
            details.append((row["name"], metrics[row["name"]], ""))
    return details


def _metrics(metrics: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The metrics that tasks report themselves, by component: the smallest and the largest value of its tasks."""
    values: dict[str, dict[str, list[Any]]] = {}
    for task, reported in metrics.items():
        component = values.setdefault(task.rpartition("[")[0], {})
        for name, value in reported.items():
            component.setdefault(name, []).append(value)
    return {component: ", ".join(f"{name} {_span(reported)}" for name, reported in names.items())
            for component, names in values.items()}


def _span(values: list[Any]) -> str:
    if all(type(value) in (int, float) for value in values):
        least, largest = (f"{value:,.0f}" if value == int(value) else f"{value:,.3g}" for value in (min(values), max(values)))
        return least if least == largest else f"{least} to {largest}"
    return shortened(", ".join(sorted({str(value) for value in values})))


def batch_lines(batches: dict[str, Any]) -> list[Hanging]:
    last, now = batches["last"], running_lines(batches.get("running"))
    if last is None:
        return now if now and batches["running"]["committed"] else [Hanging("no batch has finished yet", "  "), *now]
    return [
        *now,
        Hanging(f"{count(batches['count'])}, {number_of(batches['retried'], 'attempt')} failed; last {last['seconds']:.2f} s "
                f"for {number_of(last['tuples_in'], 'tuple')}; mean of 20: {batches['mean_seconds']:.2f} s", "  batches: "),
        Hanging(f"found in memory {number_of(batches['resident'], 'time')}, loaded {number_of(batches['restored'], 'time')}; "
                f"{number_of(batches['misplaced'], 'task')} misplaced", "  state: "),
        Hanging(f"{batches['spark_run_seconds']:,.1f} s by Spark, {batches['own_busy_seconds']:,.1f} s in Python; "
                f"shuffled {size(batches['spark_shuffle_bytes'])}", "  time in partitions: ")]


def running_lines(batch: dict[str, Any] | None) -> list[Hanging]:
    """The progress of a slow batch; nothing if there is none."""
    if batch is None:
        return []
    tasks = shortened(", ".join(batch["tasks"])) or "no task has a core"
    step = f"{batch['doing']} ({tasks})" if batch["doing"] == RUN_TASKS else batch["doing"]
    failed = [Hanging(batch["error"], "  its last error: ", "yellow")] if batch["error"] else []
    if batch["committed"]:
        return [Hanging(f"batch {batch['batch']} is committed; for {batch['seconds']:.0f} s the engine has been trying to "
                        f"{batch['doing']}", "  now: ", "yellow"), *failed]
    again = f", attempt {batch['attempt']}" if batch["attempt"] > 1 else ""
    return [Hanging(f"batch {batch['batch']}{again}, for {batch['seconds']:.0f} s: {step}", "  now: ", "yellow"), *failed]


def error_lines(topology: dict[str, Any]) -> list[RenderableType]:
    """The last error of each component, and how many there were."""
    lines: list[RenderableType] = []
    for row in topology["components"]:
        error = row["last_error"]
        if error is None:
            continue
        many = f", the last of {count(row['errors'])} errors" if row["errors"] > 1 else ""
        lines.append(Hanging(f"{error['task']}{many}: {error['error']}", "  ", "red"))
        if error.get("tuple"):
            lines.append(Hanging(f"while processing {error['tuple']}", "    "))
        lines += [Hanging(line.strip(), " " * (4 + len(line) - len(line.lstrip())), "dim")
                  for line in error["traceback"].strip().splitlines()[-TRACEBACK_LINES:]]
    return lines


def workers_listing(status: dict[str, Any]) -> Listing:
    workers = status["workers"]
    hosts = short_hosts(worker["node"] for worker in workers)
    return Listing(
        "",
        Column("worker", [str(worker["slot"]) for worker in workers]),
        Column("node", [hosts[worker["node"]] for worker in workers], figures=False),
        Column("process", [f"executor {worker['executor']}" if worker["pid"] is None else f"pid {worker['pid']}"
                           for worker in workers], figures=False),
        Column("tasks", [_tasks(worker["tasks"], len(status["topologies"]) > 1) for worker in workers], figures=False))


def _tasks(tasks: list[str], several: bool) -> str:
    """The tasks of a worker: their names if those are short, otherwise how many there are. `plan` always names them."""
    by_topology: dict[str, list[str]] = {}
    for task in tasks:
        topology, _, name = task.partition("/")
        by_topology.setdefault(topology, []).append(name)
    named, counted = ("; ".join((f"{topology}: " if several else "") + form(names) for topology, names in by_topology.items())
                      for form in (task_names, _counted))
    return (named or "none") if len(named) <= max(TASKS_NAMED, 2 * len(counted)) else counted


def _counted(tasks: list[str]) -> str:
    counts = Counter(task.rpartition("[")[0] for task in tasks)
    return ", ".join(f"{many} {component}" for component, many in counts.items())


def event_lines(status: dict[str, Any]) -> list[Hanging]:
    return [event_line(event) for event in status["events"][-EVENTS_SHOWN:]]


def event_line(event: dict[str, Any]) -> Hanging:
    stamp = time.strftime("%H:%M:%S  ", time.localtime(event["time"]))
    topic = f"{event['topology']}: " if event["topology"] else ""
    return Hanging(shortened(f"{topic}{event['text']}"), stamp, "yellow" if event["level"] == "warning" else "")

"""Tables for people: the same figures as the JSON, laid out with rich."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

COUNTED = {"keys": "keys", "dirty": "not in a wave yet"}  # what tasks say of themselves, if there are any to ask


def components_table(topology: dict[str, Any], rates: dict[str, float] | None = None) -> Table:
    title = f"{topology['name']}: {topology['status']} ({topology['engine']})"
    table = Table(title=title, title_justify="left", expand=False)
    for column in ("component", "tasks", "executed", "per s", "emitted", "acked", "failed", "queue", "execute p50/p99 ms",
                   "complete p50/p99 ms", "capacity"):
        table.add_column(column, justify="left" if column == "component" else "right")
    for row in topology["components"]:
        work = row["emitted"] if row["kind"] == "spout" else row["executed"]
        rate = (rates or {}).get(row["name"], work / max(topology["uptime_seconds"], 1e-9))
        table.add_row(row["name"], str(row["par"]), f"{row['executed']:,}", f"{rate:,.0f}", f"{row['emitted']:,}",
                      f"{row['acked']:,}", f"{row['failed']:,}", f"{row['queue_length']:,}",
                      _latency(row["execute_latency_ms"]), _latency(row["complete_latency_ms"]), f"{row['capacity']:.2f}")
    return table


def workers_table(status: dict[str, Any]) -> Table:
    table = Table(title="workers", title_justify="left", expand=False)
    for column in ("worker", "node", "process", "tasks"):
        table.add_column(column)
    for worker in status["workers"]:
        tasks = ", ".join(task.partition("/")[2] if len(status["topologies"]) == 1 else task for task in worker["tasks"])
        process = f"executor {worker['executor']}" if worker["pid"] is None else str(worker["pid"])
        table.add_row(str(worker["slot"]), worker["node"], process, tasks or "none")
    return table


def batches_text(batches: dict[str, Any]) -> Text:
    last = batches["last"]
    if last is None:
        return Text("no batch is done yet\n")
    lines = [f"{batches['count']:,} batches: the last took {last['seconds']:.3f} s for {last['tuples_in']:,} tuples, the last "
             f"20 {batches['mean_seconds']:.3f} s on average; {batches['retried']:,} attempts failed",
             f"tasks that ran elsewhere than planned: {batches['misplaced']:,}; that had to load their state: "
             f"{batches['restored']:,} (found it in their process: {batches['resident']:,})",
             f"time in partitions: {batches['spark_run_seconds']:,.1f} s by Spark, {batches['own_busy_seconds']:,.1f} s by us; "
             f"{batches['spark_shuffle_bytes']:,} bytes went through Spark's shuffle"]
    return Text("\n".join(lines) + "\n")


def events_text(status: dict[str, Any], count: int = 8) -> Text:
    text = Text()
    for event in status["events"][-count:]:
        stamp = time.strftime("%H:%M:%S", time.localtime(event["time"]))
        topic = f"{event['topology']}: " if event["topology"] else ""
        text.append(f"{stamp} {topic}{event['text']}\n", style="yellow" if event["level"] == "warning" else "")
    return text


def errors_text(topology: dict[str, Any]) -> Text:
    text = Text()
    for error in topology["last_errors"][-3:]:
        text.append(f"{error['task']}: {error['error']}\n", style="red")
        if error.get("tuple"):
            text.append(f"  while processing {error['tuple']}\n")
        text.append("".join(f"  {line}\n" for line in error["traceback"].strip().splitlines()[-4:]), style="dim")
    return text


def dashboard(status: dict[str, Any], rates: dict[str, dict[str, float]] | None = None) -> Group:
    parts: list[Any] = []
    for topology in status["topologies"]:
        parts.append(components_table(topology, (rates or {}).get(topology["name"])))
        if topology["batches"] is not None:
            parts.append(batches_text(topology["batches"]))
        if topology["last_errors"]:
            parts.append(errors_text(topology))
    return Group(*parts, workers_table(status), events_text(status))


def print_status(status: dict[str, Any]) -> None:
    console = Console()
    console.print(f"cluster {status['cluster']}, master at {status['endpoint']}")
    console.print(dashboard(status))


def print_move(found: dict[str, Any]) -> None:
    console = Console(markup=False, emoji=False)
    if found["from"] == found["to"]:
        console.print(f"{found['task']} is on worker {found['to']} already")
        return
    console.print(f"{found['task']} of {found['topology']} moves from worker {found['from']} to worker {found['to']}")
    if found["batched"]:
        console.print("it runs there from the next batch on, and takes its state along")
    elif found["waves"]:
        console.print("it goes with the next wave, and takes its state along")
    elif found["keyed"]:
        console.print("it begins anew there: what it keeps in its own attributes stays behind")


def print_scale(found: dict[str, Any]) -> None:
    console = Console(markup=False, emoji=False)
    if not found["changed"]:
        console.print(f"{found['topology']} has {', '.join(f'{n} tasks of {name}' for name, n in found['to'].items())} already")
        return
    for component, tasks in found["to"].items():
        shared = f", {_shares(found['key_groups'][component])}" if component in found["key_groups"] else ""
        console.print(f"{component} of {found['topology']}: {found['from'][component]} -> {tasks} tasks from the next batch on"
                      + shared)


def _shares(owners: list[int]) -> str:
    """How many key groups each task owns."""
    counts = [owners.count(index) for index in sorted(set(owners))]
    return f"{min(counts)} key groups each" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)} key groups each"


def print_plan(found: dict[str, Any]) -> None:
    console = Console(markup=False, emoji=False)
    for name, plan in found["topologies"].items():
        title = f"{name}: {plan['status']}, version {plan['version']}"
        table = Table("worker", "node", "tasks", title=title, title_justify="left")
        for slot, where in found["workers"].items():
            tasks = [task for task, at in plan["placement"].items() if at == int(slot)]
            agent = " (agent)" if found["agents"].get(where["node"]) == int(slot) else ""
            table.add_row(str(slot), where["node"] + agent, ", ".join(tasks) or "none")
        console.print(table)
        for component, owners in plan["key_groups"].items():
            shares = [f"[{index}] {owners.count(index)}" for index in sorted(set(owners))]
            console.print(f"key groups of {component}: {', '.join(shares)}")


def print_load(found: dict[str, Any]) -> None:
    console = Console(markup=False, emoji=False)
    if not found["workers"]:
        console.print(f"nothing measured yet: a window lasts {found['window_seconds']:g} s")
        return
    for name, load in found["topologies"].items():
        table = Table("component", "λ tuples/s", "μ tuples/s", "CPU MHz", "memory MB", "queue", title=name,
                      title_justify="left")
        for component, row in load["components"].items():
            rate = row["true_processing_rate"]
            table.add_row(component, f"{row['arrival_rate']:,.0f}", "-" if rate is None else f"{rate:,.0f}",
                          f"{row['cpu_mhz']:,.0f}", f"{row['memory_mb']:,.0f}", f"{row['queue_length']:,}")
        console.print(table)
    table = Table("worker", "node", "CPU MHz", "memory MB", "queue", title="workers", title_justify="left")
    for slot, row in found["workers"].items():
        table.add_row(str(slot), row["node"], f"{row['cpu_mhz']:,.0f}", f"{row['memory_mb']:,.0f}", f"{row['queue_length']:,}")
    console.print(table)
    table = Table("node", "CPU MHz", "of", "memory MB", "of", title="nodes", title_justify="left")
    for node, row in found["nodes"].items():
        table.add_row(node, f"{row['cpu_mhz']:,.0f}", f"{row['capacity_mhz']:,.0f}", f"{row['memory_used_mb']:,.0f}",
                      f"{row['memory_mb']:,.0f}")
    console.print(table)


def print_state(found: dict[str, Any], groups: bool) -> None:
    console = Console(markup=False, emoji=False)
    console.print(f"checkpoints in {found['store']}")
    for topology in found["topologies"]:
        if not topology["waves"]:
            console.print(f"{topology['name']} keeps no state and is not exactly-once: no waves")
            continue
        last = f"wave {topology['wave']} is committed" if topology["wave"] else "no wave is committed yet"
        console.print(f"{topology['name']}: {last}; epoch {topology['epoch']}; {topology['given_up']} waves given up")
        if topology["trouble"]:
            console.print(f"the last wave was given up: {topology['trouble']}")
        for component in topology["components"]:
            console.print(_groups_table(component) if groups else _tasks_table(component))


def _tasks_table(component: dict[str, Any]) -> Table:
    counted = COUNTED if component["tasks"] else {}
    table = Table("task", "key groups", *counted.values(), "bytes", "newest wave", "fragments at workers",
                  title_justify="left", title=f"{component['name']}: {component['bytes']:,} bytes")
    held = {fragment["blob"]: fragment for fragment in component["fragments"]}
    for task in sorted({group["task"] for group in component["key_groups"]}):
        mine = [group for group in component["key_groups"] if group["task"] == task]
        newest = max(mine, key=lambda group: group["wave"])
        now = component["tasks"].get(task, component["tasks"].get(str(task), {}))
        table.add_row(f"{component['name']}[{task}]", str(len(mine)), *(str(now.get(what, "?")) for what in counted),
                      f"{sum(group['bytes'] for group in mine):,}", str(newest["wave"]), _fragments(held.get(newest["blob"])))
    return table


def _groups_table(component: dict[str, Any]) -> Table:
    counted = COUNTED if component["tasks"] else {}
    table = Table("group", "task", *counted.values(), "bytes", "pieces", "newest wave", title_justify="left",
                  title=f"{component['name']}: {component['bytes']:,} bytes")
    for group in component["key_groups"]:
        table.add_row(str(group["group"]), str(group["task"]), *(str(group.get(what, "?")) for what in counted),
                      f"{group['bytes']:,}", str(group["pieces"]), str(group["wave"]))
    return table


def _fragments(held: dict[str, Any] | None) -> str:
    if held is None:
        return "none"
    return f"{', '.join(map(str, held['workers']))} (any {held['raw']} of {held['raw'] + held['check']})"


def print_value(found: dict[str, Any]) -> None:
    console = Console(markup=False, emoji=False)
    if found["found"]:
        console.print(repr(found["value"]))
    else:
        console.print(f"{found['task']} (worker {found['worker']}, key group {found['group']}): {found['error']}")


def _latency(value: dict[str, float] | None) -> str:
    return "-" if value is None else f"{value['p50']:.3g} / {value['p99']:.3g}"

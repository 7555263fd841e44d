"""The tables of plan, load, state, move and scale: the same figures as the JSON, in 80 columns."""

from __future__ import annotations

import json
from typing import Any

from millrace.cli.figures import count, megabytes, named_percentiles, number_of, p50_and_p99, share, size
from millrace.cli.listing import Column, Hanging, Listing, plain_console, ranges, task_names
from millrace.control.migrations import COMPLETED
from millrace.control.wording import parts_word
from millrace.errors import UnknownTopology

COUNTED = {"keys": "keys", "dirty": "unsaved"}  # reported by running tasks
PAIRS_SHOWN = 10


def of_topology(answer: dict[str, Any], name: str | None) -> dict[str, Any]:
    """The answer reduced to one topology; None keeps all of them."""
    if name is None:
        return answer
    topologies = answer["topologies"]
    named = topologies if isinstance(topologies, dict) else {topology["name"]: topology for topology in topologies}
    if name not in named:
        raise UnknownTopology(f"no topology named {name!r} is running; running: {', '.join(named) or 'none'}")
    return {**answer, "topologies": {name: named[name]} if isinstance(topologies, dict) else [named[name]]}


def print_move(move: dict[str, Any]) -> None:
    console = plain_console()
    if move["from"] == move["to"]:
        console.print(f"{move['task']} is on worker {move['to']} already")
        return
    console.print(f"{move['task']} of {move['topology']} moves from worker {move['from']} to worker {move['to']}")
    if move["strategy"] != "handover":
        console.print(f"it moves by {move['strategy']}; `moves` shows its progress")
    elif move["batched"]:
        console.print("it moves with the next batch, and its state moves with it")
    elif move["waits_for"]:
        console.print(f"it is handed over after {', '.join(move['waits_for'])}; `moves` shows its progress")
    elif move["starting"]:
        console.print("it is handed over when the topology runs; `moves` shows its progress")
    else:
        console.print("it is handed over while the stream runs; `moves` shows its progress")


def print_regroup(change: dict[str, Any]) -> None:
    console = plain_console()
    if not change["groups"]:
        parts = "splits" if change["splits"] else "key groups"
        console.print(f"{change['component']} of {change['topology']} has these {parts} where they are wanted already")
        return
    count = number_of(len(change["groups"]), "split" if change["splits"] else "key group")
    runs = "when the topology runs" if change["starting"] else "while the stream runs"
    after = f"after a move of {', '.join(change['waits_for'])}" if change["waits_for"] else runs
    when = "with the next batch" if change["batched"] else f"{after}; `moves` shows the progress"
    go = "goes" if len(change["groups"]) == 1 else "go"
    console.print(f"{count} of {change['component']} of {change['topology']} {go} to other tasks {when}")


def print_scale(change: dict[str, Any]) -> None:
    console = plain_console()
    if not change["changed"]:
        already = ", ".join(f"{number_of(n, 'task')} of {name}" for name, n in change["to"].items())
        console.print(f"{change['topology']} has {already} already")
        return
    record = change["migration"]
    failed = record is not None and record["outcome"] != COMPLETED
    when = " from the next batch on" if change["batched"] else " wanted" if record is None or failed else ""
    for component, tasks in change["to"].items():
        parts = "splits" if component in change["splits"] else "key groups"
        shared = f", {_shares(change['key_groups'][component], parts)}" if component in change["key_groups"] else ""
        before, after = change["from"][component], number_of(tasks, "task")
        numbers = f"{before} -> {after}{when}" if tasks != before else f"{after} as before"
        console.print(f"{component} of {change['topology']}: {numbers}{shared}")
    if failed:
        console.print(f"{record['outcome']}: {record['reason']}")
    elif record is not None:
        owned = change["key_groups"] or change["to"]
        moved = f"{count(change['key_groups_moved'])} {parts_word(owned, change['splits'], change['key_groups_moved'])}"
        console.print(f"done in {record['phases_ms']['done'] / 1000:.1f} s; {moved} handed over; longest gap at the sinks "
                      f"{_gap(record['longest_gap_ms'])}, usually {_gap(record['usual_gap_ms'])}")
    elif not change["batched"]:
        console.print("millrace moves shows the progress")


def _gap(ms: float | None) -> str:
    return "not measured" if ms is None else f"{ms:.0f} ms"


def _shares(owners: list[int], parts: str) -> str:
    """The number of key groups or splits per task, as a range."""
    counts = [owners.count(index) for index in sorted(set(owners))]
    return f"{min(counts)} {parts} each" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)} {parts} each"


def _key_groups(owners: list[int]) -> str:
    """The number of key groups per task; tasks with equal numbers are grouped."""
    by_share: dict[int, list[int]] = {}
    for task in sorted(set(owners)):
        by_share.setdefault(owners.count(task), []).append(task)
    return ", ".join(f"{many}{' each' if len(tasks) > 1 else ''} for [{ranges(tasks)}]"
                     for many, tasks in sorted(by_share.items(), reverse=True))


def print_plan(answer: dict[str, Any]) -> None:
    console = plain_console()
    if not answer["topologies"]:
        console.print("no topology is running")
    for number, (name, plan) in enumerate(answer["topologies"].items()):
        if number:
            console.print()
        console.print(_placement(f"{name}: {plan['status']}, plan version {plan['version']}", plan["placement"], answer))
        for component, owners in plan["key_groups"].items():
            parts = "splits" if component in plan["splits"] else "key groups"
            console.print(Hanging(_key_groups(owners), f"  {parts} of {component}: "))


def _placement(title: str, placement: dict[str, int], answer: dict[str, Any]) -> Listing:
    hosted: dict[int, list[str]] = {int(slot): [] for slot in answer["workers"]}
    for task, slot in placement.items():
        hosted.setdefault(slot, []).append(task)  # a worker that has just gone may still be in the plan
    nodes = {int(slot): where["node"] for slot, where in answer["workers"].items()}
    agents = set(answer["agents"].values())
    return Listing(
        title,
        Column("worker", [str(slot) for slot in hosted]),
        Column("node", [nodes.get(slot, "gone") + (" (agent)" if slot in agents else "") for slot in hosted], figures=False),
        Column("tasks", [task_names(tasks) or "none" for tasks in hosted.values()], figures=False))


def print_load(answer: dict[str, Any], tasks: bool = False) -> None:
    console = plain_console()
    if not answer["workers"]:
        console.print(f"nothing measured yet: the first figures come after {answer['window_seconds']:g} s")
        return
    listings = []
    for name, load in answer["topologies"].items():
        listings += [_components_load(name, load["components"]), _components_time(load["components"])]
        listings += [_latencies(load["prediction"])] if load.get("prediction") else []
        listings += [_tasks_load(load), _pairs(load), _hops(load["hops"])] if tasks else []
    for listing in [*listings, _workers_load(answer["workers"]), *_workers_delays(answer["workers"])]:
        console.print(listing)
        console.print()
    console.print(_nodes_load(answer["nodes"]))
    if answer["links"]:
        console.print()
        console.print(_links(answer["links"]))


def _components_load(name: str, components: dict[str, Any]) -> Listing:
    rows = components.values()
    return Listing(
        name,
        Column("component", list(components), figures=False),
        Column("λ tuples/s", [count(row["arrival_rate"]) for row in rows]),
        Column("μ of one task", [count(row["true_processing_rate"]) for row in rows]),
        Column("CPU MHz", [count(row["cpu_mhz"]) for row in rows]),
        Column("memory", [megabytes(row["memory_mb"]) for row in rows]),
        Column("queue", [count(row["queue_length"]) for row in rows]))


def _components_time(components: dict[str, Any]) -> Listing:
    rows = components.values()
    return Listing(
        "",
        Column("component", list(components), figures=False),
        Column("offered/s", [count(row["offered_rate"]) for row in rows]),
        Column("lag", [count(row["lag"]) for row in rows]),
        Column("busy", [share(row["busy"]) for row in rows]),
        Column("blocked", [share(row["blocked"]) for row in rows]),
        Column("idle", [share(row["idle"]) for row in rows]))


def _latencies(prediction: dict[str, Any]) -> Listing:
    """Predicted against measured latency, for each component and in all."""
    rows = [*prediction["components"], {**prediction, "component": "all"}]
    return Listing(
        "latency in ms",
        Column("component", [row["component"] for row in rows], figures=False),
        Column("utilization", [share(row["utilization"]) if "utilization" in row else "" for row in rows], spare=True),
        Column("by the model", [_tenths(row["model_ms"]) for row in rows]),
        Column("predicted", [_tenths(row["predicted_ms"]) for row in rows]),
        Column("measured", [_tenths(row["measured_ms"]) for row in rows]),
        Column("error", ["-" if row["error"] is None else f"{row['error']:+.0%}" for row in rows]))


def _tenths(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:,.1f}"


def _tasks_load(load: dict[str, Any]) -> Listing:
    seconds, rows = max(load["window_seconds"], 1e-9), load["tasks"].values()
    return Listing(
        "",
        Column("task", list(load["tasks"]), figures=False),
        Column("executed/s", [count(row["executed"] / seconds) for row in rows]),
        Column("emitted/s", [count(row["emitted"] / seconds) for row in rows]),
        Column("busy", [share(row["busy_seconds"] / seconds) for row in rows]),
        Column("blocked", [share(row["blocked_seconds"] / seconds) for row in rows], spare=True),
        Column("CPU MHz", [count(row["cpu_mhz"]) for row in rows]),
        Column("memory", [megabytes(row["memory_mb"]) for row in rows]),
        Column("queue", [count(row["queue_length"]) for row in rows]))


def _pairs(load: dict[str, Any]) -> Listing:
    seconds = max(load["window_seconds"], 1e-9)
    most = sorted(load["traffic"], key=lambda pair: -pair[2])[:PAIRS_SHOWN]
    sizes = {(source, target): sent for source, target, sent in load["traffic_bytes"]}
    return Listing(
        f"most traffic, {len(most)} of {number_of(len(load['traffic']), 'pair')} of tasks",
        Column("from", [source for source, _, _ in most], figures=False),
        Column("to", [target for _, target, _ in most], figures=False),
        Column("tuples/s", [count(tuples / seconds) for _, _, tuples in most]),
        Column("bytes/s", [size(sizes.get((source, target), 0) / seconds) for source, target, _ in most]))


def _hops(hops: list[dict[str, Any]]) -> Listing:
    """The parts of the latency from component to component."""
    return Listing(
        "parts of the latency, ms p50/p99",
        Column("from", [hop["from"] for hop in hops], figures=False),
        Column("to", [hop["to"] for hop in hops], figures=False),
        *(Column(title, [p50_and_p99(hop[f"{name}_latency_ms"]) for hop in hops])
          for title, name in (("outbox", "outbox"), ("wire", "wire"), ("inbox", "inbox"), ("user code", "chunk"))))


def _workers_load(workers: dict[str, Any]) -> Listing:
    rows = workers.values()
    return Listing(
        "",
        Column("worker", [str(slot) for slot in workers]),
        Column("node", [row["node"] for row in rows], figures=False),
        Column("CPU MHz", [count(row["cpu_mhz"]) for row in rows]),
        Column("memory", [megabytes(row["memory_mb"]) for row in rows]),
        Column("queue", [count(row["queue_length"]) for row in rows]),
        Column("busy", [share(row["busy"]) for row in rows]))


def _workers_delays(workers: dict[str, Any]) -> list[Listing]:
    """Turns and pauses that delay all tasks of a worker. None where workers have no loop, as on the microbatch engine."""
    rows = workers.values()
    if not any(row["turn_ms"] or row["collections"] for row in rows):
        return []
    return [Listing(
        "delays of all tasks of a worker, ms",
        Column("worker", [str(slot) for slot in workers]),
        Column("turn p50/p99/max", [named_percentiles(row["turn_ms"], "p50", "p99", "max") for row in rows]),
        Column("collector p99/max", [named_percentiles(row["collector_ms"], "p99", "max") for row in rows]),
        Column("collections", [count(row["collections"]) for row in rows]))]


def _nodes_load(nodes: dict[str, Any]) -> Listing:
    rows = nodes.values()
    return Listing(
        "",
        Column("node", list(nodes), figures=False),
        Column("CPU MHz", [count(row["cpu_mhz"]) for row in rows]),
        Column("of", [count(row["capacity_mhz"]) for row in rows]),
        Column("others", [count(row["others_mhz"]) for row in rows]),
        Column("used", [share(row["cpu_mhz"] / row["capacity_mhz"]) if row["capacity_mhz"] else "-" for row in rows]),
        Column("memory", [megabytes(row["memory_used_mb"]) for row in rows]),
        Column("of", [megabytes(row["memory_mb"]) for row in rows]))


def _links(links: list[dict[str, Any]]) -> Listing:
    most = sorted(links, key=lambda link: (-link["cost"], link["nodes"]))[:PAIRS_SHOWN]
    return Listing(
        f"most expensive of {number_of(len(links), 'link')} between nodes",
        Column("node", [link["nodes"][0] for link in most], figures=False),
        Column("node", [link["nodes"][1] for link in most], figures=False),
        Column("cost", [f"{link['cost']:.3g}" for link in most]),
        Column("round trip", [f"{link['round_trip_ms']:.3g} ms" if link["round_trip_ms"] else "unknown" for link in most]),
        Column("Mbit/s", [count(link["bandwidth_mbps"]) if link["bandwidth_mbps"] else "unknown" for link in most]))


def print_state(answer: dict[str, Any], groups: bool) -> None:
    console = plain_console()
    console.print(f"checkpoints in {answer['store']}", soft_wrap=True)
    for topology in answer["topologies"]:
        console.print()
        if not topology["waves"]:
            console.print(f"{topology['name']} has no state and is not exactly-once: no checkpoints")
            continue
        last = f"wave {topology['wave']} is committed" if topology["wave"] else "no wave is committed yet"
        abandoned = f"{number_of(topology['abandoned'], 'wave')} abandoned"
        console.print(Hanging(f"{topology['name']}: {last}, epoch {topology['epoch']}, {abandoned}", style="bold"))
        if topology["trouble"]:
            console.print(Hanging(f"the last wave was abandoned: {topology['trouble']}", "  ", "yellow"))
        for spout, splits in topology["splits"].items():
            console.print(Hanging(_split_positions(splits), f"  splits of {spout}: "))
        for component in topology["components"]:
            console.print()
            console.print(_groups_listing(component) if groups else _tasks_listing(component))


def _split_positions(splits: list[dict[str, int]]) -> str:
    """The number of splits, and the range of their positions."""
    positions = [split["position"] for split in splits]
    return f"{len(splits)}, at positions {count(min(positions))} to {count(max(positions))}" if splits else "none is saved yet"


def _state_title(component: dict[str, Any]) -> str:
    return f"{component['name']}: {size(component['bytes'])} in {number_of(len(component['key_groups']), 'key group')}"


def _tasks_listing(component: dict[str, Any]) -> Listing:
    tasks: dict[int, list[dict[str, Any]]] = {}
    for group in component["key_groups"]:
        tasks.setdefault(group["task"], []).append(group)
    tasks = dict(sorted(tasks.items()))
    answers = [component["tasks"].get(task, component["tasks"].get(str(task), {})) for task in tasks]
    newest = [max(owned, key=lambda group: group["wave"]) for owned in tasks.values()]
    backups = {fragment["blob"]: fragment for fragment in component["fragments"]}
    counted = COUNTED if component["tasks"] else {}
    return Listing(
        _state_title(component),
        Column("task", [f"{component['name']}[{task}]" for task in tasks], figures=False),
        Column("groups", [str(len(owned)) for owned in tasks.values()]),
        *(Column(title, [_answered(answer.get(key)) for answer in answers]) for key, title in counted.items()),
        Column("size", [size(sum(group["bytes"] for group in owned)) for owned in tasks.values()]),
        Column("wave", [str(group["wave"]) for group in newest]),
        Column("fragments at workers", [_fragments(backups.get(group["blob"])) for group in newest], figures=False))


def _groups_listing(component: dict[str, Any]) -> Listing:
    groups, counted = component["key_groups"], COUNTED if component["tasks"] else {}
    return Listing(
        _state_title(component),
        Column("group", [str(group["group"]) for group in groups]),
        Column("task", [f"{component['name']}[{group['task']}]" for group in groups], figures=False),
        *(Column(title, [_answered(group.get(key)) for group in groups]) for key, title in counted.items()),
        Column("size", [size(group["bytes"]) for group in groups]),
        Column("pieces", [str(group["pieces"]) for group in groups]),
        Column("wave", [str(group["wave"]) for group in groups]))


def _answered(value: int | None) -> str:
    """`?` for a task that has not answered, which is not the same as 0."""
    return "?" if value is None else count(value)


def _fragments(backup: dict[str, Any] | None) -> str:
    if backup is None:
        return "none"
    return f"any {backup['raw']} of {backup['raw'] + backup['check']}: {ranges(backup['workers'])}"


def print_value(answer: dict[str, Any]) -> None:
    console = plain_console()
    if answer["found"]:
        console.print(repr(answer["value"]), soft_wrap=True)
        return
    console.print(f"{answer['task']} (worker {answer['worker']}, key group {answer['group']}): {answer['error']}")
    key = answer["key"]
    if not isinstance(key, str | list):
        text = json.dumps(json.dumps(key))
        console.print(f"the key was read as JSON ({type(key).__name__}); to look up the string, write '{text}'")

"""What the verbs print for people: the same figures as the JSON, to be read in 80 columns."""

from __future__ import annotations

import json
from typing import Any

from millrace.cli.figures import count, megabytes, number_of, share, size
from millrace.cli.listing import Column, Hanging, Listing, plain_console, ranges, task_names
from millrace.errors import UnknownTopology

COUNTED = {"keys": "keys", "dirty": "unsaved"}  # what tasks say of themselves, if there are any to ask
PAIRS_SHOWN = 10


def of_topology(found: dict[str, Any], name: str | None) -> dict[str, Any]:
    """What was found, with no topology but this one; None leaves all of them."""
    if name is None:
        return found
    topologies = found["topologies"]
    named = topologies if isinstance(topologies, dict) else {topology["name"]: topology for topology in topologies}
    if name not in named:
        raise UnknownTopology(f"no topology named {name!r} is running; running: {', '.join(named) or 'none'}")
    return {**found, "topologies": {name: named[name]} if isinstance(topologies, dict) else [named[name]]}


def print_move(found: dict[str, Any]) -> None:
    console = plain_console()
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
    console = plain_console()
    if not found["changed"]:
        already = ", ".join(f"{number_of(n, 'task')} of {name}" for name, n in found["to"].items())
        console.print(f"{found['topology']} has {already} already")
        return
    for component, tasks in found["to"].items():
        shared = f", {_shares(found['key_groups'][component])}" if component in found["key_groups"] else ""
        console.print(f"{component} of {found['topology']}: {found['from'][component]} -> {number_of(tasks, 'task')} from the "
                      f"next batch on{shared}")


def _shares(owners: list[int]) -> str:
    """How many key groups each task owns."""
    counts = [owners.count(index) for index in sorted(set(owners))]
    return f"{min(counts)} key groups each" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)} key groups each"


def _key_groups(owners: list[int]) -> str:
    """How many key groups tasks own: those with as many are told of together."""
    by_share: dict[int, list[int]] = {}
    for task in sorted(set(owners)):
        by_share.setdefault(owners.count(task), []).append(task)
    return ", ".join(f"{many}{' each' if len(tasks) > 1 else ''} for [{ranges(tasks)}]"
                     for many, tasks in sorted(by_share.items(), reverse=True))


def print_plan(found: dict[str, Any]) -> None:
    console = plain_console()
    if not found["topologies"]:
        console.print("no topology is running")
    for number, (name, plan) in enumerate(found["topologies"].items()):
        if number:
            console.print()
        console.print(_placement(f"{name}: {plan['status']}, plan version {plan['version']}", plan["placement"], found))
        for component, owners in plan["key_groups"].items():
            console.print(Hanging(_key_groups(owners), f"  key groups of {component}: "))


def _placement(title: str, placement: dict[str, int], found: dict[str, Any]) -> Listing:
    hosted: dict[int, list[str]] = {int(slot): [] for slot in found["workers"]}
    for task, slot in placement.items():
        hosted.setdefault(slot, []).append(task)  # a worker that has just gone may still be in the plan
    nodes = {int(slot): where["node"] for slot, where in found["workers"].items()}
    agents = set(found["agents"].values())
    return Listing(
        title,
        Column("worker", [str(slot) for slot in hosted]),
        Column("node", [nodes.get(slot, "gone") + (" (agent)" if slot in agents else "") for slot in hosted], figures=False),
        Column("tasks", [task_names(tasks) or "none" for tasks in hosted.values()], figures=False))


def print_load(found: dict[str, Any], tasks: bool = False) -> None:
    console = plain_console()
    if not found["workers"]:
        console.print(f"nothing measured yet: a window lasts {found['window_seconds']:g} s")
        return
    listings = []
    for name, load in found["topologies"].items():
        listings += [_components_load(name, load["components"]), *([_tasks_load(load), _pairs(load)] if tasks else [])]
    for listing in [*listings, _workers_load(found["workers"])]:
        console.print(listing)
        console.print()
    console.print(_nodes_load(found["nodes"]))


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


def _tasks_load(load: dict[str, Any]) -> Listing:
    seconds, rows = max(load["window_seconds"], 1e-9), load["tasks"].values()
    return Listing(
        "",
        Column("task", list(load["tasks"]), figures=False),
        Column("executed/s", [count(row["executed"] / seconds) for row in rows]),
        Column("emitted/s", [count(row["emitted"] / seconds) for row in rows]),
        Column("busy", [share(row["busy_seconds"] / seconds) for row in rows]),
        Column("CPU MHz", [count(row["cpu_mhz"]) for row in rows]),
        Column("memory", [megabytes(row["memory_mb"]) for row in rows]),
        Column("queue", [count(row["queue_length"]) for row in rows]))


def _pairs(load: dict[str, Any]) -> Listing:
    seconds = max(load["window_seconds"], 1e-9)
    most = sorted(load["traffic"], key=lambda pair: -pair[2])[:PAIRS_SHOWN]
    return Listing(
        f"most traffic, {len(most)} of {number_of(len(load['traffic']), 'pair')} of tasks",
        Column("from", [source for source, _, _ in most], figures=False),
        Column("to", [target for _, target, _ in most], figures=False),
        Column("tuples/s", [count(tuples / seconds) for _, _, tuples in most]))


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


def _nodes_load(nodes: dict[str, Any]) -> Listing:
    rows = nodes.values()
    return Listing(
        "",
        Column("node", list(nodes), figures=False),
        Column("CPU MHz", [count(row["cpu_mhz"]) for row in rows]),
        Column("of", [count(row["capacity_mhz"]) for row in rows]),
        Column("used", [share(row["cpu_mhz"] / row["capacity_mhz"]) if row["capacity_mhz"] else "-" for row in rows]),
        Column("memory", [megabytes(row["memory_used_mb"]) for row in rows]),
        Column("of", [megabytes(row["memory_mb"]) for row in rows]))


def print_state(found: dict[str, Any], groups: bool) -> None:
    console = plain_console()
    console.print(f"checkpoints in {found['store']}", soft_wrap=True)
    for topology in found["topologies"]:
        console.print()
        if not topology["waves"]:
            console.print(f"{topology['name']} keeps no state and is not exactly-once: no waves")
            continue
        last = f"wave {topology['wave']} is committed" if topology["wave"] else "no wave is committed yet"
        given_up = f"{number_of(topology['given_up'], 'wave')} given up"
        console.print(Hanging(f"{topology['name']}: {last}, epoch {topology['epoch']}, {given_up}", style="bold"))
        if topology["trouble"]:
            console.print(Hanging(f"the last wave was given up: {topology['trouble']}", "  ", "yellow"))
        for component in topology["components"]:
            console.print()
            console.print(_groups_listing(component) if groups else _tasks_listing(component))


def _state_title(component: dict[str, Any]) -> str:
    return f"{component['name']}: {size(component['bytes'])} in {number_of(len(component['key_groups']), 'key group')}"


def _tasks_listing(component: dict[str, Any]) -> Listing:
    tasks: dict[int, list[dict[str, Any]]] = {}
    for group in component["key_groups"]:
        tasks.setdefault(group["task"], []).append(group)
    tasks = dict(sorted(tasks.items()))
    said = [component["tasks"].get(task, component["tasks"].get(str(task), {})) for task in tasks]
    newest = [max(own, key=lambda group: group["wave"]) for own in tasks.values()]
    held = {fragment["blob"]: fragment for fragment in component["fragments"]}
    counted = COUNTED if component["tasks"] else {}
    return Listing(
        _state_title(component),
        Column("task", [f"{component['name']}[{task}]" for task in tasks], figures=False),
        Column("groups", [str(len(own)) for own in tasks.values()]),
        *(Column(title, [_asked(now.get(what)) for now in said]) for what, title in counted.items()),
        Column("size", [size(sum(group["bytes"] for group in own)) for own in tasks.values()]),
        Column("wave", [str(group["wave"]) for group in newest]),
        Column("fragments at workers", [_fragments(held.get(group["blob"])) for group in newest], figures=False))


def _groups_listing(component: dict[str, Any]) -> Listing:
    groups, counted = component["key_groups"], COUNTED if component["tasks"] else {}
    return Listing(
        _state_title(component),
        Column("group", [str(group["group"]) for group in groups]),
        Column("task", [f"{component['name']}[{group['task']}]" for group in groups], figures=False),
        *(Column(title, [_asked(group.get(what)) for group in groups]) for what, title in counted.items()),
        Column("size", [size(group["bytes"]) for group in groups]),
        Column("pieces", [str(group["pieces"]) for group in groups]),
        Column("wave", [str(group["wave"]) for group in groups]))


def _asked(value: int | None) -> str:
    """A task that has not answered is no task without keys."""
    return "?" if value is None else count(value)


def _fragments(held: dict[str, Any] | None) -> str:
    if held is None:
        return "none"
    return f"any {held['raw']} of {held['raw'] + held['check']}: {ranges(held['workers'])}"


def print_value(found: dict[str, Any]) -> None:
    console = plain_console()
    if found["found"]:
        console.print(repr(found["value"]), soft_wrap=True)
        return
    console.print(f"{found['task']} (worker {found['worker']}, key group {found['group']}): {found['error']}")
    key = found["key"]
    if not isinstance(key, str | list):
        console.print(f"the key was read as JSON ({type(key).__name__}); for the text write '{json.dumps(json.dumps(key))}'")

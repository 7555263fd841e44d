"""`millrace rebalance`: the placement that a user wants, from a file or by a scheduler, and the progress towards it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace.cli.options import pairs
from millrace.control.migrations import record_of_request
from millrace.errors import MillraceError, UnknownName, UnknownTopology
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan
from millrace.schedulers.registry import make_scheduler
from millrace.schedulers.rules import check_result

LOOK_SECONDS = 0.2  # between two looks at a migration that is under way


def one_topology(named: str | None, running: Mapping[str, Any]) -> str:
    """The topology of that name, or the only one that runs."""
    if named is None and len(running) == 1:
        return next(iter(running))
    if named in running:
        return str(named)
    there = ", ".join(sorted(running)) or "none"
    if named is None:
        raise UnknownName(f"several topologies are running: name one of {there}" if running else "no topology is running")
    raise UnknownTopology(f"no topology named {named!r} is running; running: {there}")


def placement_in(path: str, topology: str, in_force: Mapping[str, Any]) -> dict[str, int]:
    """The worker of each task, from a file: an object of tasks and workers, or what `millrace plan --json` has printed.
    `in_force`: the topology's plan."""
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise MillraceError(f"--to {path}: the file cannot be read as JSON: {error}") from None
    if isinstance(data, Mapping) and isinstance(plans := data.get("topologies"), Mapping):
        if topology not in plans:
            raise UnknownTopology(f"--to {path}: there is no plan of {topology!r}; there are {', '.join(plans) or 'none'}")
        data = _placement_only(path, plans[topology], in_force)
    if not isinstance(data, Mapping) or not all(type(worker) is int for worker in data.values()):
        raise MillraceError(f"--to {path}: expected an object of tasks and workers, such as {{\"count[0]\": 1}}, or the output "
                            "of `millrace plan --json`")
    return dict(data)


def _placement_only(path: str, plan: Mapping[str, Any], in_force: Mapping[str, Any]) -> Any:
    """The placement of a plan, which must not differ from the one in force in anything else."""
    if plan.get("key_groups", {}) != in_force.get("key_groups", {}):
        raise MillraceError(f"--to {path}: its key groups have other owners than now, and rebalance moves only tasks. Move key "
                            "groups with `millrace regroup`")
    return plan.get("placement")


def plan_by(scheduler: str, situation: Situation, topology: str) -> Plan:
    """The plan of a scheduler, with its parameters after the name, whatever the plan gains."""
    name, *parameters = scheduler.split() or [""]
    result = check_result(situation, make_scheduler(name, pairs("--scheduler", parameters)).schedule(
        situation.graphs, situation.cluster, situation.load, situation.plan))
    if isinstance(result, CannotPlace):
        raise MillraceError(f"scheduler {name} found no plan: {result.reason}")
    plans = result.plans if isinstance(result, NewPlan) else situation.plan
    return plans.get(topology, situation.plan[topology])


def new_owners(situation: Situation, topology: str, plan: Plan) -> dict[str, dict[int, int]]:
    """The key groups that get another owner by the plan: component -> key group -> index of the task."""
    owners: dict[str, dict[int, int]] = {}
    for move in Plan.diff(situation.plan[topology], plan).key_groups:
        owners.setdefault(move.component, {})[move.key_group] = move.new
    graphs = {graph.name: graph for graph in situation.graphs}
    for component in owners:
        if fixed := graphs[topology].why_groups_fixed(component):
            raise MillraceError(f"the scheduler's plan gives key groups of {component!r} to other tasks: {fixed}")
    return owners


def wait_for(ask: Callable[..., Any], topology: str, strategy: str, known: Collection[int],
             console: Console) -> dict[str, Any] | None:
    """Show the progress of a migration until it is over; returns its record. None if it has none, because nothing moved.
    `known`: ids of the records before it."""
    with console.status("begins ...") as status:
        while True:
            under_way = [row["migration"] for row in ask("moves", topology=topology) if row["migration"] is not None]
            if not under_way:
                return record_of_request(ask("migrations", topology=topology), known, strategy)
            status.update(f"{under_way[0]['strategy']}: {under_way[0]['step']}, {under_way[0]['seconds']:.0f} s")
            time.sleep(LOOK_SECONDS)

"""`millrace scheduler`: which algorithm places the tasks, what it decided, and how the algorithms compare."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from millrace.cli.options import ClusterName, Json, pairs
from millrace.errors import MillraceError

app = typer.Typer(no_args_is_help=True, help="Choose the algorithm that places tasks while they run, and see what it decides.")
MOVES_SHOWN = 5
SET_SECONDS = 100.0  # a user's scheduler is imported and made in another process first


@app.command("list")
def list_schedulers(as_json: Json = False) -> None:
    """The schedulers there are, with their parameters."""
    from millrace.schedulers.parameters import described
    from millrace.schedulers.registry import SCHEDULERS, scheduler_class

    found: dict[str, dict[str, Any]] = {
        name: {"about": _first_sentence(scheduler_class(name)),
               "parameters": [{"name": key, "default": default, "about": about}
                              for key, default, about in described(scheduler_class(name))]} for name in SCHEDULERS}
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table("scheduler", "parameter", "default", "meaning", show_lines=False)
    for name, about in found.items():
        table.add_row(name, "", "", str(about["about"]), style="bold")
        for row in about["parameters"]:
            table.add_row("", row["name"], str(row["default"]), row["about"])
    Console().print(table)
    typer.echo("A scheduler of your own is named as module:Class; `off` leaves tasks where they are.")


@app.command("show")
def show(cluster: ClusterName = None, as_json: Json = False) -> None:
    """The scheduler in use, its parameters, and its last decision."""
    from millrace.master.desk import ask

    found = ask(cluster, "scheduler show")
    typer.echo(json.dumps(found)) if as_json else _print_shown(found)


@app.command("set")
def set_scheduler(
        name: Annotated[str, typer.Argument(help="A name from `scheduler list`, module:Class, or off.")],
        parameters: Annotated[list[str] | None, typer.Argument(help="KEY=VALUE, for example gamma=1.7.")] = None,
        period: Annotated[float | None, typer.Option(help="Seconds between schedules; 0: the scheduler's own.")] = None,
        cool_down: Annotated[float | None, typer.Option(help="Seconds without another plan after one was enacted.")] = None,
        min_gain: Annotated[float | None, typer.Option(help="Least share by which a plan must be better.")] = None,
        overload: Annotated[float | None, typer.Option(help="Share of the CPU from which it is asked at once.")] = None,
        time_limit: Annotated[float | None, typer.Option(help="Seconds that it may take.")] = None,
        dry_run: Annotated[bool | None, typer.Option("--dry-run/--act", help="Only advise, or act (the default).")] = None,
        estimator: Annotated[str | None, typer.Option(help="ewma, trimmed-mean, last, or module:Class.")] = None,
        estimator_set: Annotated[list[str] | None, typer.Option(help="Parameter of the estimator, KEY=VALUE.")] = None,
        cluster: ClusterName = None, as_json: Json = False) -> None:
    """Swap the scheduler, or change its parameters, while topologies run. What is not given stays as it is."""
    from millrace.master.desk import ask

    policy = {"period": period, "cool_down": cool_down, "min_gain": min_gain, "overload": overload, "time_limit": time_limit,
              "dry_run": dry_run}
    found = ask(cluster, "scheduler set", seconds=SET_SECONDS, name=name, parameters=pairs("parameter", parameters),
                policy={key: value for key, value in policy.items() if value is not None},
                estimator=estimator, estimator_parameters=pairs("estimator-set", estimator_set))
    typer.echo(json.dumps(found)) if as_json else _print_shown(found)


@app.command("history")
def history(limit: Annotated[int, typer.Option(help="Most decisions to show.", min=1, max=200)] = 20,
            cluster: ClusterName = None, as_json: Json = False) -> None:
    """What was decided, why, what was expected of it and what came of it."""
    from millrace.master.desk import ask

    found = ask(cluster, "scheduler history", limit=limit)
    if as_json:
        typer.echo(json.dumps({"decisions": found}))
        return
    for row in found:
        typer.echo(_told(row))
    if not found:
        typer.echo("nothing has been decided yet")


@app.command("compare")
def compare(load: Annotated[str | None, typer.Option(help="A file that `millrace load --save` wrote.")] = None,
            random: Annotated[int | None, typer.Option(help="Number of random instances.", min=1)] = None,
            seed: Annotated[int, typer.Option(help="Of the random instances.")] = 1,
            only: Annotated[list[str] | None, typer.Option(help="Only this scheduler; may be repeated.")] = None,
            as_json: Json = False) -> None:
    """Every scheduler on the same situation: traffic, nodes used, largest load, moves, time, ratio to the optimum."""
    from millrace.cli.comparing import compare as run

    if (load is None) == (random is None):
        raise MillraceError("say what to compare on: either --load FILE, which `millrace load --save FILE` writes, or "
                            "--random N")
    result = run(load, random, seed, only or [], Console(stderr=as_json))
    if as_json:
        typer.echo(json.dumps(result))


def _first_sentence(cls: type[Any]) -> str:
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def _print_shown(found: dict[str, Any]) -> None:
    given = ", ".join(f"{key}={value}" for key, value in found["parameters"].items())
    typer.echo(f"scheduler: {found['scheduler']}" + (f" ({given})" if given else ""))
    typer.echo("policy:    " + ", ".join(f"{key}={value}" for key, value in found["policy"].items()))
    estimator = found["estimator"]
    typer.echo(f"load:      windows of {found['window_seconds']:g} s, estimator {estimator['name']} "
               + ", ".join(f"{key}={value}" for key, value in estimator["parameters"].items()))
    last = found["last_decision"]
    if last is not None:
        typer.echo(f"last:      {last['outcome']} ({last['trigger']}): {last['reason']}")


def _told(row: dict[str, Any]) -> str:
    """One decision in a few lines."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at"]))
    again = f", {row['times']} times in a row" if row["times"] > 1 else ""
    lines = [f"{row['number']}  {when}  {row['scheduler']}, {row['trigger']}: {row['outcome']}{again}", f"    {row['reason']}"]
    if row["expected"]:
        lines.append(f"    expected: {_figures(row['expected']['before'])} -> {_figures(row['expected']['after'])}")
    if row["came_of"]:
        lines.append(f"    measured: {_figures(row['came_of'])}")
    if row["moved"]:
        more = f" and {len(row['moved']) - MOVES_SHOWN} more" if len(row["moved"]) > MOVES_SHOWN else ""
        lines.append("    moved: " + ", ".join(row["moved"][:MOVES_SHOWN]) + more)
    return "\n".join(lines)


def _figures(figures: dict[str, Any]) -> str:
    uneven = f", most loaded task of a keyed component {figures['skew']:.2f} times the mean" if figures.get("skew") else ""
    return (f"{figures['inter_node']:,.0f} tuples/s between nodes, {figures['nodes_used']} nodes, busiest worker "
            f"{figures['largest_worker_load']:.0%} of a core{uneven}")

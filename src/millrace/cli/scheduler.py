"""`millrace scheduler`: which algorithm places the tasks, what it decided, and how the algorithms compare."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Group

from millrace.cli.figures import count, number_of, share
from millrace.cli.listing import Hanging, plain_console
from millrace.cli.options import ClusterName, Json, Pairs, pairs
from millrace.errors import MillraceError

app = typer.Typer(no_args_is_help=True, help="Choose who places tasks while they run; see what was decided.")
MOVES_SHOWN = 5
SET_SECONDS = 100.0  # a user's scheduler is imported and made in another process first


@app.command("list")
def list_schedulers(
        name: Annotated[str | None, typer.Argument(metavar="NAME", help="Explain this one and its parameters.")] = None,
        as_json: Json = False) -> None:
    """The schedulers there are; with a NAME, what one does."""
    from millrace.schedulers.parameters import described
    from millrace.schedulers.registry import SCHEDULERS, scheduler_class

    found: dict[str, dict[str, Any]] = {
        name: {"about": _first_sentence(scheduler_class(name)),
               "parameters": [{"name": key, "default": default, "about": about}
                              for key, default, about in described(scheduler_class(name))]}
        for name in ([name] if name is not None else SCHEDULERS)}
    if as_json:
        typer.echo(json.dumps(found))
    elif name is not None:
        _print_explained(name, found[name])
    else:
        _print_list(found)


@app.command("show")
def show(cluster: ClusterName = None, as_json: Json = False) -> None:
    """The scheduler in use, its parameters, and its last decision."""
    from millrace.master.requests.client import ask

    found = ask(cluster, "scheduler show")
    typer.echo(json.dumps(found)) if as_json else _print_shown(found)


@app.command("set")
def set_scheduler(
        name: Annotated[str, typer.Argument(metavar="NAME", help="As in `millrace scheduler list`, module:Class for "
                                                                  "your own, or off.")],
        parameters: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Its parameters, for example "
                                                                                       "gamma=1.7.")] = None,
        period: Annotated[float | None, typer.Option(metavar="S", help="Seconds between schedules; 0: the "
                                                                              "scheduler's own.")] = None,
        cool_down: Annotated[float | None, typer.Option(metavar="S", help="Seconds without another plan after "
                                                                                 "one was enacted.")] = None,
        min_gain: Annotated[float | None, typer.Option(metavar="SHARE", help="Least share by which a plan must be "
                                                                                    "better, from 0 to 1.")] = None,
        overload: Annotated[float | None, typer.Option(metavar="SHARE", help="Share of the CPU from which it is asked "
                                                                                    "at once.")] = None,
        time_limit: Annotated[float | None, typer.Option(metavar="S", help="Seconds that it may take.")] = None,
        dry_run: Annotated[bool | None, typer.Option("--dry-run/--act", help="Only advise, or act (the default).")] = None,
        estimator: Annotated[str | None, typer.Option(metavar="NAME", help="ewma, trimmed-mean, last, or "
                                                                                    "module:Class.")] = None,
        estimator_set: Annotated[Pairs, typer.Option(metavar="KEY=VALUE", help="Parameter of the estimator; may be "
                                                                               "repeated.")] = None,
        cluster: ClusterName = None, as_json: Json = False) -> None:
    """Swap the scheduler, or change its parameters.

    While topologies run; what is not given stays as it is. For example: millrace scheduler set tstorm gamma=1.7
    """
    from millrace.master.requests.client import ask

    policy = {"period": period, "cool_down": cool_down, "min_gain": min_gain, "overload": overload, "time_limit": time_limit,
              "dry_run": dry_run}
    found = ask(cluster, "scheduler set", seconds=SET_SECONDS, name=name, parameters=pairs("parameter", parameters),
                policy={key: value for key, value in policy.items() if value is not None},
                estimator=estimator, estimator_parameters=pairs("estimator-set", estimator_set))
    typer.echo(json.dumps(found)) if as_json else _print_shown(found)


@app.command("history")
def history(limit: Annotated[int, typer.Option(metavar="N", help="Most decisions to show.", min=1, max=200)] = 20,
            cluster: ClusterName = None, as_json: Json = False) -> None:
    """What was decided and why, what was expected, what came of it."""
    from millrace.master.requests.client import ask

    found = ask(cluster, "scheduler history", limit=limit)
    if as_json:
        typer.echo(json.dumps({"decisions": found}))
        return
    console = plain_console()
    for row in found:
        console.print(Group(*_told(row)))
    if not found:
        console.print("nothing has been decided yet")


@app.command("compare")
def compare(load: Annotated[str | None, typer.Option(metavar="FILE", help="A file that `millrace load --save` wrote.")] = None,
            random: Annotated[int | None, typer.Option(metavar="N", help="Number of random situations.", min=1)] = None,
            seed: Annotated[int, typer.Option(metavar="N", help="Of the random situations.")] = 1,
            only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this scheduler; \"tstorm gamma=2\" "
                                                                                "with a parameter. May be repeated.")] = None,
            as_json: Json = False) -> None:
    """Every scheduler on the same situations, beside the optimum.

    For example: millrace load --save now.json; millrace scheduler compare --load now.json
    """
    from millrace.cli.comparing import compare as run

    if (load is None) == (random is None):
        raise MillraceError("say what to compare on: either --load FILE, which `millrace load --save FILE` writes, or "
                            "--random N")
    result = run(load, random, seed, only or [], plain_console(stderr=as_json))
    if as_json:
        typer.echo(json.dumps(result))


def _first_sentence(cls: type[Any]) -> str:
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def _print_list(found: dict[str, dict[str, Any]]) -> None:
    """A scheduler in a few lines: the first sentence about it, and its parameters with their defaults."""
    console = plain_console()
    for name, scheduler in found.items():
        console.print(Hanging(name, style="bold"))
        console.print(Hanging(scheduler["about"].partition(". ")[0].rstrip(".:"), "  "))
        console.print(Hanging(", ".join(f"{row['name']}={_set(row['default'])}" for row in scheduler["parameters"]), "  "))
    console.print(Hanging("`millrace scheduler list NAME` explains one and its parameters. A scheduler of your own is named as "
                          "module:Class; `off` leaves tasks where they are."))


def _print_explained(name: str, scheduler: dict[str, Any]) -> None:
    console = plain_console()
    console.print(Hanging(name, style="bold"))
    console.print(Hanging(scheduler["about"], "  "))
    for row in scheduler["parameters"]:
        console.print(Hanging(f"{row['name']}={_set(row['default'])}", "  ", "bold"))
        console.print(Hanging(row["about"], "    "))


def _set(value: Any) -> str:
    return "unset" if value is None else str(value)


def _print_shown(found: dict[str, Any]) -> None:
    given = _pairs(found["parameters"])
    estimator = f"{found['estimator']['name']} {_pairs(found['estimator']['parameters'])}"
    rows = {"scheduler": found["scheduler"] + (f" ({given})" if given else ""), "policy": _pairs(found["policy"]),
            "load": f"windows of {found['window_seconds']:g} s, estimator {estimator}"}
    last = found["last_decision"]
    if last is not None:
        rows["last"] = f"{last['outcome']} ({last['trigger']}): {last['reason']}"
    console = plain_console()
    for name, text in rows.items():
        console.print(Hanging(text, f"{name + ':':<11}"))


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={_set(value)}" for key, value in values.items())


def _told(row: dict[str, Any]) -> list[Hanging]:
    """One decision in a few lines."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at"]))
    again = f", {row['times']} times in a row" if row["times"] > 1 else ""
    lines = [Hanging(f"{row['number']}  {when}  {row['scheduler']}, {row['trigger']}: {row['outcome']}{again}", style="bold"),
             Hanging(row["reason"], "    ")]
    if row["expected"]:
        lines += [Hanging(_figures(row["expected"]["before"]), "    before:   "),
                  Hanging(_figures(row["expected"]["after"]), "    expected: ")]
    if row["came_of"]:
        lines.append(Hanging(_figures(row["came_of"]), "    measured: "))
    if row["moved"]:
        more = f" and {len(row['moved']) - MOVES_SHOWN} more" if len(row["moved"]) > MOVES_SHOWN else ""
        lines.append(Hanging(", ".join(row["moved"][:MOVES_SHOWN]) + more, "    moved:    "))
    return lines


def _figures(figures: dict[str, Any]) -> str:
    uneven = f", most loaded task of a keyed component {figures['skew']:.2f} times the mean" if figures.get("skew") else ""
    return (f"{count(figures['inter_node'])} tuples/s between nodes, {number_of(figures['nodes_used'], 'node')}, busiest "
            f"worker {share(figures['largest_worker_load'])} of a core{uneven}")

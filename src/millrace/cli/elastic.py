"""`millrace elastic`: choose the model by which the numbers of tasks follow the load, and show its decisions."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Group

from millrace.cli.figures import count, number_of
from millrace.cli.listing import Hanging, plain_console
from millrace.cli.options import ClusterName, Json, pairs

elastic_app = typer.Typer(no_args_is_help=True, help="Let the numbers of tasks follow the load; show the decisions.")
CHOOSE_SECONDS = 60.0  # a forecast needs a library that takes seconds to import
OneOfThem = Annotated[str | None, typer.Option("--topology", metavar="NAME", help="Name of the topology; needed only if "
                                                                                  "several are running.")]


@elastic_app.command("list")
def list_models(as_json: Json = False) -> None:
    """List the models, with goals and parameters."""
    from millrace.elastic.elastic_policy import ElasticPolicy
    from millrace.elastic.models import MODELS
    from millrace.schedulers.parameters import described

    def explained(cls: type[Any]) -> dict[str, Any]:
        return {"about": " ".join((cls.__doc__ or "").split()), "limits": list(getattr(cls, "GOALS", ())),
                "parameters": [{"name": key, "default": default, "about": about} for key, default, about in described(cls)]}

    models = {name: explained(cls) for name, cls in MODELS.items()}
    loop = explained(ElasticPolicy)
    if as_json:
        typer.echo(json.dumps({"models": models, "loop": loop}))
        return
    for name, model in {**models, "settings of the loop": loop}.items():
        _print_explained(name, model)


@elastic_app.command("set")
def set_model(model: Annotated[str, typer.Argument(metavar="MODEL", help="erstream, ds2 or predictive, see `millrace elastic "
                                                                         "list`.")],
              values: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="t_max_ms=T: fewest instances for "
                                                                 "that latency. c_max=N: least latency with N instances. "
                                                                 "Others are settings of the model and the loop.")] = None,
              topology: OneOfThem = None, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Scale a running topology by a model from now on.

    For example: millrace elastic set erstream t_max_ms=20
    """
    from millrace.master.requests.client import ask

    _show(ask(cluster, "elastic set", seconds=CHOOSE_SECONDS, topology=topology, model=model,
              values=pairs("parameter", values)), as_json)


@elastic_app.command("off")
def turn_off(topology: OneOfThem = None, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Leave the numbers of tasks of a topology as they are."""
    from millrace.master.requests.client import ask

    _show(ask(cluster, "elastic off", topology=topology), as_json)


@elastic_app.command("show")
def show_elastic(topology: OneOfThem = None, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Show model, goal, instances, and latency.

    Also why nothing changes just now.
    """
    from millrace.master.requests.client import ask

    _show(ask(cluster, "elastic show", topology=topology), as_json)


@elastic_app.command("history")
def decisions(limit: Annotated[int, typer.Option(metavar="N", help="Number of decisions to show.", min=1, max=200)] = 20,
              topology: OneOfThem = None, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Show past decisions, and what came of them."""
    from millrace.master.requests.client import ask

    rows = ask(cluster, "elastic history", limit=limit, topology=topology)
    if as_json:
        typer.echo(json.dumps({"decisions": rows}))
        return
    console = plain_console()
    for row in rows:
        console.print(Group(*_decision_lines(row)))
    if not rows:
        console.print("no decisions yet")


def _show(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(answer))
        return
    console = plain_console()
    for name, settings in answer["topologies"].items():
        console.print(Hanging(name, style="bold"))
        for label, text in _rows(settings).items():
            console.print(Hanging(text, f"  {label + ':':<11}"))
    if not answer["topologies"]:
        console.print("no topology is running")


def _rows(settings: dict[str, Any]) -> dict[str, str]:
    own = ", ".join(f"{key}={value:g}" for key, value in {**settings["limits"], **settings["parameters"]}.items())
    rows = {"model": settings["model"] + (f" ({own})" if own else "")}
    if settings["policy"]:
        rows["loop"] = ", ".join(f"{key}={value}" for key, value in settings["policy"].items())
    rows["instances"] = f"{settings['instances']} ({_counted(settings['par'])})"
    rows["latency"] = f"predicted {milliseconds(settings['predicted_ms'])}, measured {milliseconds(settings['measured_ms'])}"
    if settings["standing"]:
        rows["now"] = settings["standing"]
    last = settings["last_decision"]
    if last is not None:
        rows["last"] = f"decision {last['number']}, {last['direction'] or 'none'}, {last['outcome']}: {last['reason']}"
    return rows


def _counted(par: dict[str, int]) -> str:
    return ", ".join(f"{name}={tasks}" for name, tasks in par.items())


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


def _decision_lines(row: dict[str, Any]) -> list[Hanging]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at"]))
    what = " ".join(filter(None, [row["direction"], row["outcome"]]))
    lines = [Hanging(f"{row['number']}  {when}  {row['topology']}, {row['model']}: {what}", style="bold"),
             Hanging(row["reason"], "    ")]
    if row["par"] != row["before"]:
        changed = {name: tasks for name, tasks in row["par"].items() if tasks != row["before"].get(name)}
        lines.append(Hanging(", ".join(f"{name} {row['before'].get(name)} -> {tasks}" for name, tasks in changed.items())
                             + f"; {number_of(sum(row['par'].values()), 'instance')} for {count(row['offered_rate'])} tuples/s",
                             "    tasks:    "))
    if row["expected_ms"] is not None:
        helped = {True: ", it helped", False: ", it did not help", None: ""}[row["helped"]]
        lines.append(Hanging(f"was {milliseconds(row['was_ms'])}, expected {milliseconds(row['expected_ms'])}, measured "
                             f"{milliseconds(row['measured_ms'])}{helped}", "    latency:  "))
    return lines


def _print_explained(name: str, model: dict[str, Any]) -> None:
    console = plain_console()
    console.print(Hanging(name, style="bold"))
    console.print(Hanging(model["about"], "  "))
    if model["limits"]:
        console.print(Hanging(", ".join(model["limits"]), "  goal: "))
    for row in model["parameters"]:
        console.print(Hanging(f"{row['name']}={row['default']}", "  ", "bold"))
        console.print(Hanging(row["about"], "    "))

"""The commands of `millrace workers`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from millrace.cli.figures import number_of
from millrace.cli.listing import Column, Hanging, Listing, plain_console, task_names
from millrace.cli.options import ClusterName, Json

workers_app = typer.Typer(invoke_without_command=True, help="List, add, remove and restart workers while topologies run.")
LONGEST_SECONDS = 3600.0  # for a request; the master has limits of its own
WorkerNumber = Annotated[int, typer.Argument(metavar="SLOT", help="Number of the worker, as in `millrace workers`.")]


@workers_app.callback()
def workers(context: typer.Context, cluster: ClusterName = None, as_json: Json = False) -> None:
    """List, add, remove and restart workers while topologies run.

    Without a command: list them, with their processes and tasks.
    """
    if context.invoked_subcommand is not None:
        context.obj = cluster, as_json
        return
    from millrace.master.requests.client import ask

    answer = ask(cluster, "workers")
    typer.echo(json.dumps(answer)) if as_json else print_workers(answer)


@workers_app.command()
def add(context: typer.Context,
        count: Annotated[int, typer.Argument(metavar="N", help="Number of workers to add.")],
        cluster: ClusterName = None, as_json: Json = False) -> None:
    """Start more workers, on Spark executors with free cores.

    Executors that joined the Spark cluster meanwhile are used, too. Tasks move there when a scheduler or you move them.
    """
    answer = _ask(context, cluster, "add", count=count)
    _print(context, as_json, answer, f"added {', '.join(f'worker {slot}' for slot in answer['slots'])} in {_seconds(answer)}")


@workers_app.command()
def remove(context: typer.Context, slot: WorkerNumber, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Hand the tasks of a worker over to others, and end it.

    Its core is given back to Spark and, if no other worker is there, its executor to the cluster.
    """
    answer = _ask(context, cluster, "remove", slot=slot)
    executor = f"; executor {answer['executor']} was given back" if answer["executor_given_back"] else ""
    _print(context, as_json, answer, f"removed worker {slot} in {_seconds(answer)}{executor}")


@workers_app.command()
def restart(context: typer.Context, slot: WorkerNumber, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Restart a worker in a new process; its tasks go on elsewhere.

    They return when it is back. Tasks that cannot be moved wait for it.
    """
    answer = _ask(context, cluster, "restart", slot=slot)
    moved = "" if answer["old_node"] == answer["new_node"] else f" on {answer['new_node']}, before on {answer['old_node']}"
    _print(context, as_json, answer, f"restarted worker {slot}{moved} in {_seconds(answer)}: process {answer['new_pid']}, "
                                     f"before {answer['old_pid']}")


@workers_app.command()
def auto(context: typer.Context,
         limits: Annotated[str | None, typer.Argument(metavar="[MIN..MAX|off]", help="Fewest and most workers, for example "
                                                                                     "2..6; off: only by hand. Default: "
                                                                                     "show.")] = None,
         idle: Annotated[float | None, typer.Option(metavar="S", help="Seconds without tasks, or with little to do, after "
                                                                      "which a worker is given back.")] = None,
         cool_down: Annotated[float | None, typer.Option(metavar="S", help="Seconds between two changes of the "
                                                                           "number.")] = None,
         share: Annotated[float | None, typer.Option(metavar="SHARE", help="Highest load at which a worker may hand its tasks "
                                                                           "over to be given back; 0: only without "
                                                                           "tasks.")] = None,
         cluster: ClusterName = None, as_json: Json = False) -> None:
    """Let the number of workers follow the load, within limits.

    Spark is asked for workers when tasks have no slot or a scheduler cannot relieve an overload; workers with little to do are
    given back, with their executors. For example: millrace workers auto 2..6
    """
    values = {key: value for key, value in (("idle", idle), ("cool_down", cool_down), ("share", share)) if value is not None}
    verb, arguments = ("auto", {"limits": limits, "values": values}) if limits or values else ("auto show", {})
    answer = _ask(context, cluster, verb, **arguments)
    _print(context, as_json, answer, auto_text(answer))


def auto_text(answer: dict[str, Any]) -> str:
    """The settings of `workers auto` in a sentence, and what was decided last."""
    if not answer["on"]:
        return "the number of workers changes only by hand (millrace workers add, remove)"
    little = f"no tasks, or a load of at most {answer['share']:.0%}," if answer["share"] else "no tasks"
    now = answer["trouble"] or answer["under_way"] or answer["decision"]
    return (f"from {answer['min']} to {answer['max']} workers; given back after {answer['idle']:g} s with {little} and at the "
            f"earliest {answer['cool_down']:g} s after the last change. Now: {now}")


def _ask(context: typer.Context, cluster: str | None, verb: str, **arguments: Any) -> dict[str, Any]:
    from millrace.master.requests.client import ask

    answer: dict[str, Any] = ask(cluster or context.obj[0], f"workers {verb}", seconds=LONGEST_SECONDS, **arguments)
    return answer


def _print(context: typer.Context, as_json: bool, answer: dict[str, Any], text: str) -> None:
    if as_json or context.obj[1]:
        typer.echo(json.dumps(answer))
    else:
        plain_console().print(Hanging(text))


def _seconds(answer: dict[str, Any]) -> str:
    return f"{answer['ms'] / 1000:.1f} s"


def print_workers(rows: list[dict[str, Any]]) -> None:
    console = plain_console()
    if not rows:
        console.print("no workers")
        return
    console.print(Listing(
        number_of(len(rows), "worker"),
        Column("slot", [str(row["slot"]) for row in rows]),
        Column("node", [row["node"] for row in rows], figures=False),
        Column("executor", [row["executor"] for row in rows], figures=False),
        Column("process", [str(row["pid"] or "-") for row in rows]),
        Column("tasks", [_tasks(row) for row in rows], figures=False)))


def _tasks(row: dict[str, Any]) -> str:
    tasks = task_names(row["tasks"]) or "none"
    return f"{tasks} (is being {row['leaving']})" if row["leaving"] else tasks

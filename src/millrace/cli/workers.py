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

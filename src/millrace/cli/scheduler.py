"""`millrace scheduler`: choose the algorithm that places tasks, show its decisions, and compare algorithms."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Group

from millrace.cli.figures import count, number_of, share
from millrace.cli.listing import Hanging, plain_console
from millrace.cli.options import ClusterName, Json, Pairs, pairs, whole_range

app = typer.Typer(no_args_is_help=True, help="Choose the scheduler that places tasks; show its decisions.")
MOVES_SHOWN = 5
SET_SECONDS = 100.0  # a user's scheduler is first imported and constructed in another process


@app.command("list")
def list_schedulers(
        name: Annotated[str | None, typer.Argument(metavar="NAME", help="Explain this scheduler and its parameters.")] = None,
        as_json: Json = False) -> None:
    """List the schedulers; with a NAME, explain one."""
    from millrace.schedulers.parameters import described
    from millrace.schedulers.registry import SCHEDULERS, scheduler_class

    schedulers: dict[str, dict[str, Any]] = {
        name: {"about": _first_sentence(scheduler_class(name)),
               "parameters": [{"name": key, "default": default, "about": about}
                              for key, default, about in described(scheduler_class(name))]}
        for name in ([name] if name is not None else SCHEDULERS)}
    if as_json:
        typer.echo(json.dumps(schedulers))
    elif name is not None:
        _print_explained(name, schedulers[name])
    else:
        _print_list(schedulers)


@app.command("show")
def show(cluster: ClusterName = None, as_json: Json = False) -> None:
    """Show the scheduler, its parameters and its last decision."""
    from millrace.master.requests.client import ask

    answer = ask(cluster, "scheduler show")
    typer.echo(json.dumps(answer)) if as_json else _print_scheduler(answer)


@app.command("set")
def set_scheduler(
        name: Annotated[str, typer.Argument(metavar="NAME", help="Name from `millrace scheduler list`, module:Class "
                                                                  "for your own, or off.")],
        parameters: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Parameters of the scheduler, such as "
                                                                                       "gamma=1.7.")] = None,
        period: Annotated[float | None, typer.Option(metavar="S", help="Seconds between two runs of the scheduler; "
                                                                              "0: its own default.")] = None,
        cool_down: Annotated[float | None, typer.Option(metavar="S", help="Seconds to wait after a plan before "
                                                                                 "the next one.")] = None,
        min_gain: Annotated[float | None, typer.Option(metavar="SHARE", help="Minimum gain for a plan to be enacted, "
                                                                                    "from 0 to 1.")] = None,
        payback: Annotated[float | None, typer.Option(metavar="S", help="Seconds within which a plan must save more tuples "
                                                                        "between nodes than its moves delay.")] = None,
        overload: Annotated[float | None, typer.Option(metavar="SHARE", help="Load of a node or worker that counts as overload "
                                                                             "if it lasts, from 0 to 1.")] = None,
        load_period: Annotated[float | None, typer.Option(metavar="S", help="Seconds of a load window.")] = None,
        agent_poll: Annotated[float | None, typer.Option(metavar="S", help="Seconds between two polls of a node's agent for a "
                                                                           "newer plan.")] = None,
        worker_poll: Annotated[float | None, typer.Option(metavar="S", help="Seconds between two polls of a worker for a newer "
                                                                            "plan on its node.")] = None,
        time_limit: Annotated[float | None, typer.Option(metavar="S", help="Time limit of the scheduler, in seconds.")] = None,
        balance: Annotated[bool | None, typer.Option("--balance/--no-balance", help="Also give key groups to other tasks by "
                                                     "their load, where the scheduler changes nothing.")] = None,
        dry_run: Annotated[bool | None, typer.Option("--dry-run/--act", help="Only report plans, or carry them out "
                                                                               "(the default).")] = None,
        enact: Annotated[bool, typer.Option("--enact", help="Carry out its next plan whatever that gains, once.")] = False,
        strategy: Annotated[str | None, typer.Option(metavar="NAME", help="Strategy of migration for its plans, see `millrace "
                                                                          "rebalance --help`.")] = None,
        strategy_set: Annotated[Pairs, typer.Option(metavar="NAME=SECONDS", help="Parameter of the strategy; may be "
                                                                                 "repeated.")] = None,
        estimator: Annotated[str | None, typer.Option(metavar="NAME", help="ewma, trimmed-mean, last, or "
                                                                                    "module:Class.")] = None,
        estimator_set: Annotated[Pairs, typer.Option(metavar="KEY=VALUE", help="Parameter of the estimator; may be "
                                                                               "repeated.")] = None,
        cluster: ClusterName = None, as_json: Json = False) -> None:
    """Change the scheduler or its parameters, while topologies run.

    Omitted options keep their values. For example: millrace scheduler set tstorm gamma=1.7
    """
    from millrace.master.requests.client import ask

    policy = {"period": period, "cool_down": cool_down, "min_gain": min_gain, "payback": payback, "overload": overload,
              "load_period": load_period, "agent_poll": agent_poll, "worker_poll": worker_poll,
              "time_limit": time_limit, "balance": balance, "dry_run": dry_run, "strategy": strategy,
              "strategy_parameters": pairs("--strategy-set", strategy_set) or None}
    answer = ask(cluster, "scheduler set", seconds=SET_SECONDS, name=name, parameters=pairs("parameter", parameters),
                 policy={key: value for key, value in policy.items() if value is not None},
                 estimator=estimator, estimator_parameters=pairs("--estimator-set", estimator_set), enact=enact)
    typer.echo(json.dumps(answer)) if as_json else _print_scheduler(answer)


@app.command("history")
def history(limit: Annotated[int, typer.Option(metavar="N", help="Number of decisions to show.", min=1, max=200)] = 20,
            cluster: ClusterName = None, as_json: Json = False) -> None:
    """Show past decisions: reason, expected and measured result."""
    from millrace.master.requests.client import ask

    decisions = ask(cluster, "scheduler history", limit=limit)
    if as_json:
        typer.echo(json.dumps({"decisions": decisions}))
        return
    console = plain_console()
    for row in decisions:
        console.print(Group(*_decision_lines(row)))
    if not decisions:
        console.print("no decisions yet")


@app.command("compare")
def compare(load: Annotated[list[str] | None, typer.Option(metavar="FILE", help="File written by `millrace load --save`; may "
                                                                               "be repeated.")] = None,
            history: Annotated[str | None, typer.Option(metavar="FILE", help="Windows of a real run from this history: a "
                                                                             "SQLite file, or the url of a database.")] = None,
            cluster: Annotated[str | None, typer.Option(metavar="NAME", help="Cluster in the history; needed only if it has "
                                                                             "several.")] = None,
            random: Annotated[int | None, typer.Option(metavar="N", help="Number of random situations.", min=1)] = None,
            seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random situations.")] = 1,
            shape: Annotated[str | None, typer.Option(metavar="NAME", help="Shape of random topologies: layered, chain, "
                                                                           "diamond, star or all-to-all; default: "
                                                                           "all.")] = None,
            tasks: Annotated[str | None, typer.Option(metavar="N-M", help="Tasks of a random situation; default: 4-12, and in "
                                                                          "a fifth of them 17-40.")] = None,
            nodes: Annotated[str | None, typer.Option(metavar="N-M", help="Its nodes; default: 2-4, and in that fifth "
                                                                          "4-8.")] = None,
            cores: Annotated[int | None, typer.Option(metavar="N", help="Cores of its nodes, of which a worker uses one; "
                                                                        "default: 1, 2 or 4.", min=1)] = None,
            pinned: Annotated[float, typer.Option(metavar="SHARE", help="Share of its topologies whose spouts cannot move.",
                                                  min=0, max=1)] = 0.0,
            only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this scheduler; \"tstorm gamma=2\" "
                                                                                "with a parameter. May be repeated.")] = None,
            as_json: Json = False) -> None:
    """Compare all schedulers with each other and with the optimum.

    For example: millrace load --save now.json; millrace scheduler compare --load now.json
    """
    from millrace.cli.comparing import Situations
    from millrace.cli.comparing import compare as run

    result = run(Situations(tuple(load or ()), history, cluster, random, seed, shape,
                            whole_range("--tasks", tasks) if tasks is not None else None,
                            whole_range("--nodes", nodes) if nodes is not None else None, cores, pinned),
                 only or [], plain_console(stderr=as_json))
    if as_json:
        typer.echo(json.dumps(result))


def _first_sentence(cls: type[Any]) -> str:
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def _print_list(schedulers: dict[str, dict[str, Any]]) -> None:
    """A few lines per scheduler: the first sentence about it, and its parameters with their defaults."""
    console = plain_console()
    for name, scheduler in schedulers.items():
        console.print(Hanging(name, style="bold"))
        console.print(Hanging(scheduler["about"].partition(". ")[0].rstrip(".:"), "  "))
        console.print(Hanging(", ".join(f"{row['name']}={_set(row['default'])}" for row in scheduler["parameters"]), "  "))
    console.print(Hanging("`millrace scheduler list NAME` explains one scheduler. Name your own as module:Class; `off` leaves "
                          "tasks where they are."))


def _print_explained(name: str, scheduler: dict[str, Any]) -> None:
    console = plain_console()
    console.print(Hanging(name, style="bold"))
    console.print(Hanging(scheduler["about"], "  "))
    for row in scheduler["parameters"]:
        console.print(Hanging(f"{row['name']}={_set(row['default'])}", "  ", "bold"))
        console.print(Hanging(row["about"], "    "))


def _set(value: Any) -> str:
    return "unset" if value is None else str(value)


def _print_scheduler(answer: dict[str, Any]) -> None:
    parameters = _pairs(answer["parameters"])
    estimator = f"{answer['estimator']['name']} {_pairs(answer['estimator']['parameters'])}"
    policy = dict(answer["policy"])
    polls = f"agents every {policy.pop('agent_poll'):g} s, workers every {policy.pop('worker_poll'):g} s"
    rows = {"scheduler": answer["scheduler"] + (f" ({parameters})" if parameters else ""), "policy": _policy(policy),
            "polls": polls, "load": f"windows of {answer['window_seconds']:g} s, estimator {estimator}"}
    if answer["enacts_next"]:
        rows["next"] = f"its next plan is carried out whatever it gains, within {answer['window_seconds']:g} s"
    last = answer["last_decision"]
    if last is not None:
        rows["last"] = f"{last['outcome']} ({last['trigger']}): {last['reason']}"
    console = plain_console()
    for name, text in rows.items():
        console.print(Hanging(text, f"{name + ':':<11}"))


def _policy(policy: dict[str, Any]) -> str:
    shown = dict(policy)
    parameters = _pairs(shown.pop("strategy_parameters"))
    if parameters:
        shown["strategy"] += f" ({parameters})"
    return _pairs(shown)


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={_set(value)}" for key, value in values.items())


def _decision_lines(row: dict[str, Any]) -> list[Hanging]:
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

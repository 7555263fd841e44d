"""The command `millrace simulate` and its options; the work is done in cli/simulating.py."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from millrace.cli.listing import plain_console
from millrace.cli.options import Json
from millrace.errors import BadParameter

PATTERN = "sine peak=1.5 period=86400"


# Options that mean nothing beside, or without, another one.
BESIDE_HISTORY = ("nodes", "tasks", "pattern", "walk", "keys")
BESIDE_SITUATION = ("nodes", "tasks")


def simulate(
        context: typer.Context,
        nodes: Annotated[int, typer.Option(
            metavar="N", min=1, max=100_000, help="Nodes of the cluster, with four cores each.")] = 10,
        tasks: Annotated[int | None, typer.Option(
            metavar="N", min=2, max=1_000_000, help="Tasks of all topologies; default: ten for each node.")] = None,
        hours: Annotated[float | None, typer.Option(
            metavar="H", min=0.001, help="Hours to simulate; default: 24, or the length of the history.")] = None,
        scheduler: Annotated[list[str] | None, typer.Option(
            metavar="NAME", help="Scheduler, with parameters as in \"tstorm gamma=2\"; may be repeated. Default: even and "
                                 "tstorm.")] = None,
        pattern: Annotated[str, typer.Option(
            metavar="PATTERN", help="Load over time, relative to that of the situation: constant, step, ramp, sine or burst "
                                    "with parameters, or trace FILE.")] = PATTERN,
        walk: Annotated[float, typer.Option(
            metavar="SHARE", min=0, max=3, help="Random walk of the rate of each topology, as a standard deviation.")] = 0.1,
        keys: Annotated[float, typer.Option(
            metavar="SHARE", min=0, max=3, help="Random walk of the frequency of the keys of each task.")] = 0.3,
        history: Annotated[str | None, typer.Option(
            metavar="FILE", help="Replay the load of a real run from this history: a SQLite file, or the url of a "
                                 "database.")] = None,
        cluster: Annotated[str | None, typer.Option(
            metavar="NAME", help="Cluster in the history; needed only if it has several.")] = None,
        situation: Annotated[str | None, typer.Option(
            metavar="FILE", help="Simulate the topologies and cluster of this file, written by `millrace load "
                                 "--save`.")] = None,
        links: Annotated[str | None, typer.Option(
            metavar="FILE", help="Costs of links between the nodes, in the format of cluster.links.file; the nodes of a random "
                                 "cluster are n0000, n0001 and so on.")] = None,
        link_capacity: Annotated[float | None, typer.Option(
            metavar="BYTES", min=1, help="Bytes per second that a node can send, and receive; tuples of unknown size have 100. "
                                         "Default: no limit.")] = None,
        state: Annotated[float, typer.Option(
            metavar="SHARE", min=0, max=1, help="State of each task that gets its tuples by key, as a share of its "
                                                "memory.")] = 0.01,
        failures_per_hour: Annotated[float, typer.Option(
            "--failures", metavar="N", min=0, help="Nodes that fail in an hour, for ten minutes on average.")] = 0.0,
        away: Annotated[list[str] | None, typer.Option(
            metavar="NODE=FROM-UNTIL", help="Hours in which a node is away; may be repeated.")] = None,
        window: Annotated[float | None, typer.Option(
            metavar="S", min=1, help="Seconds of a load window; default: 20, and 60 for more than 1,000 tasks.")] = None,
        period: Annotated[float | None, typer.Option(
            metavar="S", min=1, help="Seconds between two runs of a scheduler; default: its own.")] = None,
        cool_down: Annotated[float | None, typer.Option(
            metavar="S", min=0, help="Seconds to wait after a plan before the next one; default: the scheduler's own.")] = None,
        min_gain: Annotated[float | None, typer.Option(
            metavar="SHARE", min=0, max=1, help="Minimum gain for a plan to be enacted; default: 0.02, or the scheduler's "
                                                "own.")] = None,
        payback: Annotated[float | None, typer.Option(
            metavar="S", min=0, help="Seconds within which a plan must save more tuples between nodes than its moves delay; "
                                     "default: 300.")] = None,
        overload: Annotated[float | None, typer.Option(
            metavar="SHARE", min=0, help="Load of a node or worker that counts as overload if it lasts; default: 0.05 above "
                                         "what the scheduler fills.")] = None,
        estimator: Annotated[str | None, typer.Option(
            metavar="NAME", help="Estimator of loads for all schedulers, with parameters as in \"ewma a=0.3\"; default: each "
                                 "scheduler's own.")] = None,
        seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of everything random.")] = 1,
        plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw the runs over time, as SVG or PNG.")] = None,
        as_json: Json = False) -> None:
    """Simulate schedulers on a cluster, hours in seconds.

    The same schedulers, thresholds and estimators as in a live cluster act on a model of its nodes, links and load. For
    example: millrace simulate --nodes 100 --scheduler even --scheduler tstorm --failures 2
    """
    from millrace.cli.simulating import SimulateOptions, run

    _refuse_unused(context, history, situation)
    policy = {"period": period, "cool_down": cool_down, "min_gain": min_gain, "payback": payback, "overload": overload}
    asked = SimulateOptions(
        nodes=nodes, tasks=tasks, hours=hours, schedulers=tuple(scheduler or ()), pattern=pattern, walk=walk, keys=keys,
        history=history, cluster=cluster, situation=situation, links=links, link_capacity=link_capacity, state=state,
        failures=failures_per_hour, away=tuple(away or ()), window=window, estimator=estimator, seed=seed, plot=plot,
        policy={name: value for name, value in policy.items() if value is not None})
    result = run(asked, plain_console(stderr=as_json))
    if as_json:
        typer.echo(json.dumps(result))


def _refuse_unused(context: typer.Context, history: str | None, situation: str | None) -> None:
    """Refuse options that would change nothing: their user expects that they do."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    for file, names, instead in ((history, BESIDE_HISTORY, "--history: the load is that of the recorded run, on its nodes"),
                                 (situation, BESIDE_SITUATION, "--situation: the topologies and nodes are those of the file")):
        if file is not None and (unused := [f"--{name}" for name in names if name in given]):
            raise BadParameter(f"{', '.join(unused)} cannot be given with {instead}. Leave out one of them")
    if "cluster" in given and history is None:
        raise BadParameter("--cluster names a cluster in a history: give --history FILE, too")

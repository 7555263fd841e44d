"""The command `millrace simulate` and its options; the work is done in cli/simulating.py."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from millrace.cli.listing import plain_console
from millrace.cli.options import Json

PATTERN = "sine peak=1.5 period=86400"


def simulate(
        nodes: Annotated[int, typer.Option(metavar="N", help="Nodes of the cluster, with four cores each.", min=1,
                                           max=100_000)] = 10,
        tasks: Annotated[int | None, typer.Option(metavar="N", help="Tasks of all topologies; default: ten for each node.",
                                                  min=2, max=1_000_000)] = None,
        hours: Annotated[float | None, typer.Option(metavar="H", help="Hours to simulate; default: 24, or the length of the "
                                                                      "history.", min=0.001)] = None,
        scheduler: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Scheduler, with parameters as in \"tstorm "
                                                            "gamma=2\"; may be repeated. Default: even and tstorm.")] = None,
        pattern: Annotated[str, typer.Option(metavar="PATTERN", help="Load over time, relative to that of the situation: "
                                             "constant, step, ramp, sine or burst with parameters, or trace FILE.")] = PATTERN,
        walk: Annotated[float, typer.Option(metavar="SHARE", help="Random walk of the rate of each topology, as a standard "
                                                                  "deviation.", min=0, max=3)] = 0.1,
        keys: Annotated[float, typer.Option(metavar="SHARE", help="Random walk of the frequency of the keys of each task.",
                                            min=0, max=3)] = 0.3,
        history: Annotated[str | None, typer.Option(metavar="FILE", help="Replay the load of a real run from this history: a "
                                                                         "SQLite file, or the url of a database.")] = None,
        cluster: Annotated[str | None, typer.Option(metavar="NAME", help="Cluster in the history; needed only if it has "
                                                                         "several.")] = None,
        situation: Annotated[str | None, typer.Option(metavar="FILE", help="Simulate the topologies and cluster of this file, "
                                                                           "written by `millrace load --save`.")] = None,
        failures_per_hour: Annotated[float, typer.Option("--failures", metavar="N", help="Nodes that fail in an hour, for ten "
                                                                                         "minutes on average.", min=0)] = 0.0,
        away: Annotated[list[str] | None, typer.Option(metavar="NODE=FROM-UNTIL", help="Hours in which a node is away; may be "
                                                                                       "repeated.")] = None,
        window: Annotated[float | None, typer.Option(metavar="S", help="Seconds of a load window; default: 20, and 60 for more "
                                                                       "than 1,000 tasks.", min=1)] = None,
        period: Annotated[float | None, typer.Option(metavar="S", help="Seconds between two runs of a scheduler; default: its "
                                                                       "own, and 600 above 1,000 tasks.", min=1)] = None,
        seed: Annotated[int, typer.Option(metavar="N", help="Seed of everything random.", min=0)] = 1,
        plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw the runs over time, as SVG or PNG.")] = None,
        as_json: Json = False) -> None:
    """Simulate schedulers on a cluster, hours in seconds.

    The same schedulers, thresholds and estimators as in a live cluster act on a model of its nodes, links and load. For
    example: millrace simulate --nodes 100 --scheduler even --scheduler tstorm --failures 2
    """
    from millrace.cli.simulating import SimulateOptions, run

    asked = SimulateOptions(nodes, tasks, hours, tuple(scheduler or ()), pattern, walk, keys, history, cluster, situation,
                  failures_per_hour, tuple(away or ()), window, period, seed, plot)
    result = run(asked, plain_console(stderr=as_json))
    if as_json:
        typer.echo(json.dumps(result))

"""The commands of `millrace bench`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from millrace.cli.options import Json
from millrace.errors import MillraceError

bench_app = typer.Typer(no_args_is_help=True, help="Measure Millrace, and other engines beside it.")


@bench_app.command("wordcount")
def bench_wordcount(seconds: Annotated[float, typer.Option(help="Length of each measured window.", min=1)] = 3,
                    others: Annotated[bool, typer.Option(help="Measure the other engines too.")] = True,
                    quick: Annotated[bool, typer.Option(help="Little input, to see that it runs.")] = False,
                    only: Annotated[list[str] | None, typer.Option(metavar="ROW", help="A row, such as process; may be "
                                                                   "repeated. No page shows such a run.")] = None,
                    as_json: Json = False) -> None:
    """Word Count on two cores, beside other engines.

    Words per second and latency, all on the same input.
    """
    from millrace.bench.wordcount import run_wordcount

    result = run_wordcount(seconds, others, live=not as_json, quick=quick, only=only or ())
    if as_json:
        typer.echo(json.dumps(result))
    if result["failed"]:
        raise MillraceError(f"these rows have no figure: {', '.join(result['failed'])}; the result has their errors")


@bench_app.command("guard")
def bench_guard(keep: Annotated[bool, typer.Option(help="Keep the figures of this run as those to compare with.")] = False,
                as_json: Json = False) -> None:
    """Count instructions per tuple; compare with earlier ones.

    Step by step, and a word count in one process. Fails if a step needs 5 % more than in docs/guard.json.
    """
    from millrace.bench.guard import run_guard

    result = run_guard(keep, live=not as_json)
    if as_json:
        typer.echo(json.dumps(result))
    if result["slower"]:
        raise MillraceError(f"these steps cost more than before: {', '.join(result['slower'])}")


@bench_app.command("memory")
def bench_memory(minutes: Annotated[float, typer.Option(help="Minutes to run.", min=0.1)] = 10, as_json: Json = False) -> None:
    """Memory while a bolt is slower than its spout: must stay flat."""
    from millrace.bench.memory import run_memory

    result = run_memory(minutes, live=not as_json)
    if as_json:
        typer.echo(json.dumps(result))


@bench_app.command("scheduler")
def bench_scheduler(random: Annotated[int, typer.Option(help="Random situations to compare with the optimum; 0: none.",
                                                        min=0)] = 200,
                    hours: Annotated[float, typer.Option(metavar="H", help="Hours to simulate on 1,000 nodes with 10,000 "
                                                                           "tasks; 0: none.", min=0)] = 24,
                    as_json: Json = False) -> None:
    """Measure the time to plan, and plans against the optimum.

    Then the time that a large simulation takes.
    """
    from millrace.bench.scheduler import run_scheduler_bench

    result = run_scheduler_bench(random, hours, live=not as_json)
    if as_json:
        typer.echo(json.dumps(result))


@bench_app.command("simulation")
def bench_simulation(save: Annotated[str | None, typer.Option(metavar="FILE", help="Keep the record of the real runs, as plain "
                                                                                   "data.")] = None,
                     as_json: Json = False) -> None:
    """Run schedulers on Spark and in a simulation, side by side.

    Traffic between nodes, as measured, predicted and simulated.
    """
    from millrace.bench.simulation import run_simulation_bench

    result = run_simulation_bench(save, live=not as_json)
    if as_json:
        typer.echo(json.dumps(result))


@bench_app.command("state")
def bench_state(quick: Annotated[bool, typer.Option(help="Small sizes only.")] = False, as_json: Json = False) -> None:
    """Erasure coding, restoring state, and the cost of waves.

    State is restored from fragments, from Redis and from a directory.
    """
    from millrace.bench.state import run_state_bench

    result = run_state_bench(live=not as_json, quick=quick)
    if as_json:
        typer.echo(json.dumps(result))


@bench_app.command("faults")
def bench_faults(minutes: Annotated[float, typer.Option(help="Minutes of faults, in all.", min=0.1)] = 5,
                 seed: Annotated[list[int] | None, typer.Option(metavar="N", help="Seed of a plan of faults; may be repeated: "
                                                                                  "each has an equal share of the minutes. "
                                                                                  "Unset: 1.")] = None,
                 guarantee: Annotated[str, typer.Option(metavar="NAME", help="exactly-once or "
                                                                             "at-least-once.")] = "exactly-once",
                 engine: Annotated[str, typer.Option(metavar="NAME", help="resident or microbatch.")] = "resident",
                 as_json: Json = False) -> None:
    """Break a word count and its driver; check every word."""
    from millrace.bench.faults.run import broken_promises, run_faults

    result = run_faults(minutes, seed or [1], guarantee, engine, live=not as_json)
    if as_json:
        typer.echo(json.dumps(result))
    if broken := broken_promises(result):
        raise MillraceError(f"{guarantee} was not kept: {broken}")


@bench_app.command("handover")
def bench_handover(seconds: Annotated[float, typer.Option(help="Seconds measured before each move.", min=1)] = 5,
                   tasks: Annotated[list[int] | None, typer.Option(metavar="N", help="Tasks that move in one plan; may be "
                                                                                     "repeated. Unset: 1 and 16.")] = None,
                   state_mb: Annotated[list[int] | None, typer.Option(metavar="N", help="MB of keyed state of the moved tasks "
                                                                                        "in all, 0 for stateless ones; may be "
                                                                                        "repeated. Unset: 0, 1, 10 and "
                                                                                        "100.")] = None,
                   quick: Annotated[bool, typer.Option(help="Small sizes, to see that it runs.")] = False,
                   as_json: Json = False) -> None:
    """Move tasks of a word count under load; check every word.

    By hand-over and by a roll-back, with a source that never slows down.
    """
    from millrace.bench.handover.run import QUICK_STATE_MB, QUICK_TASKS, STATE_MB, TASKS, faulty_runs, run_handover

    result = run_handover(seconds, tasks or (QUICK_TASKS if quick else TASKS),
                          state_mb or (QUICK_STATE_MB if quick else STATE_MB), live=not as_json, quick=quick)
    if as_json:
        typer.echo(json.dumps(result))
    if faulty := faulty_runs(result):
        raise MillraceError(f"not every run was exact: {faulty}")


@bench_app.command("migration")
def bench_migration(strategies: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Strategies to measure, "
                                                                         "with commas between them: handover, rollback, storm, "
                                                                         "'storm*' (in quotes: shells expand it), dsm, dcr, "
                                                                         "ccr, tstorm, nstorm, nstorm+, layered; may be "
                                                                         "repeated. Unset: those of each workload's paper, "
                                                                         "and others beside them.")] = None,
                    workloads: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Workloads, with commas between "
                                                                        "them: linear, diamond, star, traffic, grid, linear50 "
                                                                        "(with -in or -out for one direction), wordcount, "
                                                                        "topn, logstream, notes; may be repeated.")] = None,
                    time_scale: Annotated[float | None, typer.Option(metavar="X", help="Multiplies all delays of the papers; "
                                                                     "0.02 to 10. Unset: 0.1, or 0.05 with --quick.")] = None,
                    quick: Annotated[bool, typer.Option(help="Few runs, to see that it works.")] = False,
                    report: Annotated[str | None, typer.Option(metavar="DIR", help="Write the tables as Markdown, with "
                                                               "a figure of each.")] = None,
                    as_json: Json = False) -> None:
    """Migrate by every published strategy; check every row.

    On the workloads of the papers, with their figures beside ours.
    """
    from millrace.bench.migration.run import faulty_migrations, run_migration

    result = run_migration(split_names(strategies), split_names(workloads), time_scale, quick, live=not as_json, report=report)
    if as_json:
        typer.echo(json.dumps(result))
    if wrong := faulty_migrations(result):
        raise MillraceError(f"not every run was exact: {wrong}")


@bench_app.command("elastic")
def bench_elastic(seconds: Annotated[float, typer.Option(help="Seconds watched after the step; the other parts are in "
                                                              "proportion to it.", min=5)] = 120,
                  t_max_ms: Annotated[float, typer.Option(metavar="MS", help="The latency that the elastic loop is to keep, on "
                                                                             "average.", min=1)] = 300,
                  model: Annotated[str | None, typer.Option(metavar="NAME", help="Model of the elastic loop. Unset: erstream "
                                                                                 "for the step, predictive for the sine.")
                                   ] = None,
                  only: Annotated[list[str] | None, typer.Option(metavar="PART", help="step, sine, rescale or others; may be "
                                                                                       "repeated. Unset: all.")] = None,
                  quick: Annotated[bool, typer.Option(help="Short parts, to see that it runs.")] = False,
                  as_json: Json = False) -> None:
    """Triple the load of a topology, let it swing; check every tuple.

    The elastic loop changes the parallelism. Then changes by hand, and other engines beside them.
    """
    from millrace.bench.elastic.run import ELASTIC_PARTS, QUICK_SECONDS, faulty_parts, run_elastic

    result = run_elastic(QUICK_SECONDS if quick else seconds, t_max_ms, model, only or ELASTIC_PARTS, live=not as_json,
                         quick=quick)
    if as_json:
        typer.echo(json.dumps(result))
    if faulty := faulty_parts(result):
        raise MillraceError(f"not every run was exact, or has figures: {faulty}")


def split_names(values: list[str] | None) -> list[str]:
    """The names of a repeated option, of which each value may have several between commas."""
    return [name for value in values or [] for name in value.replace(",", " ").split()]


@bench_app.command("engines")
def bench_engines(quick: Annotated[bool, typer.Option(help="Small sizes, to see that it runs.")] = False,
                  only: Annotated[list[str] | None, typer.Option(metavar="PART", help="words, rescale or skew; may be "
                                                                                       "repeated. Unset: all.")] = None,
                  as_json: Json = False) -> None:
    """Word Count on both engines and on Structured Streaming.

    Then rescaling and skewed keys on the microbatch engine.
    """
    from millrace.bench.engines import PARTS, run_engines

    result = run_engines(live=not as_json, quick=quick, parts=only or PARTS)
    if as_json:
        typer.echo(json.dumps(result))


@bench_app.command("replanning")
def bench_replanning(seconds: Annotated[float, typer.Option(help="Length of each part.", min=3)] = 10,
                     rate: Annotated[float, typer.Option(help="Lines per second; each has ten words.", min=1)] = 800,
                     as_json: Json = False) -> None:
    """Measure traffic between nodes while schedulers are swapped.

    OTD and others, on a running Word Count.
    """
    from millrace.bench.replanning import run_replanning

    result = run_replanning(seconds, rate, live=not as_json)
    if as_json:
        typer.echo(json.dumps(result))


@bench_app.command("page")
def bench_page(results: Annotated[list[str] | None, typer.Argument(metavar="[RESULT]...", help="Unset: the newest of each "
                                                                                             "benchmark.")] = None) -> None:
    """Write figures into docs/BENCHMARKS.md and README.md."""
    from millrace.bench.page import run_page

    typer.echo(f"updated the figures of {', '.join(run_page(results or []))} in docs/BENCHMARKS.md and README.md")

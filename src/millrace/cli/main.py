"""Every verb of `millrace`, each one short: the work is done elsewhere."""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Annotated, Any

import typer

from millrace.cli.options import ClusterName, Json, OneTopology, Pairs, TopologyName, going_on, json_or_text, pairs
from millrace.cli.scheduler import app as scheduler_app
from millrace.errors import MillraceError

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
                  help="Storm-style stream topologies on Spark, managed while they run.")
bench_app = typer.Typer(no_args_is_help=True, help="Measure Millrace, and other engines beside it.")
app.add_typer(bench_app, name="bench")
app.add_typer(scheduler_app, name="scheduler")


@app.callback()
def common(verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the log.")] = False) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.ERROR, stream=sys.stderr,
                        format="%(asctime)s %(name)s: %(message)s")
    # Py4J logs to the root itself, with a stack trace, what it then raises: as when Ctrl-C comes in the middle of a call.
    logging.getLogger().addFilter(lambda record: not record.exc_info)


@app.command()
def demo(seconds: Annotated[float, typer.Option(help="How long the stream runs.", min=3)] = 15,
         rate: Annotated[float, typer.Option(help="Lines a second; each has ten words.", min=1)] = 5000,
         workers: Annotated[int, typer.Option(help="Workers on the embedded Spark.", min=2)] = 3,
         as_json: Json = False) -> None:
    """Word Count on an embedded Spark; a worker is killed on the way.

    What went in is held against what came out: nothing may be lost.
    """
    from millrace.cli.demo import run_demo

    result = run_demo(seconds, rate, workers, live=not as_json)
    if as_json:
        typer.echo(json.dumps(result))
    if result["lost"] or result["wrong"]:
        raise MillraceError(f"{result['lost']} words were lost and {result['wrong']} are wrong: that must never happen")


@app.command()
def run(topology: Annotated[str, typer.Argument(metavar="MODULE:TOPOLOGY", help="For example examples.first:WordCount; the "
                                                "module may be in the current directory.")],
        engine: Annotated[str, typer.Option(metavar="NAME", help="resident: long-lived workers, milliseconds. microbatch: a "
                                                                 "Spark job for each batch, throughput.")] = "resident",
        master: Annotated[str, typer.Option(metavar="URL", help="Spark master: local[N], spark://HOST:PORT, yarn, "
                                                                "...")] = "local[*]",
        slots: Annotated[int | None, typer.Option(metavar="N", min=1, help="Workers to start, one core of the cluster each "
                                                  "(2); with --engine microbatch, executors to wait for (1).")] = None,
        name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the topology; made from its class's name if not "
                                                                      "given.")] = None,
        par: Annotated[Pairs, typer.Option(metavar="COMPONENT=N", help="Tasks of a component; may be repeated.")] = None,
        config: Annotated[Pairs, typer.Option(metavar="KEY=VALUE", help="Setting of the topology and its components, JSON or "
                                                                        "text; may be repeated.")] = None,
        seconds: Annotated[float, typer.Option(metavar="S", help="Stop after so long; 0 runs until Ctrl-C.", min=0)] = 0,
        resume: Annotated[bool, typer.Option("--resume", help="Go on from the last committed wave or batch of the topology of "
                                                              "this name.")] = False,
        fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, and delete what earlier runs of it have left. "
                                                            "Without --resume or --fresh, a run that finds such is "
                                                            "refused.")] = False,
        cluster: Annotated[str | None, typer.Option(metavar="NAME", help="Name under which the other verbs find it.")] = None,
        scheduler: Annotated[str | None, typer.Option(metavar="NAME", help="Scheduler that re-plans while it runs; `millrace "
                                                                           "scheduler list` has them.")] = None,
        scheduler_set: Annotated[Pairs, typer.Option(metavar="KEY=VALUE", help="Parameter of it; may be repeated.")] = None,
        bind: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Of this host, as the workers reach it.")] = None,
        port: Annotated[int, typer.Option(metavar="N", help="Port for the workers; 0 for any free one.", min=0, max=65535)] = 0,
        one_worker_per_node: Annotated[bool, typer.Option("--one-worker-per-node", help="At most one worker of the topology on "
                                                                                        "each node.")] = False,
        setting: Annotated[Pairs, typer.Option("--set", metavar="KEY=VALUE", help="Setting of the engine, as in "
                                                                                  "docs/settings.md; may be repeated.")] = None,
        conf: Annotated[Pairs, typer.Option(metavar="KEY=VALUE", help="Setting of Spark; may be repeated.")] = None,
        as_json: Json = False) -> None:
    """Run a topology on Spark, until Ctrl-C or `millrace kill`.

    It is shown while it runs; status, plan, load, state, move and scale work from another terminal.
    """
    from millrace.cli.running import RunOptions, run_topology

    options = RunOptions(topology, master, slots, name, pairs("--par", par, whole=True), pairs("--config", config), seconds,
                         cluster, bind, port, one_worker_per_node, pairs("--conf", conf, raw=True), pairs("--set", setting),
                         scheduler, pairs("--scheduler-set", scheduler_set), going_on(resume, fresh), engine)
    result = run_topology(options, live=not as_json)
    if as_json:
        typer.echo(json.dumps(result))


@app.command()
def status(topology: OneTopology = None, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Show topologies, rates, latencies, workers and the last errors.

    Made for 80 columns; a wider terminal shows more of them, and --json has everything.
    """
    from millrace.cli.dashboard import print_status
    from millrace.cli.show import of_topology
    from millrace.master.requests.client import ask

    found = of_topology(ask(cluster, "status"), topology)
    typer.echo(json.dumps(found)) if as_json else print_status(found)


@app.command()
def kill(topology: TopologyName,
         wait: Annotated[float, typer.Option(metavar="S", min=0, help="Seconds that what is in flight is given to "
                                                                      "finish.")] = 10,
         cluster: ClusterName = None, as_json: Json = False) -> None:
    """Stop a topology: spouts first, then what is in flight."""
    _ask(cluster, "kill", topology, f"{topology} is stopping; what is in flight has {wait:g} s to finish", as_json, wait=wait)


@app.command()
def move(task: Annotated[str, typer.Argument(metavar="TASK", help="Such as 'count[3]', in quotes; `millrace plan` has them.")],
         worker: Annotated[int, typer.Argument(metavar="WORKER", help="Its number, as `millrace plan` shows it.")],
         topology: Annotated[str | None, typer.Option(metavar="NAME", help="Its topology; needed only if several have such a "
                                                                           "task.")] = None,
         cluster: ClusterName = None, as_json: Json = False) -> None:
    """Move one running task to another worker; nothing is lost.

    For example: millrace move 'count[1]' 3
    """
    from millrace.cli.show import print_move
    from millrace.master.requests.client import ask

    found = ask(cluster, "move", task=task, slot=worker, topology=topology)
    typer.echo(json.dumps(found)) if as_json else print_move(found)


@app.command()
def scale(tasks: Annotated[list[str], typer.Argument(metavar="COMPONENT=N", help="So many tasks of the bolt.")],
          topology: Annotated[str | None, typer.Option(metavar="NAME", help="Its name; needed only if several have such "
                                                                            "components.")] = None,
          cluster: ClusterName = None, as_json: Json = False) -> None:
    """Change how many tasks bolts have (--engine microbatch).

    From the next batch on, without a restart. For example: millrace scale count=8 split=4
    """
    from millrace.cli.show import print_scale
    from millrace.master.requests.client import ask

    found = ask(cluster, "scale", par=pairs("scale", tasks, whole=True), topology=topology)
    typer.echo(json.dumps(found)) if as_json else print_scale(found)


@app.command()
def plan(topology: OneTopology = None, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Show where every task is, and who owns which key groups."""
    from millrace.cli.show import of_topology, print_plan
    from millrace.master.requests.client import ask

    found = of_topology(ask(cluster, "plan"), topology)
    typer.echo(json.dumps(found)) if as_json else print_plan(found)


@app.command()
def state(topology: OneTopology = None,
          query: Annotated[tuple[str, str] | None, typer.Option(
              metavar="COMPONENT KEY", help="Show what the component has under the key now. A key that is JSON is read as "
                                            "such: 5 is a number, '\"5\"' a text, '[\"a\", 5]' a key of two fields.")] = None,
          name: Annotated[str | None, typer.Option(metavar="STATE", help="With --query: which of the bolt's states, if it has "
                                                                         "several.")] = None,
          groups: Annotated[bool, typer.Option("--groups", help="Show every key group.")] = False,
          cluster: ClusterName = None, as_json: Json = False) -> None:
    """Show what state is kept: waves, sizes, who has fragments of it.

    For example: millrace state --query count wat
    """
    from millrace.cli.show import print_state, print_value
    from millrace.master.requests.client import ask

    if query is not None:
        found = ask(cluster, "query", topology=topology, component=query[0], key=json_or_text(query[1]), state=name)
        typer.echo(json.dumps(found)) if as_json else print_value(found)
        raise typer.Exit(0 if found["found"] else 1)
    found = ask(cluster, "state", topology=topology)
    typer.echo(json.dumps(found)) if as_json else print_state(found, groups)


@app.command()
def load(topology: OneTopology = None,
         tasks: Annotated[bool, typer.Option("--tasks", help="Show every task, and the busiest pairs of tasks.")] = False,
         save: Annotated[str | None, typer.Option(metavar="FILE", help="Write graphs, cluster, loads and plans to this file, "
                                                                       "for `millrace scheduler compare --load`.")] = None,
         cluster: ClusterName = None, as_json: Json = False) -> None:
    """Show what was measured: rates, CPU, memory and queues.

    λ: tuples a second that arrive. μ: tuples a second that one task gets through while it is busy.
    """
    from millrace.cli.show import print_load
    from millrace.master.requests.client import ask
    from millrace.model.situation import Situation

    found = ask(cluster, "load", topology=topology)
    if save:
        Situation.from_json(ask(cluster, "situation")).save(save)
    typer.echo(json.dumps(found)) if as_json else print_load(found, tasks)
    if save and not as_json:
        typer.echo(f"saved to {save}")


@app.command()
def pause(topology: TopologyName, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Stop a topology's spouts; what is in flight is processed."""
    _ask(cluster, "pause", topology, f"{topology} is paused; `millrace resume {topology}` lets it go on", as_json)


@app.command()
def resume(topology: TopologyName, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Let a paused topology's spouts go on."""
    _ask(cluster, "resume", topology, f"{topology} goes on", as_json)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def test(context: typer.Context,
         no_install: Annotated[bool, typer.Option("--no-install", help="Do not install the servers that tests need.")] = False,
         require_servers: Annotated[bool, typer.Option("--require-servers", help="Fail where a server is missing.")] = False,
         explore: Annotated[float, typer.Option(metavar="MINUTES", min=0, help="Run property tests, new seeds.")] = 0) -> None:
    """Run linters and tests; arguments after `--` go to pytest.

    Redis, ZooKeeper and PostgreSQL are installed first, as root on Debian. Slow tests are left out; run them by themselves:
    test -- -m slow
    """
    from millrace.cli import testing

    if explore:
        raise typer.Exit(testing.explore(explore, context.args, install=not no_install))
    raise typer.Exit(testing.run_tests(context.args, install=not no_install, require_servers=require_servers))


@bench_app.command("wordcount")
def bench_wordcount(seconds: Annotated[float, typer.Option(help="Length of each measured window.", min=1)] = 3,
                    others: Annotated[bool, typer.Option(help="Measure the other engines too.")] = True,
                    as_json: Json = False) -> None:
    """Word Count on two cores, beside other engines.

    Words per second and latency, all on the same input.
    """
    from millrace.bench.wordcount import run_wordcount

    result = run_wordcount(seconds, others, live=not as_json)
    if as_json:
        typer.echo(json.dumps(result))
    if result["failed"]:
        raise MillraceError(f"these rows have no figure: {', '.join(result['failed'])}; the result has their errors")


@bench_app.command("memory")
def bench_memory(minutes: Annotated[float, typer.Option(help="How long.", min=0.1)] = 10, as_json: Json = False) -> None:
    """Memory while a bolt is slower than its spout: must stay flat."""
    from millrace.bench.memory import run_memory

    result = run_memory(minutes, live=not as_json)
    if as_json:
        typer.echo(json.dumps(result))


@bench_app.command("scheduler")
def bench_scheduler(as_json: Json = False) -> None:
    """Seconds to plan, for topologies of growing size."""
    from millrace.bench.scheduler import run_scheduler_bench

    result = run_scheduler_bench(live=not as_json)
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
def bench_faults(minutes: Annotated[float, typer.Option(help="How long.", min=0.1)] = 5,
                 seed: Annotated[int, typer.Option(help="Seed of the plan of faults.")] = 1,
                 guarantee: Annotated[str, typer.Option(metavar="NAME", help="exactly-once or "
                                                                             "at-least-once.")] = "exactly-once",
                 as_json: Json = False) -> None:
    """Break a word count near saturation and check every word."""
    from millrace.bench.faults import broken_promise, run_faults

    result = run_faults(minutes, seed, guarantee, live=not as_json)
    if as_json:
        typer.echo(json.dumps(result))
    if broken := broken_promise(result):
        raise MillraceError(f"{guarantee} was not kept: {broken}")


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
                     rate: Annotated[float, typer.Option(help="Lines a second; each has ten words.", min=1)] = 800,
                     as_json: Json = False) -> None:
    """Traffic between nodes under schedulers swapped while it runs.

    OTD and others, on a live Word Count.
    """
    from millrace.bench.replanning import run_replanning

    result = run_replanning(seconds, rate, live=not as_json)
    if as_json:
        typer.echo(json.dumps(result))


@bench_app.command("page")
def bench_page(results: Annotated[list[str] | None, typer.Argument(metavar="[RESULT]...", help="Unset: the newest of each "
                                                                                             "benchmark.")] = None) -> None:
    """Write the figures of results into docs/BENCHMARKS.md."""
    from millrace.bench.page import run_page

    typer.echo(f"docs/BENCHMARKS.md has new figures of {', '.join(run_page(results or []))}")


def _ask(cluster: str | None, verb: str, topology: str, done: str, as_json: bool, **arguments: Any) -> None:
    from millrace.master.requests.client import ask

    ask(cluster, verb, topology=topology, **arguments)
    typer.echo(json.dumps({"topology": topology, "verb": verb}) if as_json else done)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main() -> None:
    signal.signal(signal.SIGTERM, _interrupt)  # what stops services and containers means the same as Ctrl-C
    try:
        app(prog_name="millrace")
    except MillraceError as error:
        print(f"millrace: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

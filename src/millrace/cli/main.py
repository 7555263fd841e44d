"""The commands of `millrace`: each parses its options, calls the module that does the work, and prints the result."""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Annotated, Any

import typer

from millrace.cli.benchmarks import bench_app
from millrace.cli.elastic import elastic_app
from millrace.cli.options import (
    RESUME,
    RESUME_AUTO,
    RESUME_OLDER,
    ClusterName,
    Json,
    OneTopology,
    Pairs,
    RunCommand,
    TopologyName,
    group_owners,
    json_or_text,
    pairs,
    resume_choice,
    sorted_settings,
)
from millrace.cli.scheduler import app as scheduler_app
from millrace.cli.simulate import simulate
from millrace.cli.strategies_help import REBALANCE_HELP
from millrace.cli.workers import workers_app
from millrace.errors import MillraceError, NotTheAuthor

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
                  help="Storm-style stream topologies on Spark, managed while they run.")
app.add_typer(bench_app, name="bench")
app.add_typer(elastic_app, name="elastic")
app.add_typer(scheduler_app, name="scheduler")
app.add_typer(workers_app, name="workers")
app.command()(simulate)
DeclaredTopology = Annotated[str, typer.Argument(metavar="MODULE:TOPOLOGY", help="For example examples.first:WordCount. The "
                                                                                 "module may be in the current directory.")]
OVERTAKEN = 3  # exit code: another driver has taken over, so a service manager must not restart this one
InTopology = Annotated[str | None, typer.Option("--topology", metavar="NAME", help="Only this topology.")]
ByStrategy = Annotated[str, typer.Option(metavar="NAME", help="Strategy of the migration, see `millrace rebalance --help`.")]
StrategyParameters = Annotated[Pairs, typer.Option("--set", metavar="NAME=SECONDS", help="Parameter of the strategy, such as "
                                                   "message_timeout=30; may be repeated.")]
Parallelism = Annotated[Pairs, typer.Option(metavar="COMPONENT=N", help="Number of tasks of a component; may be repeated.")]


@app.callback()
def common(verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the log.")] = False) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.ERROR, stream=sys.stderr,
                        format="%(asctime)s %(name)s: %(message)s")
    # Py4J logs errors to the root logger, with a stack trace, before it raises them: for example when Ctrl-C interrupts a call.
    logging.getLogger().addFilter(lambda record: not record.exc_info)


@app.command()
def demo(seconds: Annotated[float, typer.Option(metavar="S", help="Seconds that the stream runs.", min=3)] = 15,
         rate: Annotated[float, typer.Option(metavar="N", help="Lines per second, of ten words each.", min=1)] = 5000,
         workers: Annotated[int, typer.Option(metavar="N", help="Workers on the embedded Spark.", min=2)] = 3,
         svg: Annotated[str | None, typer.Option(metavar="FILE", help="Save a picture of the run as SVG.")] = None,
         as_json: Json = False) -> None:
    """Count words on an embedded Spark; one worker is killed.

    Compares the output with the input at the end: nothing may be lost.
    """
    from millrace.cli.begin import begin_demo

    cluster = begin_demo(workers)
    from millrace.cli.demo import run_demo  # while Java starts

    result = run_demo(seconds, rate, workers, cluster, live=not as_json, svg=svg)
    if as_json:
        typer.echo(json.dumps(result))
    if result["lost"] or result["wrong"]:
        raise MillraceError(f"{result['lost']} words were lost and {result['wrong']} are wrong: that must never happen")


@app.command(cls=RunCommand)
def run(topology: DeclaredTopology,
        engine: Annotated[str, typer.Option(metavar="NAME", help="resident: long-lived workers, latency of milliseconds. "
                                                                 "microbatch: one Spark job per batch.")] = "resident",
        master: Annotated[str, typer.Option(metavar="URL", help="Spark master: local[N], spark://HOST:PORT, yarn, "
                                                                "...")] = "local[*]",
        slots: Annotated[int | None, typer.Option(metavar="N", min=1, help="Workers to start; each holds one core of the Spark "
                                                  "cluster (default 2). With --engine microbatch: executors to wait for "
                                                  "(default 1).")] = None,
        name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the topology; default: the name of its class, "
                                                                      "in lower case.")] = None,
        par: Parallelism = None,
        setting: Annotated[Pairs, typer.Option("--set", metavar="KEY=VALUE", help="Any setting; may be repeated. The key "
                                               "decides where it goes: spark.* to Spark, keys of docs/settings.md to Millrace, "
                                               "any other key to the components. The value is JSON or a string; env:NAME "
                                               "is the value of that environment variable and @FILE the text of that file, for "
                                               "passwords, which a command line would show to all users.")] = None,
        seconds: Annotated[float, typer.Option(metavar="S", help="Stop after this many seconds; 0: run until Ctrl-C.",
                                               min=0)] = 0,
        resume: Annotated[bool, typer.Option(RESUME, help="Restart from the last checkpoint of an earlier run. --resume auto: "
                                                          "if there is one, else start; for service managers. --resume older: "
                                                          "go back to the previous run, if the last --fresh run stopped "
                                                          "before its first commit.")] = False,
        resume_auto: Annotated[bool, typer.Option(RESUME_AUTO, hidden=True, help="The same as --resume auto.")] = False,
        resume_older: Annotated[bool, typer.Option(RESUME_OLDER, hidden=True, help="The same as --resume older.")] = False,
        fresh: Annotated[bool, typer.Option("--fresh", help="Start empty; checkpoints of earlier runs are deleted once this "
                                                            "run has committed its own. --resume or --fresh is required "
                                                            "if an earlier run left checkpoints.")] = False,
        cluster: Annotated[str | None, typer.Option(metavar="NAME", help="Name by which other commands find this "
                                                                         "cluster.")] = None,
        scheduler: Annotated[str | None, typer.Option(metavar="NAME", help="Scheduler that moves tasks while they run; "
                                                                           "`millrace scheduler list` shows all.")] = None,
        scheduler_set: Annotated[Pairs, typer.Option(metavar="KEY=VALUE", help="Parameter of the scheduler; may be "
                                                                               "repeated.")] = None,
        bind: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address of this host that the workers connect "
                                                                         "to.")] = None,
        port: Annotated[int, typer.Option(metavar="N", help="Port that the workers connect to; 0: any free port.", min=0,
                                          max=65535)] = 0,
        one_worker_per_node: Annotated[bool, typer.Option("--one-worker-per-node", help="Use at most one worker on each node "
                                                                                        "for a topology.")] = False,
        require_encryption: Annotated[bool, typer.Option("--require-encryption", help="Refuse to start, instead of warning, if "
                                                         "Spark, the checkpoint store or the coordination store would send "
                                                         "anything between hosts unencrypted.")] = False,
        as_json: Json = False) -> None:
    """Run a topology on Spark, until Ctrl-C or `millrace kill`.

    Shows the topology while it runs. The other commands work from another terminal.
    """
    from millrace.cli.begin import RunOptions, begin_run

    settings = sorted_settings(setting)
    options = RunOptions(topology, master, slots, name, pairs("--par", par, whole=True), settings.topology, seconds, cluster,
                         bind, port, one_worker_per_node, settings.spark, settings.engine, scheduler,
                         pairs("--scheduler-set", scheduler_set),
                         resume_choice(resume, resume_auto, resume_older, fresh), engine, require_encryption)
    declared = begin_run(options)
    from millrace.cli.running import run_topology  # while Java starts

    result = run_topology(options, declared, live=not as_json)
    if as_json:
        typer.echo(json.dumps(result))


@app.command()
def visualize(topology: DeclaredTopology, par: Parallelism = None, as_json: Json = False) -> None:
    """Print a topology as a Mermaid flowchart; nothing is started.

    GitHub and many editors draw it from a ```mermaid block. For example: millrace visualize examples.first:WordCount
    """
    from millrace.cli.begin import load_topology
    from millrace.model.flowchart import graph_as_json, mermaid
    from millrace.model.graph import graph_of

    graph = graph_of(load_topology(topology), par=pairs("--par", par, whole=True))
    typer.echo(json.dumps(graph_as_json(graph)) if as_json else mermaid(graph))


@app.command()
def status(topology: OneTopology = None, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Show topologies, rates, latencies, workers and recent errors.

    Fits 80 columns; a wider terminal shows more, and --json has everything.
    """
    from millrace.cli.dashboard import print_status
    from millrace.cli.show import of_topology
    from millrace.master.requests.client import ask

    answer = of_topology(ask(cluster, "status"), topology)
    typer.echo(json.dumps(answer)) if as_json else print_status(answer)


@app.command()
def kill(topology: TopologyName,
         wait: Annotated[float, typer.Option(metavar="S", min=0, help="Seconds that tuples in flight, or the running batch, "
                                             "have to finish. Exactly-once on the resident engine: seconds without progress "
                                             "before it ends uncommitted.")] = 10,
         cluster: ClusterName = None, as_json: Json = False) -> None:
    """Stop a topology: first its spouts, then the rest."""
    _ask(cluster, "kill", topology, f"{topology} is stopping (--wait {wait:g})", as_json, wait=wait)


@app.command()
def move(task: Annotated[str, typer.Argument(metavar="TASK", help="For example 'count[3]', in quotes; `millrace plan` lists "
                                                                  "all.")],
         worker: Annotated[int, typer.Argument(metavar="WORKER", help="Number of the worker, as in `millrace plan`.")],
         topology: Annotated[str | None, typer.Option(metavar="NAME", help="Topology of the task; needed only if several "
                                                                           "topologies have a task of that name.")] = None,
         strategy: ByStrategy = "handover", parameters: StrategyParameters = None,
         cluster: ClusterName = None, as_json: Json = False) -> None:
    """Move one running task, with its state, to another worker.

    By hand-over, the default, nothing is lost or processed twice; by another strategy, the guarantee of the topology holds.
    For example: millrace move 'count[1]' 3
    """
    from millrace.cli.show import print_move
    from millrace.master.requests.client import ask

    answer = ask(cluster, "move", task=task, slot=worker, topology=topology, strategy=strategy,
                 parameters=pairs("--set", parameters))
    typer.echo(json.dumps(answer)) if as_json else print_move(answer)


@app.command(help=REBALANCE_HELP)
def rebalance(topology: Annotated[str | None, typer.Argument(metavar="[TOPOLOGY]", help="Default: the only one that "
                                                                                        "runs.")] = None,
              to: Annotated[str | None, typer.Option(metavar="FILE", help="The new plan: tasks and workers as JSON, or "
                                                                          "edited output of `millrace plan --json`.")] = None,
              scheduler: Annotated[str | None, typer.Option(metavar="NAME", help="The scheduler that makes the new plan; "
                                                                                 "\"tstorm gamma=2\" with a parameter. "
                                                                                 "Default: even.")] = None,
              strategy: ByStrategy = "handover", parameters: StrategyParameters = None,
              wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is over and show its record.")] = True,
              cluster: ClusterName = None, as_json: Json = False) -> None:
    from functools import partial

    from millrace.cli.listing import plain_console
    from millrace.cli.rebalancing import new_owners, one_topology, placement_in, plan_by, wait_for
    from millrace.cli.record import print_migration, print_rebalance
    from millrace.cli.show import print_regroup
    from millrace.master.requests.client import ask
    from millrace.model.situation import Situation

    if to is not None and scheduler is not None:
        raise MillraceError("give either --to FILE or --scheduler NAME: both make the plan")
    request = partial(ask, cluster)
    plans = request("plan")["topologies"]
    name = one_topology(topology, plans)
    owners: dict[str, dict[int, int]] = {}
    if to is not None:
        placement = placement_in(to, name, plans[name])
    else:
        situation = Situation.from_json(request("situation"))
        plan = plan_by(scheduler or "even", situation, name)
        placement, owners = {str(task): slot for task, slot in plan.placement.items()}, new_owners(situation, name, plan)
    if owners and not wait:
        raise MillraceError(f"the plan also gives key groups of {', '.join(owners)} to other tasks, which follows when the "
                            "tasks have moved: leave out --no-wait")
    known = {row["id"] for row in request("migrations", topology=name)}
    answer = request("rebalance", topology=name, placement=placement, strategy=strategy, parameters=pairs("--set", parameters))
    record = wait_for(request, name, strategy, known, plain_console(stderr=True)) if wait and answer["moves"] else None
    failed = record is not None and record["outcome"] != "done"
    regrouped = [] if failed else [request("regroup", topology=name, component=component, owners=groups)
                                   for component, groups in owners.items()]
    if as_json:
        typer.echo(json.dumps({**answer, "record": record, "regrouped": regrouped}))
    elif record is not None:
        print_migration(record, None)
    else:
        print_rebalance(answer)
    if not as_json:
        for change in regrouped:
            print_regroup(change)
    if failed:
        raise typer.Exit(1)


@app.command()
def moves(cancel: Annotated[str | None, typer.Option(metavar="TASK", help="Cancel the move of this task, and of key "
                                                                           "groups from it, until they switch.")] = None,
          topology: InTopology = None, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Show the moves that are under way and those that wait.

    For example: millrace moves --cancel 'count[1]'
    """
    from millrace.cli.record import print_cancelled, print_moves
    from millrace.master.requests.client import ask

    if cancel is not None:
        answer = ask(cluster, "cancel move", task=cancel, topology=topology)
        typer.echo(json.dumps(answer)) if as_json else print_cancelled(answer)
        return
    answer = ask(cluster, "moves", topology=topology)
    typer.echo(json.dumps(answer)) if as_json else print_moves(answer)


@app.command()
def migrations(number: Annotated[int | None, typer.Argument(metavar="[ID]", help="One migration, in full; default: the newest "
                                                                                 "ones.")] = None,
               plot: Annotated[str | None, typer.Option(metavar="FILE", help="With ID: draw its throughput and latency over "
                                                        "time, as FILE.svg or FILE.png.")] = None,
               topology: InTopology = None, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Show past migrations: causes, pauses, gaps at the sinks.

    Also after losses of workers. For example: millrace migrations 3 --plot move.svg
    """
    from millrace.cli.record import print_migration, print_migrations
    from millrace.cli.timeline import check_plot, draw
    from millrace.master.requests.client import ask

    if plot is not None:
        check_plot(plot, number)
    answer = ask(cluster, "migrations", topology=topology, id=number)
    if plot is not None:
        draw(answer[0], plot)
    if as_json:
        typer.echo(json.dumps(answer))
    elif number is not None:
        print_migration(answer[0], plot)
    else:
        print_migrations(answer)


@app.command()
def events(topology: InTopology = None,
           task: Annotated[str | None, typer.Option(metavar="TASK", help="Only events that name this task.")] = None,
           cluster: ClusterName = None, as_json: Json = False) -> None:
    """Tell what has happened and why, in order.

    For example: millrace events --task 'count[1]'
    """
    from millrace.cli.record import print_events
    from millrace.master.requests.client import ask

    answer = ask(cluster, "events", topology=topology, task=task)
    typer.echo(json.dumps(answer)) if as_json else print_events(answer)


@app.command()
def scale(tasks: Annotated[list[str], typer.Argument(metavar="COMPONENT=N", help="New number of tasks of a component.")],
          topology: Annotated[str | None, typer.Option(metavar="NAME", help="Their topology; needed only if several topologies "
                                                                            "have components of these names.")] = None,
          wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done and show the result.")] = True,
          cluster: ClusterName = None, as_json: Json = False) -> None:
    """Change the number of tasks of components while they run.

    Nothing stops or is lost: key groups are handed over, as few as possible; a stateful component needs at least as many key
    groups as tasks. On the microbatch engine it takes effect with the next batch. For example: millrace scale count=8 split=4
    """
    from functools import partial

    from millrace.cli.listing import plain_console
    from millrace.cli.rebalancing import wait_for
    from millrace.cli.show import print_scale
    from millrace.control.migrations import COMPLETED
    from millrace.control.scaling import BY_SCALING
    from millrace.master.requests.client import ask

    request = partial(ask, cluster)
    known = {row["id"] for row in request("migrations")}
    answer = request("scale", par=pairs("scale", tasks, whole=True), topology=topology)
    record = None
    if wait and answer["changed"] and not answer["batched"]:
        record = wait_for(request, answer["topology"], BY_SCALING, known, plain_console(stderr=True))
        answer["key_groups_moved"] = sum(len(moved["groups"]) for moved in (record or {"moved": ()})["moved"])
    answer["migration"] = record
    typer.echo(json.dumps(answer)) if as_json else print_scale(answer)
    if record is not None and record["outcome"] != COMPLETED:
        raise typer.Exit(1)


@app.command()
def regroup(component: Annotated[str, typer.Argument(metavar="COMPONENT", help="A bolt behind a fields grouping.")],
            groups: Annotated[list[str], typer.Argument(metavar="GROUP=TASK", help="Key group, or range of them (0-7), and the "
                                                                                   "index of the task that is to own it.")],
            topology: Annotated[str | None, typer.Option(metavar="NAME", help="Topology of the bolt; needed only if several "
                                                                              "have one of this name.")] = None,
            cluster: ClusterName = None, as_json: Json = False) -> None:
    """Give key groups of a bolt to other tasks of it.

    On resident workers they are handed over while the stream runs: only their own tuples wait, until their state has moved.
    For example: millrace regroup count 0-7=3 12=1
    """
    from millrace.cli.show import print_regroup
    from millrace.master.requests.client import ask

    answer = ask(cluster, "regroup", component=component, owners=group_owners(groups), topology=topology)
    typer.echo(json.dumps(answer)) if as_json else print_regroup(answer)


@app.command()
def plan(topology: OneTopology = None, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Show which worker runs which tasks, and key groups' owners."""
    from millrace.cli.show import of_topology, print_plan
    from millrace.master.requests.client import ask

    answer = of_topology(ask(cluster, "plan"), topology)
    typer.echo(json.dumps(answer)) if as_json else print_plan(answer)


@app.command()
def state(topology: OneTopology = None,
          query: Annotated[tuple[str, str] | None, typer.Option(
              metavar="COMPONENT KEY", help="Show the current value of one key. A key that parses as JSON is read as JSON: 5 "
                                            "is a number, '\"5\"' a string, '[\"a\", 5]' a key of two fields.")] = None,
          name: Annotated[str | None, typer.Option(metavar="STATE", help="With --query: name of the state, if the bolt has "
                                                                         "several.")] = None,
          groups: Annotated[bool, typer.Option("--groups", help="Show every key group.")] = False,
          cluster: ClusterName = None, as_json: Json = False) -> None:
    """Show the state: checkpoints, sizes, and backups in memory.

    For example: millrace state --query count wat
    """
    from millrace.cli.show import print_state, print_value
    from millrace.master.requests.client import ask

    if query is not None:
        answer = ask(cluster, "query", topology=topology, component=query[0], key=json_or_text(query[1]), state=name)
        typer.echo(json.dumps(answer)) if as_json else print_value(answer)
        raise typer.Exit(0 if answer["found"] else 1)
    answer = ask(cluster, "state", topology=topology)
    typer.echo(json.dumps(answer)) if as_json else print_state(answer, groups)


@app.command()
def load(topology: OneTopology = None,
         tasks: Annotated[bool, typer.Option("--tasks", help="Show every task, and the busiest pairs of tasks.")] = False,
         save: Annotated[str | None, typer.Option(metavar="FILE", help="Write graphs, cluster, loads and plans to this file, "
                                                                       "for `millrace scheduler compare --load`.")] = None,
         cluster: ClusterName = None, as_json: Json = False) -> None:
    """Show the measured rates, CPU, memory and queues.

    λ: tuples that arrive per second. μ: tuples per second that one task can process.
    """
    from millrace.cli.show import print_load
    from millrace.master.requests.client import ask
    from millrace.model.situation import Situation

    answer = ask(cluster, "load", topology=topology)
    if save:
        Situation.from_json(ask(cluster, "situation")).save(save)
    typer.echo(json.dumps(answer)) if as_json else print_load(answer, tasks)
    if save and not as_json:
        typer.echo(f"saved to {save}")


@app.command()
def pause(topology: TopologyName, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Stop a topology's spouts; tuples in flight are processed."""
    _ask(cluster, "pause", topology, f"{topology} is paused; `millrace unpause {topology}` starts its spouts again", as_json)


@app.command()
def unpause(topology: TopologyName, cluster: ClusterName = None, as_json: Json = False) -> None:
    """Start the spouts of a paused topology again."""
    _ask(cluster, "unpause", topology, f"{topology} is running again", as_json)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def test(context: typer.Context,
         no_install: Annotated[bool, typer.Option("--no-install", help="Do not install the servers that tests need.")] = False,
         require_servers: Annotated[bool, typer.Option("--require-servers", help="Fail where a server is missing.")] = False,
         explore: Annotated[float, typer.Option(metavar="MINUTES", min=0, help="Run property tests with fresh seeds for "
                                                                               "MINUTES minutes.")] = 0) -> None:
    """Run linters and tests; arguments after `--` go to pytest.

    Redis, ZooKeeper and PostgreSQL are installed first, as root on Debian. Slow tests are excluded; run them with:
    test -- -m slow
    """
    from millrace.cli import testing

    if explore:
        raise typer.Exit(testing.explore(explore, context.args, install=not no_install))
    raise typer.Exit(testing.run_tests(context.args, install=not no_install, require_servers=require_servers))


def _ask(cluster: str | None, verb: str, topology: str, done: str, as_json: bool, **arguments: Any) -> None:
    from millrace.master.requests.client import ask

    ask(cluster, verb, topology=topology, **arguments)
    typer.echo(json.dumps({"topology": topology, "verb": verb}) if as_json else done)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main() -> None:
    signal.signal(signal.SIGTERM, _interrupt)  # sent by service managers and containers; same as Ctrl-C
    try:
        app(prog_name="millrace")
    except MillraceError as error:
        print(f"millrace: {error}", file=sys.stderr)
        sys.exit(OVERTAKEN if isinstance(error, NotTheAuthor) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        exec("")  # Python would end itself by SIGINT if the last text that it executed, say of a dataclass, was interrupted


if __name__ == "__main__":
    main()

"""Strategies of migration: the ways to take a running topology from one placement to another, each as a list of steps.

Those of the papers have the papers' delays as parameters. A strategy only decides: `moving/migrating.py` carries the steps out.

    handover   tasks are handed over while the stream runs
    rollback   a wave is committed, places change, and the whole topology goes back to that wave
    storm      Storm's rebalance: spouts wait for the message timeout, then all workers of the topology restart
    storm*     only the workers that give or take a task restart
    dsm        Storm's rebalance at once: touched workers restart, and tasks restore the last wave when next asked to, every
               30 s; what was in flight is replayed
    dcr        spouts wait, a wave drains the topology and is committed, workers restart, tasks restore the wave
    ccr        as dcr, but the wave captures what is in flight and saves it with the state
    tstorm     spouts wait while new incarnations start beside the old ones, whose workers end later
    nstorm     tasks start and stop as threads, when their worker next reads the plan
    nstorm+    as nstorm with short cycles, and the old incarnation first processes what it has queued
    layered    Sl-Stream: layer by layer and each in two parts, with state from fragments on upstream workers
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from millrace.config import AT_MOST_ONCE, GUARANTEE
from millrace.control.strategies.steps import (
    Checkpoint,
    Delay,
    HandOver,
    Hold,
    Parameters,
    PlacementChange,
    Release,
    Remove,
    Replace,
    Restart,
    Step,
    Until,
)
from millrace.errors import MillraceError, TopologyError, UnknownName
from millrace.model.graph import ACKER, TaskId, TopologyGraph


@dataclass(frozen=True, slots=True)
class Strategy:
    """A strategy. `parameters`: with the values of its paper, in seconds unless their name says otherwise."""

    name: str
    steps: Callable[[PlacementChange, Parameters], list[Step]]
    parameters: Parameters = field(default_factory=dict)
    needs_waves: bool = False
    exactly_once: bool = False  # it needs this guarantee


# -- the strategies ----------------------------------------------------------------------------------------------------


def _handover(change: PlacementChange, parameters: Parameters) -> list[Step]:
    return [HandOver(change.moves)]


def _rollback(change: PlacementChange, parameters: Parameters) -> list[Step]:
    return [Checkpoint(), Replace(change.moves)]


def _storm(change: PlacementChange, parameters: Parameters) -> list[Step]:
    return [Hold(), Delay(parameters["message_timeout"]), Replace(change.moves, change.used), Release()]


def _storm_star(change: PlacementChange, parameters: Parameters) -> list[Step]:
    return [Replace(change.moves, change.touched)]


def _dsm(change: PlacementChange, parameters: Parameters) -> list[Step]:
    return [Replace(change.moves, change.touched, parameters["init_resend"])]


def _dcr(change: PlacementChange, parameters: Parameters) -> list[Step]:
    return [Hold(), Checkpoint(drains=True), Replace(change.moves, change.touched, parameters["init_resend"]), Release()]


def _ccr(change: PlacementChange, parameters: Parameters) -> list[Step]:
    return [Hold(captures=True), Checkpoint(), Replace(change.moves, change.touched, parameters["init_resend"]), Release()]


def _tstorm(change: PlacementChange, parameters: Parameters) -> list[Step]:
    spouts, shutdown = parameters["spout_delay"], parameters["shutdown_delay"]
    return [Hold(), HandOver(change.moves), Delay(spouts), Release(), Delay(max(0.0, shutdown - spouts)),
            Restart(change.vacated)]


def _nstorm(change: PlacementChange, parameters: Parameters) -> list[Step]:
    """A task ends when the worker that has it reads the new plan, and starts when the one that gets it does."""
    times = {task: (_read_after(change, change.before[task], parameters), _read_after(change, slot, parameters))
             for task, slot in change.moves.items()}
    timed: list[tuple[float, Step]] = []
    for at in sorted({end for end, start in times.values() if start > end}):
        timed.append((at, Remove(tuple(task for task, (end, start) in times.items() if end == at and start > end))))
    for at in sorted({max(both) for both in times.values()}):
        timed.append((at, Replace({task: change.after[task] for task, both in times.items() if max(both) == at})))
    return _spaced(sorted(timed, key=lambda each: each[0]))


def _nstorm_plus(change: PlacementChange, parameters: Parameters) -> list[Step]:
    """A task starts when its new worker reads the plan; the old incarnation then still processes what it has queued."""
    starts = {task: _read_after(change, slot, parameters) for task, slot in change.moves.items()}
    return _spaced([(at, HandOver({task: change.after[task] for task, start in starts.items() if start == at},
                                  limit=parameters["drain"])) for at in sorted(set(starts.values()))])


def _layered(change: PlacementChange, parameters: Parameters) -> list[Step]:
    parts = [part for layer in layers(change.graph) for part in halves([task for task in change.moves
                                                                        if task.component in layer])]
    ackers = {task: slot for task, slot in change.moves.items() if task.component == ACKER}
    steps: list[Step] = [HandOver({task: change.after[task] for task in part}, cold=True) for part in parts]
    return [*steps, *([HandOver(ackers)] if ackers else [])]


def _read_after(change: PlacementChange, slot: int, parameters: Parameters) -> float:
    """Seconds until the worker in a slot reads a new plan: its node's agent reads it once in a cycle, and the worker reads what
    the agent has written once in another. Agents and workers do so one after the other, spread over a cycle."""
    nodes = sorted(set(change.nodes.values()))
    agent = nodes.index(change.nodes[slot]) if slot in change.nodes else 0
    written = _until_turn(agent, parameters["supervisor_cycle"], change.at)
    return written + _until_turn(slot, parameters["worker_cycle"], change.at + written)


def _until_turn(number: int, cycle: float, at: float) -> float:
    """Seconds from a time until the next turn of an agent or worker in its cycle. Turns are spread evenly over the cycle, for
    any count of numbers."""
    return ((number + 1) * 0.6180339887498949 * cycle - at) % cycle if cycle else 0.0


def _spaced(timed: Iterable[tuple[float, Step]]) -> list[Step]:
    """The steps, each at its time."""
    steps: list[Step] = []
    before = 0.0
    for at, step in timed:
        if at > before:
            steps.append(Until(at))
        steps.append(step)
        before = at
    return steps


def layers(graph: TopologyGraph) -> list[set[str]]:
    """The components by the length of the longest path that leads to them."""
    depth: dict[str, int] = {}
    for component in graph.components:  # which are in the order of the stream
        depth[component.name] = 1 + max((depth[read.source] for read in component.inputs), default=-1)
    return [{name for name, at in depth.items() if at == layer} for layer in range(max(depth.values(), default=-1) + 1)]


def halves(tasks: Sequence[TaskId]) -> list[list[TaskId]]:
    """The tasks in two halves: every other task of a component is in the same half. A single task is alone."""
    parts = [list(tasks[::2]), list(tasks[1::2])]
    return [part for part in parts if part]


STRATEGIES: Mapping[str, Strategy] = {strategy.name: strategy for strategy in (
    Strategy("handover", _handover),
    Strategy("rollback", _rollback, needs_waves=True),
    Strategy("storm", _storm, {"message_timeout": 30.0}),
    Strategy("storm*", _storm_star),
    Strategy("dsm", _dsm, {"init_resend": 30.0}, needs_waves=True),
    Strategy("dcr", _dcr, {"init_resend": 1.0}, needs_waves=True),
    Strategy("ccr", _ccr, {"init_resend": 1.0}, needs_waves=True, exactly_once=True),
    Strategy("tstorm", _tstorm, {"spout_delay": 10.0, "shutdown_delay": 20.0}),
    Strategy("nstorm", _nstorm, {"supervisor_cycle": 10.0, "worker_cycle": 3.0}),
    Strategy("nstorm+", _nstorm_plus, {"supervisor_cycle": 3.0, "worker_cycle": 1.0, "drain": 2.0}),
    Strategy("layered", _layered),
)}


def strategy_named(name: str) -> Strategy:
    if name not in STRATEGIES:
        raise UnknownName(f"there is no strategy {name!r}; there are {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def steps_of(name: str, change: PlacementChange, parameters: Parameters) -> list[Step]:
    """The steps of a migration. Raises `UnknownName` or `TopologyError` if the strategy cannot do it."""
    strategy = strategy_named(name)
    check_parameters(strategy, parameters)
    steps = strategy.steps(change, {**strategy.parameters, **parameters})
    check_allowed(strategy, change, steps)
    return steps


def check_parameters(strategy: Strategy, parameters: Parameters) -> None:
    for name, value in parameters.items():
        if name not in strategy.parameters:
            known = ", ".join(f"{known}={default:g}" for known, default in strategy.parameters.items()) or "none"
            raise UnknownName(f"the strategy {strategy.name} has no parameter {name!r}; it has {known}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise MillraceError(f"{name}={value} of the strategy {strategy.name}: expected seconds, 0 or more")


def check_allowed(strategy: Strategy, change: PlacementChange, steps: Collection[Step]) -> None:
    """Raise `TopologyError` unless the strategy keeps the guarantee of the topology."""
    graph = change.graph
    guarantee, name = GUARANTEE.of(graph.config), graph.name
    if strategy.needs_waves and not graph.waves:
        raise TopologyError(f"{name!r} takes no waves, so it cannot be migrated by {strategy.name}: it keeps no state and is "
                            "not exactly-once. Use handover, storm* or nstorm")
    if strategy.exactly_once and not graph.exactly_once:
        raise TopologyError(f"{strategy.name} needs the guarantee exactly-once, and {name!r} has {guarantee}: there, tuples in "
                            "flight are replayed by their spouts and must not be restored, too. Use dcr or handover")
    for task in change.moves:
        if fixed := graph.why_fixed(task):
            raise TopologyError(f"{task} cannot be moved: {fixed}")
    restarted = {slot for step in steps if isinstance(step, Replace) for slot in step.restart}
    for task, slot in change.before.items():
        if slot in restarted and not graph.movable(task) and guarantee != AT_MOST_ONCE:
            raise TopologyError(f"{strategy.name} restarts worker {slot} with {task}, which would lose tuples of {name!r}: "
                                f"{graph.why_fixed(task)}. Use handover")
    forward = [spout.name for spout in graph.spouts if not spout.movable]
    if forward and guarantee != AT_MOST_ONCE and (behind := _behind(change, steps)):
        raise TopologyError(f"{strategy.name} lets {behind[0]} go back to the state of a wave, and the source of "
                            f"{forward[0]!r} cannot be replayed from there: the state would lack tuples. Use handover, dcr or "
                            "layered, or derive the spout from ReplayableSpout")


def _behind(change: PlacementChange, steps: Collection[Step]) -> list[TaskId]:
    """The tasks with state that may go back to a wave after which tuples were processed."""
    if any(isinstance(step, Checkpoint) and step.drains for step in steps):
        return []
    restarted = {slot for step in steps if isinstance(step, Replace) for slot in step.restart}
    ended = {task for step in steps if isinstance(step, Replace) or (isinstance(step, HandOver) and step.limit is not None)
             for task in step.moves}
    ended.update(task for task, slot in change.before.items() if slot in restarted)
    return sorted(task for task in ended if task.component != ACKER and change.graph.component(task.component).stateful)

"""A topology as data, for the schedulers and the workers. Made from a declaration by `graph_of`."""

from __future__ import annotations

import heapq
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast

import msgspec

from millrace.api.bolt import declares_merge
from millrace.api.component import Component
from millrace.api.grouping import Grouping
from millrace.api.sink import TwoPhaseSink
from millrace.api.spout import ReplayableSpout, Spout
from millrace.api.state_usage import uses_state
from millrace.api.topology import ComponentSpec, Topology, checked_config, checked_par, mode_of
from millrace.api.tuple import DEAD_LETTERS
from millrace.config import EXACTLY_ONCE, GUARANTEE, KEY_GROUP_COUNT
from millrace.errors import TopologyError, UnknownName, is_interrupt

ACKER = "__acker"
ENVIRONMENT = "topology.environment"
TASKS_LIMIT = 1 << 16  # of one component: a task's number has 16 bits for its index
_ACKER_NUMBER = 0xFFFF
_TASK = re.compile(r"([^\[\]]+)\[(\d+)\]")

Mode = Literal["next_tuple", "process", "process_rows", "process_arrow"]


class TaskId(NamedTuple):
    """One running instance of a component; `count[3]` is the fourth task of `count`."""

    component: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed

    def __str__(self) -> str:
        return f"{self.component}[{self.index}]"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Parses the string that `str` makes of a task."""
        match = _TASK.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} does not name a task: write the component and an index, for example count[3]")
        return cls(match[1], int(match[2]))


@dataclass(frozen=True, slots=True)
class StreamDef:
    """One output stream of a component."""

    name: str
    fields: tuple[str, ...]
    direct: bool = False


@dataclass(frozen=True, slots=True)
class Input:
    """One stream that a bolt reads, and the grouping that spreads its tuples over the bolt's tasks."""

    source: str
    stream: str
    grouping: Grouping


@dataclass(frozen=True, slots=True)
class ComponentDef:
    """One component. A bolt's last output is its dead letters; `mode` is the method the engine calls. `movable`: its tasks
    may move to another worker while they run; those of a spout whose source cannot be read again may not. `stateful`: it has
    state that a wave must snapshot. `commits`: it is a sink that takes part in the two-phase commit. `own_state`: its class
    defines `snapshot`, so its state belongs to tasks and not to key groups. `dataframe`: a spout that Spark feeds.
    `takes_over`: a task of it can continue with the rows that another incarnation has staged. `keyed_state`: it keeps state by
    key. `declared`: the number of tasks in its declaration, which `par` may have been changed from; `chosen`: the user chose
    `par` when the topology was started. `merges`: senders may merge tuples of a key with its class's `merge`. `splits`: the
    number of splits of a spout, which its tasks own as those of a bolt own key groups; 0 if each task has a position of its
    own. `divided_by_source`: a spout whose tasks share what the source has, however many there are."""

    name: str
    kind: Literal["spout", "bolt"]
    code: str
    par: int
    config: dict[str, Any] = field(repr=False)  # URLs in it may have passwords
    outputs: tuple[StreamDef, ...]
    inputs: tuple[Input, ...]
    blocking: bool
    mode: Mode
    movable: bool = True
    stateful: bool = False
    commits: bool = False
    own_state: bool = False
    takes_over: bool = True
    dataframe: bool = False
    keyed_state: bool = False
    declared: int = 0
    chosen: bool = False
    merges: bool = False
    splits: int = 0
    divided_by_source: bool = False

    @property
    def keyed(self) -> bool:
        """True if its tasks own key groups: an input is grouped by fields."""
        return any(read.grouping.kind == "fields" for read in self.inputs)

    def stream(self, name: str) -> StreamDef:
        for stream in self.outputs:
            if stream.name == name:
                return stream
        raise UnknownName(f"component {self.name!r} has no stream {name!r}; it has "
                          f"{', '.join(stream.name for stream in self.outputs)}")


class _GraphCache:
    """Caches of values derived from a graph: not fields, so they are neither compared nor sent."""

    __slots__ = ("_positions", "_tasks")
    _positions: dict[str, int]
    _tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class TopologyGraph(_GraphCache):
    """A whole topology; components in topological order, declaration order among equals. `batched`: it runs batch by batch,
    and between two batches the place and number of its tasks and the owners of key groups may change."""

    name: str
    components: tuple[ComponentDef, ...]
    config: dict[str, Any] = field(repr=False)
    ackers: int = 0
    batched: bool = False

    @property
    def parallelism(self) -> dict[str, int]:
        return {component.name: component.par for component in self.components}

    @property
    def declared(self) -> dict[str, int]:
        """The numbers of tasks in the declarations of the components."""
        return {component.name: component.declared for component in self.components}

    def with_par(self, par: Mapping[str, int]) -> TopologyGraph:
        """The graph with these numbers of tasks; other components keep theirs."""
        return replace(self, components=tuple(replace(component, par=par.get(component.name, component.par))
                                              for component in self.components))

    def component(self, name: str) -> ComponentDef:
        return self.components[self._position(name)]

    def tasks(self) -> tuple[TaskId, ...]:
        """Every task, component by component; the ackers last."""
        try:
            return self._tasks
        except AttributeError:
            tasks = [TaskId(component.name, index) for component in self.components for index in range(component.par)]
            object.__setattr__(self, "_tasks", (*tasks, *(TaskId(ACKER, index) for index in range(self.ackers))))
            return self._tasks

    @property
    def spouts(self) -> tuple[ComponentDef, ...]:
        return tuple(component for component in self.components if component.kind == "spout")

    @property
    def bolts(self) -> tuple[ComponentDef, ...]:
        return tuple(component for component in self.components if component.kind == "bolt")

    @property
    def key_groups(self) -> int:
        """The number of key groups of each keyed component."""
        return int(KEY_GROUP_COUNT.of(self.config))

    @property
    def splits(self) -> dict[str, int]:
        """The number of splits of each spout that has some."""
        return {component.name: component.splits for component in self.components if component.splits}

    def groups_of(self, component: ComponentDef) -> int:
        """The number of key groups, or splits, that the tasks of the component own; 0 if they own none."""
        return component.splits or (self.key_groups if component.keyed else 0)

    @property
    def exactly_once(self) -> bool:
        return bool(GUARANTEE.of(self.config) == EXACTLY_ONCE)

    @property
    def waves(self) -> bool:
        """True if the topology has waves: it is exactly-once, or has state to snapshot."""
        return self.exactly_once or any(component.stateful for component in self.components)

    def upstream(self, name: str) -> tuple[TaskId, ...]:
        """The tasks that have a channel to each task of this component."""
        sources = dict.fromkeys(read.source for read in self.component(name).inputs)
        return tuple(TaskId(source, index) for source in sources for index in range(self.component(source).par))

    def movable(self, task: TaskId) -> bool:
        """True if the task may move to another worker while it runs."""
        return not self.why_fixed(task)

    def why_fixed(self, task: TaskId) -> str:
        """The reason why the task cannot move to another worker while it runs; empty if it can."""
        component = self.component(task.component) if task.component != ACKER else None
        if component is not None and not component.movable:
            return ("its source cannot be replayed, so its tuples in flight would be lost. Derive the spout from "
                    "ReplayableSpout to move it")
        if component is not None and self.exactly_once and component.commits and not (component.takes_over or self.batched):
            return "its sink does not define take_over, so rows that it has staged would be lost. Define it to move the task"
        return ""

    def why_groups_fixed(self, name: str) -> str:
        """The reason why key groups of the component cannot go to other tasks of it; empty if they can. With state by key as
        well as a `snapshot`, the former is what belongs to keys."""
        component = self.component(name)
        if component.own_state and not component.keyed_state:
            return ("all its state is the result of snapshot(), which belongs to a task and cannot be divided. Keep the state "
                    "by key instead: key groups can be redistributed")
        return ""

    def downstream(self, name: str) -> tuple[tuple[ComponentDef, Input], ...]:
        """The readers of this component, once for each stream that they read."""
        self._position(name)
        return tuple((component, read) for component in self.components
                     for read in component.inputs if read.source == name)

    def all_downstream(self, name: str) -> tuple[TaskId, ...]:
        """The tasks that tuples of this component can lead to, over any number of others."""
        found = {name}
        for component in self.components:  # which are in the order of the stream
            if any(read.source in found for read in component.inputs):
                found.add(component.name)
        return tuple(TaskId(component.name, index) for component in self.components
                     if component.name in found and component.name != name for index in range(component.par))

    def is_sink(self, name: str) -> bool:
        """True for a bolt whose output nobody reads, its dead letters apart."""
        return (self.component(name).kind == "bolt"
                and all(read.stream == DEAD_LETTERS for _, read in self.downstream(name)))

    def number(self, task: TaskId) -> int:
        """The task's number on the wire. It does not change when the parallelism of a component changes."""
        if task.component == ACKER:
            position, par = _ACKER_NUMBER, self.ackers
        else:
            position = self._position(task.component)
            par = self.components[position].par
            position += 1
        if not 0 <= task.index < par:
            raise UnknownName(f"there is no task {task} in {self.name!r}: {task.component!r} has {par} tasks")
        return position << 16 | task.index

    def task(self, number: int) -> TaskId:
        """The task with this number."""
        position, index = number >> 16, number & 0xFFFF
        if position == _ACKER_NUMBER and index < self.ackers:
            return TaskId(ACKER, index)
        if 1 <= position <= len(self.components) and index < self.components[position - 1].par:
            return TaskId(self.components[position - 1].name, index)
        raise UnknownName(f"no task of {self.name!r} has the number {number:#x}")

    def source_number(self, source: TaskId) -> int:
        """The number of a position on the wire: of a task, or of a split of a spout."""
        return self._position(source.component) + 1 << 16 | source.index

    def source(self, number: int) -> TaskId | None:
        """The task or split whose position has this number; None if there is none any more."""
        position, index = number >> 16, number & 0xFFFF
        if 1 <= position <= len(self.components) and self.components[position - 1].splits > index:
            return TaskId(self.components[position - 1].name, index)
        return self.find(number)

    def find(self, number: int) -> TaskId | None:
        """The task with this number; None if there is none, for example because its component has fewer tasks now."""
        try:
            return self.task(number)
        except UnknownName:
            return None

    def _position(self, name: str) -> int:
        try:
            positions = self._positions
        except AttributeError:
            positions = {component.name: number for number, component in enumerate(self.components)}
            object.__setattr__(self, "_positions", positions)
        try:
            return positions[name]
        except KeyError:
            raise UnknownName(f"topology {self.name!r} has no component {name!r}; "
                              f"it has {', '.join(positions)}") from None


def graph_of(topology: type[Topology], name: str | None = None, config: dict[str, Any] | None = None,
             par: dict[str, int] | None = None) -> TopologyGraph:
    """Turns a declaration into a graph. `config` overrides the topology's settings, `par` the components' parallelism."""
    if not isinstance(topology, type) or not issubclass(topology, Topology) or not topology.specs:
        raise TypeError(f"graph_of takes a subclass of Topology, not {topology!r}")
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"a topology's name must be a non-empty str, not {name!r}")
    merged = {**topology.config, **checked_config(f"topology {topology.__name__}", config)}
    chosen = dict(par or {})
    components = [_component_of(spec, chosen.pop(str(spec.name), None), merged) for spec in _ordered(topology.specs)]
    if chosen:
        raise UnknownName(f"par names {', '.join(map(repr, chosen))}, which {topology.__name__} does not have; "
                          f"it has {', '.join(component.name for component in components)}")
    graph = TopologyGraph(name or topology.__name__.lower(), tuple(components), _plain(merged))
    for component in components:
        if component.keyed and component.par > graph.key_groups:
            raise TopologyError(f"{component.name!r} has par {component.par} but only {graph.key_groups} key groups: "
                                f"lower par, or raise {KEY_GROUP_COUNT.key} to at least {component.par}")
        if 0 < component.splits < component.par:
            raise TopologyError(f"{component.name!r} has par {component.par} but only {component.splits} splits, and a task "
                                f"without one would have nothing to read: lower par, or raise splits to at least "
                                f"{component.par}")
    return graph


def batched(graph: TopologyGraph) -> TopologyGraph:
    """The graph as it runs in batches: exactly-once, since a batch that is run again must not count twice. Spouts that read a
    DataFrame have no splits: Spark deals the rows of each batch to the tasks that there are."""
    return replace(graph, batched=True, config={**graph.config, GUARANTEE.key: EXACTLY_ONCE},
                   components=tuple(replace(component, splits=0) if component.dataframe else component
                                    for component in graph.components))


def resolve(code: str) -> Any:
    """Imports the object named by "module:qualified.name"."""
    module_name, colon, qualified = code.partition(":")
    if not module_name or not colon or not qualified:
        raise TopologyError(f'{code!r} is not of the form "module:qualified.name"')
    try:
        resolved: Any = importlib.import_module(module_name)
    except BaseException as error:  # user code runs here and may raise anything
        if is_interrupt(error):
            raise
        raise TopologyError(f"cannot import module {module_name!r} for {code!r}: {type(error).__name__}: {error}. "
                            "Install it, or put its directory on PYTHONPATH, wherever workers run") from error
    for part in qualified.split("."):
        try:
            resolved = getattr(resolved, part)
        except AttributeError as error:
            raise TopologyError(f"module {module_name!r} has no {qualified!r}, needed for {code!r}: define it at the top of "
                                "that module, and make sure that workers have the same version of it") from error
    return resolved


def _ordered(specs: list[ComponentSpec]) -> list[ComponentSpec]:
    """The specs in topological order, in order of declaration among equals."""
    position = {str(spec.name): number for number, spec in enumerate(specs)}
    waiting = {number: {position[str(read.source)] for read in spec.inputs} for number, spec in enumerate(specs)}
    readers: dict[int, list[int]] = {number: [] for number in waiting}
    for number, sources in waiting.items():
        for source in sources:
            readers[source].append(number)
    ready = [number for number, sources in waiting.items() if not sources]
    ordered = []
    while ready:
        number = heapq.heappop(ready)
        ordered.append(specs[number])
        for reader in readers[number]:
            waiting[reader].discard(number)
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return ordered


def _component_of(spec: ComponentSpec, par: Any, config: dict[str, Any]) -> ComponentDef:
    component_cls = spec.component_cls
    wanted, splits = _chosen_par(spec, par, config), _splits_of(spec, component_cls)
    return ComponentDef(
        name=str(spec.name),
        kind="spout" if issubclass(component_cls, Spout) else "bolt",
        code=_code_of(spec.label, component_cls),
        par=wanted,
        config=_plain(spec.config),
        outputs=tuple(StreamDef(stream.name, stream.fields, stream.direct) for stream in spec.all_outputs),
        inputs=tuple(Input(str(read.source), read.stream, cast(Grouping, read.grouping)) for read in spec.inputs),
        blocking=component_cls.blocking,
        mode=cast(Mode, mode_of(component_cls, spec.label)),
        # The feed of a DataFrame spout sends unacked batches again, wherever the spout is by then.
        movable=(not issubclass(component_cls, Spout) or issubclass(component_cls, ReplayableSpout)
                 or spec.dataframe is not None),
        # Spark's checkpoint is what a DataFrame is read again from: the state of its splits needs no waves.
        stateful=spec.dataframe is None and _is_stateful(spec, component_cls),
        commits=issubclass(component_cls, TwoPhaseSink),
        own_state=component_cls.snapshot is not Component.snapshot and not splits,  # that of a split goes with its position
        takes_over=(not issubclass(component_cls, TwoPhaseSink) or component_cls.take_over is not TwoPhaseSink.take_over),
        dataframe=spec.dataframe is not None,
        keyed_state=_keeps_state_by_key(spec, component_cls),
        declared=_chosen_par(spec, None, config) if isinstance(spec.par, int) else wanted,
        chosen=par is not None,
        merges=declares_merge(component_cls),
        splits=splits,
        divided_by_source=(issubclass(component_cls, Spout) and component_cls.divided_by_source
                           and not issubclass(component_cls, ReplayableSpout)),
    )


def _splits_of(spec: ComponentSpec, component_cls: type[Component]) -> int:
    """The number of splits that its config or its class sets."""
    if not issubclass(component_cls, ReplayableSpout):
        if issubclass(component_cls, Spout) and spec.config.get("splits"):
            raise TopologyError(f"component {spec.label} cannot have splits: {component_cls.__name__} cannot be read from a "
                                "position, and each split has one. Leave them out, or use a ReplayableSpout")
        return 0
    splits = spec.config.get("splits", component_cls.splits)
    if not isinstance(splits, int) or isinstance(splits, bool) or not 0 <= splits <= TASKS_LIMIT:
        raise TopologyError(f"splits of {spec.label} is {splits!r}: give a whole number from 1 to {TASKS_LIMIT}, or 0 for none")
    return splits


def _is_stateful(spec: ComponentSpec, component_cls: type[Component]) -> bool:
    """True if it defines `snapshot`, or if its tasks own key groups and it uses keyed state."""
    if component_cls.snapshot is not Component.snapshot:
        if component_cls.restore is Component.restore:
            raise TopologyError(f"component {spec.label} defines snapshot and not restore: its snapshot could not be restored")
        return True
    return _keeps_state_by_key(spec, component_cls)


def _keeps_state_by_key(spec: ComponentSpec, component_cls: type[Component]) -> bool:
    keyed = any(cast(Grouping, read.grouping).kind == "fields" for read in spec.inputs)
    return keyed and uses_state(component_cls)


def _code_of(label: str, component_cls: type[Component]) -> str:
    if "<" in component_cls.__qualname__:
        raise TopologyError(f"component {label} is of class {component_cls.__qualname__}, which is defined inside a "
                            "function, where no worker can import it: move it to the top of a module")
    return f"{component_cls.__module__}:{component_cls.__qualname__}"


def _chosen_par(spec: ComponentSpec, override: Any, config: dict[str, Any]) -> int:
    par = spec.par if override is None else checked_par(spec.label, override)
    if isinstance(par, dict):
        environment = config.get(ENVIRONMENT)
        if environment not in par:
            value = "is not set" if environment is None else f"is {environment!r}"
            raise TopologyError(f"par of {spec.label} is declared for {', '.join(par)}, but {ENVIRONMENT} {value}: "
                                "set it to one of these in the topology's config")
        par = par[environment]
    if par > TASKS_LIMIT:
        raise TopologyError(f"par of {spec.label} is {par}: a component has at most {TASKS_LIMIT} tasks")
    return par


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """The settings as workers decode them, so that a graph equals its copy on a worker."""
    return cast(dict[str, Any], msgspec.msgpack.decode(msgspec.msgpack.encode(config)))

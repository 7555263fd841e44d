"""Topologies declared as class bodies, checked when the class is created: mistakes are found before anything runs.

    class WordCount(Topology):
        lines = Lines.spec(par=2)
        split = Split.spec(inputs=[lines], par=4)
        count = Count.spec(inputs={split: Grouping.fields("word")}, par=8)

A `ComponentSpec` is immutable. The topology keeps its own copies, named after their attributes, with inputs that name their
sources, so one spec may be used in any number of topologies.
"""

from __future__ import annotations

import copy
import keyword
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from millrace.api.bolt import BatchingBolt, Bolt, declares_merge
from millrace.api.component import Component
from millrace.api.grouping import MERGE, Grouping
from millrace.api.spout import ReplayableSpout, Spout
from millrace.api.tuple import DEAD_LETTER_FIELDS, DEAD_LETTERS, DEFAULT_STREAM
from millrace.errors import TopologyError, UnknownName

BOLT_METHODS = ("process", "process_rows", "process_arrow")
RESERVED_PREFIX = "__"


@dataclass(frozen=True, slots=True)
class Stream:
    """One output of a component: its fields, its name, and whether the producer chooses the receiving task."""

    fields: tuple[str, ...] = ()
    name: str = DEFAULT_STREAM
    direct: bool = False

    def __init__(self, fields: Iterable[str] | None = None, name: str = DEFAULT_STREAM, direct: bool = False) -> None:
        if fields is not None and not isinstance(fields, list | tuple):
            raise TypeError(f"Stream fields must be a list or tuple of str, not {fields!r} ({type(fields).__name__})")
        if not isinstance(name, str):
            raise TypeError(f"Stream name must be a str, not {name!r} ({type(name).__name__})")
        if not isinstance(direct, bool):
            raise TypeError(f"Stream direct must be True or False, not {direct!r} ({type(direct).__name__})")
        if not name or name.startswith(RESERVED_PREFIX):
            raise TopologyError(f"Stream name {name!r} must not be empty nor begin with {RESERVED_PREFIX!r}; rename it")
        object.__setattr__(self, "fields", _checked_fields(name, tuple(fields or ())))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "direct", direct)


def _checked_fields(stream: str, fields: tuple[Any, ...]) -> tuple[str, ...]:
    for number, field in enumerate(fields):
        if not isinstance(field, str):
            raise TypeError(f"fields of stream {stream!r} must be str, not {field!r} ({type(field).__name__})")
        if not field.isidentifier() or keyword.iskeyword(field) or field.startswith("_"):
            # Values are named tuples, so a field must be a valid attribute name.
            raise TopologyError(f"field {field!r} of stream {stream!r} cannot be an attribute: use letters, digits and "
                                "underscores, begin with a letter, and avoid Python's keywords")
        if field in fields[:number]:
            raise TopologyError(f"field {field!r} occurs twice in stream {stream!r} ({', '.join(fields)}); rename one")
    return fields


_DEAD_LETTER_STREAM = Stream(DEAD_LETTER_FIELDS, DEAD_LETTERS)


@dataclass(frozen=True, slots=True)
class StreamRef:
    """One stream of one component, as returned by `spec["stream"]`.

    A component that is declared further down the class body is named by a str.
    """

    component: ComponentSpec | str
    stream: str = DEFAULT_STREAM

    def __post_init__(self) -> None:
        for value in (self.stream,) if isinstance(self.component, ComponentSpec) else (self.component, self.stream):
            if not isinstance(value, str):
                raise TypeError(f"StreamRef takes a spec or a component's name, and a stream's name; "
                                f"not {value!r} ({type(value).__name__})")


@dataclass(frozen=True, slots=True)
class SpecInput:
    """One input of a bolt. In a topology's copy of a spec, `source` is the component's name and `grouping` is known."""

    source: ComponentSpec | str
    stream: str
    grouping: Grouping | None  # None: not known yet, because the source is declared further down


class ComponentSpec:
    """A component as placed in a topology: its class, name, parallelism, settings and inputs. Immutable."""

    __slots__ = ("_named", "_origin", "component_cls", "config", "dataframe", "inputs", "name", "outputs", "par")

    component_cls: type[Component]
    name: str | None
    par: int | dict[str, int]
    config: dict[str, Any]
    inputs: tuple[SpecInput, ...]
    outputs: tuple[Stream, ...]
    dataframe: Any  # the source of a DataFrame spout (see api/dataframe.py); it never leaves the driver
    _named: bool  # by spec(name=...), rather than by the attribute
    _origin: ComponentSpec  # the spec as the user made it; the topology's spec is a copy

    def __init__(self, component_cls: type[Component], *, name: str | None = None, inputs: Any = None,
                 par: Any = None, config: dict[str, Any] | None = None, outputs: Any = None, dataframe: Any = None) -> None:
        label = _checked_class(component_cls, name)
        if inputs is not None and not issubclass(component_cls, Bolt):
            raise TypeError(f"{label} is a spout and takes no inputs; remove inputs={inputs!r}")
        self.__setstate__({
            "component_cls": component_cls,
            "name": name,
            "par": checked_par(label, component_cls.par if par is None else par),
            "config": checked_config(label, component_cls.config if config is None else config),
            "inputs": _checked_inputs(label, inputs),
            "outputs": _checked_outputs(label, component_cls.outputs if outputs is None else outputs),
            "dataframe": dataframe,
            "_named": name is not None,
            "_origin": self,
        })

    def __getstate__(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in self.__slots__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for key, value in state.items():
            object.__setattr__(self, key, value)

    def __setattr__(self, key: str, value: Any) -> None:
        raise AttributeError(f"a spec is immutable: pass {key} to {self.component_cls.__name__}.spec()")

    def __delattr__(self, key: str) -> None:
        raise AttributeError(f"a spec is immutable: {key} cannot be deleted")

    def __getitem__(self, stream: str) -> StreamRef:
        self.stream(stream)
        return StreamRef(self, stream)

    @property
    def dead_letters(self) -> StreamRef:
        """The stream of tuples that this bolt could not process."""
        return self[DEAD_LETTERS]

    def stream(self, name: str) -> Stream:
        """The output of that name; KeyError if there is none."""
        for stream in self.all_outputs:
            if stream.name == name:
                return stream
        have = ", ".join(repr(stream.name) for stream in self.all_outputs) or "none"
        raise UnknownName(f"{self.label} has no stream {name!r}; it has {have}. Pick one with spec[name], or declare "
                          f"it in {self.component_cls.__name__}.outputs")

    @property
    def all_outputs(self) -> tuple[Stream, ...]:
        """The declared outputs and, for a bolt, its dead letters."""
        return (*self.outputs, _DEAD_LETTER_STREAM) if issubclass(self.component_cls, Bolt) else self.outputs

    @property
    def label(self) -> str:
        """The component's name for messages, or its class if it has no name yet."""
        return repr(self.name) if self.name is not None else self.component_cls.__name__

    def __repr__(self) -> str:
        return f"<spec of {self.component_cls.__name__}, name={self.name!r}, par={self.par}>"

    def _with(self, **changes: Any) -> ComponentSpec:
        """A copy with these changes, for a topology."""
        placed = object.__new__(ComponentSpec)
        placed.__setstate__({**self.__getstate__(), "config": copy.deepcopy(self.config), **changes})
        return placed


# ---- checks made when spec() is called ----


def _checked_class(component_cls: Any, name: Any) -> str:
    if not isinstance(component_cls, type) or not issubclass(component_cls, Spout | Bolt):
        raise TypeError(f"a spec needs a subclass of Spout or Bolt, not {component_cls!r}")
    if name is not None:
        checked_name(name)
    label = repr(name) if name is not None else component_cls.__name__
    mode_of(component_cls, label)
    return label


def checked_name(name: Any) -> str:
    """Returns the component name if it is valid."""
    if not isinstance(name, str):
        raise TypeError(f"a component's name must be a str, not {name!r} ({type(name).__name__})")
    if not name or name.startswith(RESERVED_PREFIX) or "[" in name or "]" in name:
        # "count[3]" names a task, and "__" is reserved for the engine's components.
        raise TopologyError(f"component name {name!r} must not be empty, begin with {RESERVED_PREFIX!r} or hold square "
                            "brackets; rename the attribute or give spec(name=...)")
    return name


def mode_of(component_cls: type[Component], label: str | None = None) -> str:
    """The method through which the engine drives the component; an error unless there is exactly one."""
    label = label or component_cls.__name__
    if issubclass(component_cls, Spout):
        if component_cls.next_tuple is Spout.next_tuple:
            raise TopologyError(f"spout {label} ({component_cls.__name__}) has no next_tuple: define it")
        if issubclass(component_cls, ReplayableSpout) and component_cls.seek is ReplayableSpout.seek:
            raise TopologyError(f"spout {label} ({component_cls.__name__}) is replayable but has no seek: define it")
        return "next_tuple"
    if issubclass(component_cls, BatchingBolt) and component_cls.process_batch is BatchingBolt.process_batch:
        raise TopologyError(f"batching bolt {label} ({component_cls.__name__}) has no process_batch: define it")
    methods = [method for method in BOLT_METHODS if callable(getattr(component_cls, method, None))
               and getattr(component_cls, method) is not Bolt.process]
    if not methods:
        raise TopologyError(f"bolt {label} ({component_cls.__name__}) defines none of {', '.join(BOLT_METHODS)}: "
                            "define one")
    if len(methods) > 1:
        raise TopologyError(f"bolt {label} ({component_cls.__name__}) defines {' and '.join(methods)}, and only one can be "
                            "called: keep one, and set an inherited one to None")
    return methods[0]


def checked_par(label: str, par: Any) -> int | dict[str, int]:
    """Returns the parallelism if it is valid: a positive int, or one for each environment."""
    if isinstance(par, dict):
        if not par:
            raise TopologyError(f"par of {label} is an empty dict: give {{environment: number of tasks}} or an int")
        for environment, number in par.items():
            if not isinstance(environment, str):
                raise TypeError(f"par of {label} has the key {environment!r}: environments are named by str")
            if isinstance(checked_par(f"{label} in environment {environment!r}", number), dict):
                raise TypeError(f"par of {label} for {environment!r} must be an int, not {number!r}")
        return dict(par)
    if isinstance(par, bool) or not isinstance(par, int):
        raise TypeError(f"par of {label} must be an int, or a dict of str to int, not {par!r} ({type(par).__name__})")
    if par < 1:
        raise TopologyError(f"par of {label} is {par}: it must be at least 1")
    return par


def checked_config(label: str, config: Any) -> dict[str, Any]:
    """Returns a copy of the settings if they can be sent to the workers."""
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise TypeError(f"config of {label} must be a dict, not {config!r} ({type(config).__name__})")
    for key, value in config.items():
        if not isinstance(key, str):
            raise TypeError(f"config of {label} has the key {key!r} ({type(key).__name__}): keys must be str")
        try:
            msgspec.msgpack.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise TopologyError(f"config {key!r} of {label} cannot be sent to the workers: {error}. Use numbers, str, "
                                f"bytes, lists and dicts, not {type(value).__name__}") from error
    return copy.deepcopy(config)


def _checked_outputs(label: str, outputs: Any) -> tuple[Stream, ...]:
    if outputs is None:
        return ()
    if not isinstance(outputs, list | tuple):
        raise TypeError(f"outputs of {label} must be a list of field names and Streams, not {outputs!r} "
                        f"({type(outputs).__name__})")
    for item in outputs:
        if not isinstance(item, str | Stream):
            raise TypeError(f"outputs of {label} holds {item!r} ({type(item).__name__}): use field names and Streams")
    names = [item for item in outputs if isinstance(item, str)]
    try:
        streams = [Stream(names)] if names else []
    except TopologyError as error:
        raise TopologyError(f"outputs of {label}: {error}") from None
    streams += [item for item in outputs if isinstance(item, Stream)]
    seen: set[str] = set()
    for stream in streams:
        if stream.name in seen:
            raise TopologyError(f"outputs of {label} has the stream {stream.name!r} twice: rename one, or join them")
        if stream.name == DEAD_LETTERS:
            raise TopologyError(f"outputs of {label} declares {DEAD_LETTERS!r}, which every bolt has: rename yours")
        seen.add(stream.name)
    return tuple(streams)


def _checked_inputs(label: str, inputs: Any) -> tuple[SpecInput, ...]:
    if inputs is None:
        return ()
    if isinstance(inputs, ComponentSpec | StreamRef):
        inputs = [inputs]
    if not isinstance(inputs, list | tuple | Mapping):
        raise TypeError(f"inputs of {label} must be a list of specs, or a dict of spec to Grouping, not {inputs!r} "
                        f"({type(inputs).__name__})")
    pairs = inputs.items() if isinstance(inputs, Mapping) else [(item, None) for item in inputs]
    checked = []
    for source, grouping in pairs:
        if not isinstance(source, ComponentSpec | StreamRef):
            raise TypeError(f"inputs of {label} holds {source!r} ({type(source).__name__}): use specs, and "
                            'spec["stream"] for one stream of them')
        if isinstance(inputs, Mapping) and not isinstance(grouping, Grouping):
            raise TypeError(f"inputs of {label}: {source!r} needs a Grouping, not {grouping!r} "
                            f"({type(grouping).__name__}); write for example Grouping.SHUFFLE")
        ref = source if isinstance(source, StreamRef) else source[DEFAULT_STREAM]
        if grouping is None and isinstance(ref.component, ComponentSpec):
            grouping = _default_grouping(ref.component.stream(ref.stream))
        checked.append(SpecInput(ref.component, ref.stream, grouping))
    return tuple(checked)


def _default_grouping(stream: Stream) -> Grouping:
    return Grouping.DIRECT if stream.direct else Grouping.SHUFFLE


def _grouping_for(spec: ComponentSpec, source: ComponentSpec, stream_name: str, grouping: Grouping | None) -> Grouping:
    """The grouping for that stream; an error if `grouping` does not fit it."""
    stream, label = source.stream(stream_name), spec.label
    if grouping is None:
        return _default_grouping(stream)
    where = f"stream {stream.name!r} of {source.label}"
    if stream.direct and grouping != Grouping.DIRECT:
        raise TopologyError(f"{label} reads {where} by {grouping!r}, but that stream is direct: use Grouping.DIRECT")
    if grouping == Grouping.DIRECT and not stream.direct:
        raise TopologyError(f"{label} reads {where} by direct, but that stream is not direct: declare it with "
                            "Stream(..., direct=True) or use another grouping")
    for name in grouping.names:
        if name not in stream.fields:
            raise TopologyError(f"{label} groups {where} by the field {name!r}, which it does not have: "
                                f"its fields are {', '.join(stream.fields) or 'none'}")
    if grouping.combine == MERGE and not declares_merge(spec.component_cls):
        raise TopologyError(f'{label} reads {where} with combine="{MERGE}", but {spec.component_cls.__name__} has no static '
                            f"method merge(one, other): define it, or name an aggregate for each field")
    if grouping.combine and not isinstance(grouping.combine, str):
        _check_aggregates(f"{label} combines {where}", stream.fields, grouping.names, [name for name, _ in grouping.combine])
    return grouping


def _check_aggregates(what: str, fields: Sequence[str], keys: Sequence[str], aggregated: Sequence[str]) -> None:
    """Every field of a stream that is combined must be a key or have an aggregate."""
    for name in aggregated:
        if name not in fields:
            raise TopologyError(f"{what} by an aggregate of the field {name!r}, which it does not have: its fields are "
                                f"{', '.join(fields)}")
    missing = [name for name in fields if name not in (*keys, *aggregated)]
    if missing:
        raise TopologyError(f"{what} and says nothing about {', '.join(map(repr, missing))}: tuples that are combined keep all "
                            "fields, so give each an aggregate, or group by it")


# ---- checks made when the class body ends ----


class Topology:
    """Base of all topologies. Used as a class, never instantiated; `specs` is in order of declaration.

    Settings are inherited, specs are not: a subclass of a topology declares all its components.
    """

    config: ClassVar[dict[str, Any]] = {}
    specs: ClassVar[list[ComponentSpec]] = []

    def __init__(self) -> None:
        raise TypeError(f"{type(self).__name__} is a declaration and is never instantiated: pass the class itself")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.config = checked_config(f"topology {cls.__name__}", cls.config)
        placed = _place(cls)
        for attribute, spec in placed.items():
            inputs = tuple(_resolved(cls, spec, read, placed) for read in spec._origin.inputs)
            placed[attribute] = spec._with(inputs=inputs)
            _check_ends(cls, placed[attribute])
        if not any(issubclass(spec.component_cls, Spout) for spec in placed.values()):
            raise TopologyError(f"topology {cls.__name__} has no spout, so it would never get a tuple: add one")
        _refuse_cycles(cls, {str(spec.name): spec for spec in placed.values()})
        for attribute, spec in placed.items():
            setattr(cls, attribute, spec)
        cls.specs = list(placed.values())


def _place(topology: type[Topology]) -> dict[str, ComponentSpec]:
    """The topology's own copy of each spec in the class body, by attribute."""
    body = dict(vars(topology))
    used = {value.component_cls for value in body.values() if isinstance(value, ComponentSpec)}
    placed: dict[str, ComponentSpec] = {}
    for attribute, value in body.items():
        _refuse_bare_component(topology, attribute, value, used)
        if isinstance(value, ComponentSpec):
            if attribute == "specs":
                raise TopologyError(f"{topology.__name__}.specs is the list of its components: rename the attribute")
            name = checked_name(value._origin.name if value._named else attribute)
            _refuse_duplicate(topology, attribute, name, value, placed)
            placed[attribute] = value._with(name=name)
    if not placed:
        inherited = next((base for base in topology.__mro__[1:] if vars(base).get("specs")), None)
        hint = f" (those of {inherited.__name__} are not inherited: declare them here)" if inherited else ""
        raise TopologyError(f"topology {topology.__name__} has no components{hint}: add at least a spout")
    return placed


def _refuse_bare_component(topology: type[Topology], attribute: str, value: Any, used: set[type[Component]]) -> None:
    if isinstance(value, Component):
        raise TypeError(f"{topology.__name__}.{attribute} is an instance of {type(value).__name__}: the engine makes "
                        f"the instances; write {attribute} = {type(value).__name__}.spec(...)")
    if isinstance(value, type) and issubclass(value, Component):
        # A class defined in the body, rather than assigned there, is a component only if it has a spec.
        if value in used and value.__qualname__ == f"{topology.__qualname__}.{attribute}":
            return
        raise TypeError(f"{topology.__name__}.{attribute} is the class {value.__name__}, which would be ignored; "
                        f"write {attribute} = {value.__name__}.spec(...)")


def _refuse_duplicate(topology: type[Topology], attribute: str, name: str, spec: ComponentSpec,
                      placed: dict[str, ComponentSpec]) -> None:
    for other_attribute, other in placed.items():
        if other._origin is spec._origin:
            raise TopologyError(f"{topology.__name__}: {other_attribute} and {attribute} are the same spec; call "
                                f"{spec.component_cls.__name__}.spec() once for each")
        if other.name == name:
            raise TopologyError(f"{topology.__name__}: {other_attribute} and {attribute} are both named {name!r}; "
                                "give one of them another name")


def _resolved(topology: type[Topology], spec: ComponentSpec, read: SpecInput,
              placed: dict[str, ComponentSpec]) -> SpecInput:
    """The input with its source named, and its grouping checked against the stream."""
    for source in placed.values():
        wanted = read.source
        if source._origin is wanted._origin if isinstance(wanted, ComponentSpec) else source.name == wanted:
            grouping = _grouping_for(spec, source, read.stream, read.grouping)
            return SpecInput(str(source.name), read.stream, grouping)
    label = read.source.label if isinstance(read.source, ComponentSpec) else repr(read.source)
    raise UnknownName(f"{spec.label} in {topology.__name__} reads {label}, which is not declared in this class body "
                      "(components of a base class are not inherited): declare it here. "
                      f"The class body has {', '.join(str(other.name) for other in placed.values())}")


def _check_ends(topology: type[Topology], spec: ComponentSpec) -> None:
    if issubclass(spec.component_cls, Spout):
        if not spec.outputs:
            raise TopologyError(f"spout {spec.label} in {topology.__name__} has no outputs, so it can emit nothing: "
                                f'set {spec.component_cls.__name__}.outputs, for example to ["word"]')
        return
    if not spec.inputs:
        raise TopologyError(f"bolt {spec.label} in {topology.__name__} has no inputs, so it would never get a tuple: "
                            "give spec(inputs=[...])")
    seen: set[tuple[object, str]] = set()
    for read in spec.inputs:
        if (read.source, read.stream) in seen:
            raise TopologyError(f"bolt {spec.label} in {topology.__name__} reads stream {read.stream!r} of "
                                f"{read.source!r} twice: name it once")
        seen.add((read.source, read.stream))


def _refuse_cycles(topology: type[Topology], by_name: dict[str, ComponentSpec]) -> None:
    done: set[str] = set()
    for start in by_name:
        path: dict[str, None] = {}  # the path from `start` upstream, in order
        stack = [(start, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                done.add(name)
                del path[name]
            elif name in path:
                cycle = [*path][[*path].index(name):]
                # The path runs against the streams; printed along them it is easier to find in the class body.
                text = " -> ".join([name, *reversed(cycle)])
                raise TopologyError(f"topology {topology.__name__} has a cycle, {text}: tuples would circulate in it for "
                                    "ever; remove one of its inputs")
            elif name not in done:
                path[name] = None
                stack.append((name, True))
                stack += [(str(read.source), False) for read in by_name[name].inputs]

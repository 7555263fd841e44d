"""Where the streams and the state of running topologies can be read from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millrace.connectors.tap import TAP_METRIC, Tap
from millrace.errors import MillraceError, UnknownName
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph, resolve
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.master.service import Master


def reading_verbs(master: Master) -> dict[str, Callable[[dict[str, Any]], Any]]:
    return {"has": lambda request: request["topology"] in master.state.topologies,
            "taps": lambda request: _described(master, request["topology"], request["component"]),
            "store": lambda request: master.checkpointing.place}


def taps_for(master: Master, asked: wire.AskTaps) -> wire.Taps:
    """For readers on other hosts, who cannot come to the desk."""
    try:
        _tap_of(master.state.topology(asked.topology).graph, asked.component)
        return wire.Taps(_places(master, asked.topology, asked.component))
    except MillraceError as error:
        return wire.Taps({}, str(error))


def _described(master: Master, topology: str, component: str) -> dict[str, Any]:
    """All that a reader needs: also the keys, since the desk is for the user who owns them."""
    graph = master.state.topology(topology).graph
    tap = _tap_of(graph, component)
    first = tap.inputs[0]
    return {"master": master.endpoint, "public": master.keys.public, "secret": master.keys.secret, "par": tap.par,
            "exactly_once": graph.exactly_once,
            "fields": list(graph.component(first.source).stream(first.stream).fields),
            "places": _places(master, topology, component)}


def _tap_of(graph: TopologyGraph, name: str) -> ComponentDef:
    taps = {component.name: component for component in graph.components
            if component.kind == "bolt" and issubclass(resolve(component.code), Tap)}
    if name not in taps:
        raise UnknownName(f"topology {graph.name!r} has no tap {name!r} to read; it has {', '.join(taps) or 'none'}. Declare "
                          f"one: {name} = Tap.spec(inputs={{...}}), with `from millrace.connectors.tap import Tap`")
    if graph.batched:
        raise MillraceError(f"{graph.name!r} runs in batches, and a tap can only be read from the resident engine: write the "
                            "stream with a sink, or run the topology there")
    return taps[name]


def _places(master: Master, topology: str, component: str) -> dict[int, dict[str, str]]:
    """Of the tasks that have said where they are; none of one that is being placed anew."""
    observed, state = master.observed[topology], master.state.topology(topology)
    places: dict[int, dict[str, str]] = {}
    for task, place in state.places.items():
        seen = observed.tasks.get(TaskId(component, task.index)) if task.component == component else None
        if seen is not None and seen.incarnation == place.incarnation and place.slot in master.connections \
                and TAP_METRIC in seen.custom:
            places[task.index] = seen.custom[TAP_METRIC]
    return places

"""Directory of taps: the addresses at which streams of running topologies can be read from outside."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

from millrace.connectors.tap import TAP_METRIC, Tap
from millrace.errors import MillraceError, UnknownName
from millrace.master.load.observed import TopologyObserved
from millrace.master.state_view import MasterView
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph, resolve
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.transport import Keys


class TapDirectory:
    """Tells readers where taps are. `connected`: slots of the connected workers. `endpoint`: that of the master's port for
    workers."""

    def __init__(self, state: MasterView, observed: Mapping[str, TopologyObserved], connected: Container[int],
                 endpoint: Callable[[], str], keys: Keys) -> None:
        self._state, self._observed, self._connected = state, observed, connected
        self._endpoint, self._keys = endpoint, keys

    def answer(self, request: wire.AskTaps) -> wire.Taps:
        """Answer a reader on another host, which cannot use the request socket."""
        try:
            _tap_of(self._state.topology(request.topology).graph, request.component)
            return wire.Taps(self._addresses(request.topology, request.component))
        except MillraceError as error:
            return wire.Taps({}, str(error))

    def describe(self, topology: str, component: str) -> dict[str, Any]:
        """Everything a reader needs, including the keys: only the user who owns them can use the request socket."""
        graph = self._state.topology(topology).graph
        tap = _tap_of(graph, component)
        first = tap.inputs[0]
        return {"master": self._endpoint(), "public": self._keys.public, "secret": self._keys.secret, "par": tap.par,
                "exactly_once": graph.exactly_once,
                "fields": list(graph.component(first.source).stream(first.stream).fields),
                "places": self._addresses(topology, component)}

    def _addresses(self, topology: str, component: str) -> dict[int, dict[str, str]]:
        """Addresses by task index, of the tasks that have reported one. Tasks being re-placed are omitted."""
        observed, state = self._observed[topology], self._state.topology(topology)
        addresses: dict[int, dict[str, str]] = {}
        for task, place in state.places.items():
            seen = observed.tasks.get(TaskId(component, task.index)) if task.component == component else None
            if seen is not None and seen.incarnation == place.incarnation and place.slot in self._connected \
                    and TAP_METRIC in seen.custom:
                addresses[task.index] = seen.custom[TAP_METRIC]
        return addresses


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

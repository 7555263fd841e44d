"""Answers users' questions about state: the contents of the checkpoints, and the current value of a key."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from itertools import count
from typing import Any, Protocol

from millrace.api.grouping import stable_hash
from millrace.api.state_usage import used_states
from millrace.control.topology_state import TopologyState
from millrace.errors import MillraceError, UnknownName
from millrace.master.batch_log import BatchLog
from millrace.master.checkpoints.checkpointing import Checkpointing
from millrace.master.state_view import MasterView
from millrace.model.graph import ACKER, TaskId, TopologyGraph, resolve
from millrace.redaction import shown_place
from millrace.runtime.wire import messages as wire
from millrace.state.checkpoint import Manifest, wave_of

DEFAULT_STATE = "state"
ANSWER_SECONDS = 10.0


class Workers(Protocol):
    """The connected workers."""

    @property
    def connections(self) -> Mapping[int, Any]:
        """The connections to workers, by slot."""

    def send(self, slot: int, message: Any) -> None:
        """Send to a connected worker."""


class StateQueries:
    """Called on the master's thread. Answers are futures, because tasks and the store may take a while."""

    def __init__(self, state: MasterView, workers: Workers, checkpointing: Checkpointing,
                 batches: Mapping[str, BatchLog]) -> None:
        self._state, self._workers, self._checkpointing, self._batches = state, workers, checkpointing, batches
        self._numbers = count()
        self._pending: dict[int, tuple[float, Future[dict[str, Any]]]] = {}  # deadline and answer, by number of the question

    def overview(self, name: str | None) -> Future[dict[str, Any]]:
        """The last checkpoint of the running topologies, or of one, and the number of keys that each task has now, if it
        answers."""
        topologies = [self._state.topology(name)] if name is not None else list(self._state.topologies.values())
        overview = {"store": shown_place(self._checkpointing.place),
                    "topologies": [self._topology(topology) for topology in topologies]}
        questions = {(topology.graph.name, task.component, task.index): self._ask(topology, task, "", None)
                     for topology in topologies if not topology.batched for task, place in topology.places.items()
                     if task.component != ACKER and topology.graph.component(task.component).stateful
                     and place.slot in self._workers.connections}
        return _all_of(questions, lambda answers: _with_keys(overview, answers))

    def _topology(self, topology: TopologyState) -> dict[str, Any]:
        """Describe the last checkpoint of one topology. In a batched topology each batch is a wave."""
        waves, manifest, name = topology.waves, topology.checkpoint, topology.graph.name
        if waves is None and not topology.batched:
            return {"name": name, "waves": False, "components": []}
        row = {"name": name, "waves": True, "epoch": topology.epoch, "trouble": topology.troubled,
               "components": [_component(manifest, component.name) for component in topology.graph.components
                              if component.stateful] if manifest is not None else [],
               "splits": {spout: _splits(manifest, spout) for spout in topology.graph.splits} if manifest is not None else {}}
        if waves is not None:
            return {**row, "phase": waves.phase, "wave": waves.committed, "seconds": round(waves.took, 3),
                    "abandoned": waves.abandoned}
        records = self._batches[name].records if name in self._batches else ()
        return {**row, "phase": "batch" if topology.in_batch else "idle", "wave": manifest.wave if manifest else 0,
                "seconds": round(records[-1].seconds, 3) if records else 0.0, "abandoned": 0}

    def query(self, name: str | None, component: str, key: Any, state: str | None = None) -> Future[dict[str, Any]]:
        """Look up a key of a component: its current value from the owning task or, for a batched topology, its value as of
        the last batch. `state`: name of the state; optional if the component uses `state` or has only one other."""
        topology = self._topology_with(name, component)
        if not topology.graph.component(component).keyed:
            raise UnknownName(f"{component!r} of {topology.graph.name!r} has no keyed state: none of its inputs is grouped by "
                              "fields")
        state = state or only_state(topology.graph, component)
        key = hashable(component, tuple(key) if isinstance(key, list) else key)
        owners = topology.key_groups[component]
        group = stable_hash(key) % len(owners)
        task = TaskId(component, owners[group])
        place = topology.places.get(task)
        described = {"topology": topology.graph.name, "component": component, "task": str(task),
                     "worker": place.slot if place is not None else None, "group": group,
                     "key": list(key) if isinstance(key, tuple) else key, "state": state}
        if topology.batched:
            return _merged(self._checkpointing.lookup(topology, task, group, state, key), described)
        if place is None or place.slot not in self._workers.connections:
            raise MillraceError(f"{task}, which owns key group {group}, is on no worker now: ask again")
        return _merged(self._ask(topology, task, state, key), described)

    def _ask(self, topology: TopologyState, task: TaskId, state: str, key: Any) -> Future[dict[str, Any]]:
        number, future = next(self._numbers), Future[dict[str, Any]]()
        self._pending[number] = time.monotonic() + ANSWER_SECONDS, future
        query = wire.Query(number, topology.number, topology.graph.number(task), state, key)
        self._workers.send(topology.places[task].slot, query)
        return future

    def answered(self, answer: wire.Answer) -> None:
        _, future = self._pending.pop(answer.number, (0.0, None))
        if future is not None:
            future.set_result({"found": answer.found, "value": answer.value, "error": answer.error})

    def tick(self, now: float) -> None:
        for number, (deadline, future) in list(self._pending.items()):
            if now >= deadline:
                del self._pending[number]
                future.set_exception(MillraceError(f"the task has not answered within {ANSWER_SECONDS:g} s: ask again"))

    def _topology_with(self, name: str | None, component: str) -> TopologyState:
        topologies = self._state.topologies
        if name is not None:
            topology = self._state.topology(name)
            topology.graph.component(component)  # raises, with the names that there are
            return topology
        matches = [topology for topology in topologies.values()
                   if any(definition.name == component for definition in topology.graph.components)]
        if len(matches) > 1:
            raise UnknownName(f"{', '.join(topology.graph.name for topology in matches)} all have a component {component!r}: "
                              f"choose one with `millrace state TOPOLOGY --query {component} KEY`")
        if not matches:
            components = "; ".join(f"{topology.graph.name} has "
                                   f"{', '.join(definition.name for definition in topology.graph.components)}"
                                   for topology in topologies.values())
            raise UnknownName(f"no running topology has a component {component!r}; {components or 'none is running'}")
        return matches[0]


def _splits(manifest: Manifest, name: str) -> list[dict[str, int]]:
    return sorted(({"split": split, "task": record.index, "position": place.position} for record in manifest.records
                   if record.component == name for split, place in record.splits.items()), key=lambda row: row["split"])


def _component(manifest: Manifest, name: str) -> dict[str, Any]:
    groups = []
    for record in manifest.records:
        if record.component == name:
            for group, chain in sorted(record.chains.items()):
                groups.append({"group": group, "task": record.index, "bytes": sum(ref.length for ref in chain),
                               "pieces": len(chain), "blob": chain[-1].blob, "wave": wave_of(chain[-1].blob)})
    return {"name": name, "bytes": manifest.size(name), "key_groups": groups,
            "fragments": [{"blob": blob, "raw": blocks.r, "check": blocks.c, "workers": blocks.slots}
                          for blob, blocks in sorted(manifest.blocks(name).items())]}


def hashable(component: str, key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        raise MillraceError(f"{component!r} has no entry for key {key!r}: a key is a string, a number, true, false or null, or "
                            "a list of these for several fields") from None
    return key


def only_state(graph: TopologyGraph, component: str) -> str:
    """The name of the component's only state, or of its default state."""
    names = used_states(resolve(graph.component(component).code))
    if not names or DEFAULT_STATE in names:
        return DEFAULT_STATE
    if len(names) > 1:
        raise UnknownName(f"{component!r} of {graph.name!r} has the states {', '.join(names)}: choose one with --name")
    return names[0]


def _merged(future: Future[dict[str, Any]], described: dict[str, Any]) -> Future[dict[str, Any]]:
    merged: Future[dict[str, Any]] = Future()

    def pass_on(done: Future[dict[str, Any]]) -> None:
        error = done.exception()
        if error is None:
            merged.set_result({**described, **done.result()})
        else:
            merged.set_exception(error)

    future.add_done_callback(pass_on)
    return merged


def _all_of(questions: dict[Any, Future[dict[str, Any]]], combine: Callable[[dict[Any, Any]], dict[str, Any]]) \
        -> Future[dict[str, Any]]:
    """Return a future that completes when all questions have; it combines the values of those that were answered."""
    whole: Future[dict[str, Any]] = Future()
    left = set(questions)

    def question_done(key: Any) -> None:
        left.discard(key)
        if not left:
            whole.set_result(combine({key: future.result()["value"] for key, future in questions.items()
                                      if future.exception() is None and future.result()["found"]}))

    if not questions:
        whole.set_result(combine({}))
    for key, future in questions.items():
        future.add_done_callback(lambda done, key=key: question_done(key))  # type: ignore[misc]
    return whole


def _with_keys(overview: dict[str, Any], answers: dict[tuple[str, str, int], dict[str, Any]]) -> dict[str, Any]:
    """Adds the number of keys that each task has now, and how many of them have changed since the last wave."""
    for topology in overview["topologies"]:
        for component in topology["components"]:
            component["tasks"] = {index: {"keys": sum(counts["keys"].values()), "dirty": sum(counts["dirty"].values())}
                                  for (name, of, index), counts in answers.items()
                                  if (name, of) == (topology["name"], component["name"])}
            for group in component["key_groups"]:
                counts = answers.get((topology["name"], component["name"], group["task"]))
                if counts is not None:
                    group["keys"], group["dirty"] = (counts[what].get(group["group"], 0) for what in ("keys", "dirty"))
    return overview

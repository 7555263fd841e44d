"""The master's side of checkpoints: manifests written, old ones collected, the one to go on from found, state shown.

A store may take its time, so all of it is done on one thread beside the master's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from millrace.api.grouping import stable_hash
from millrace.api.state_usage import used_states
from millrace.config import CHECKPOINTS
from millrace.control.events import ManifestStored, Submitted
from millrace.control.submission import check_choice, check_not_running
from millrace.control.topology_state import TopologyState
from millrace.errors import CorruptCheckpoint, MillraceError, NotTheAuthor, TopologyError, UnknownName
from millrace.master.state_home import state_home
from millrace.model.graph import ACKER, TaskId, TopologyGraph, resolve
from millrace.runtime.checkpoints.checkpoints import Checkpoints
from millrace.runtime.checkpoints.directory import Lock
from millrace.runtime.checkpoints.store import CheckpointStore, open_store, shown_place
from millrace.runtime.wire import messages as wire
from millrace.state.checkpoint import Manifest, wave_of
from millrace.state.task_state import TaskState, open_states

if TYPE_CHECKING:
    from millrace.master.service import Master

log = logging.getLogger("millrace.master")
DEFAULT_STATE = "state"
ANSWER_SECONDS = 10.0


def default_store(cluster: str) -> str:
    """A directory of the user's own for each cluster name: what runs under another name does not find it."""
    return str(state_home() / "checkpoints" / quote(cluster, safe=""))


class Checkpointing:
    """Called on the master's thread, unless a method says otherwise."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._store: CheckpointStore | None = None
        self._locks: dict[str, Lock | None] = {}  # by topology, of those that run
        self._numbers = count()
        self._asked: dict[int, tuple[float, Future[dict[str, Any]]]] = {}  # until when, and who waits

    @property
    def place(self) -> str:
        return str(CHECKPOINTS.of(self._master.settings))

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        for topology in list(self._locks):
            self._unlock(topology)
        if self._store is not None:
            self._store.close()

    # -- on the checkpoints' thread ----------------------------------------------------------------------------------

    def _checkpoints(self, topology: str) -> Checkpoints:
        if self._store is None:
            self._store = open_store(self.place)
        return Checkpoints(self._store, topology)

    def _submission(self, graph: TopologyGraph, resume: bool | None) -> Submitted:
        check_not_running(graph.name, self._master.state.topologies)  # of one that runs, the store has checkpoints too
        checkpoints = self._checkpoints(graph.name)
        ours = graph.name not in self._locks  # else it has just been started here, and this will be refused for that
        if ours:
            self._locks[graph.name] = checkpoints.store.lock(graph.name)
        try:
            return self._found(graph, checkpoints, resume)
        except BaseException:
            if ours:
                self._unlock(graph.name)
            raise

    def _unlock(self, topology: str) -> None:
        lock = self._locks.pop(topology, None)
        if lock is not None:
            lock.close()

    def _found(self, graph: TopologyGraph, checkpoints: Checkpoints, resume: bool | None) -> Submitted:
        found = checkpoints.latest() if resume is not False else None  # to begin anew, they need not be good
        check_choice(resume, found, shown_place(self.place))
        if resume:
            self._check_usable(graph, checkpoints, found)
        return Submitted(graph, found if resume else None, checkpoints.newest())

    def _check_usable(self, graph: TopologyGraph, checkpoints: Checkpoints, found: Manifest | None) -> None:
        if found is None:
            raise TopologyError(f"there is no checkpoint of {graph.name!r} in {shown_place(self.place)} to go on from: start "
                                "it without --resume, or name the store and the cluster that it ran in")
        if graph.exactly_once and not checkpoints.is_newest(found):
            raise CorruptCheckpoint(f"the newest checkpoint of {graph.name!r} in {shown_place(self.place)} cannot be used. To "
                                    f"go on from an older one (wave {found.wave}) would write again what its sinks have made "
                                    "visible since: bring the newest back from a backup, or delete its manifest to accept that")

    def _write(self, manifest: Manifest, claim: bool) -> None:
        error = ""
        try:
            checkpoints = self._checkpoints(manifest.topology)
            (checkpoints.claim if claim else checkpoints.commit)(msgspec.structs.replace(manifest, at=time.time()))
        except NotTheAuthor as gone:
            taken_over = gone
            self._master.later(lambda: self._master.give_way(taken_over))
            return
        except Exception as wrong:  # whatever a store raises: the wave is not committed, and the stream goes on
            error = str(wrong) if isinstance(wrong, MillraceError) else f"{type(wrong).__name__}: {wrong}"
        event = ManifestStored(manifest.topology, manifest.epoch, manifest.wave, error)
        self._master.later(lambda: self._master.tell(event))

    def _collect(self, topology: str, epoch: int) -> None:
        try:
            self._checkpoints(topology).collect(epoch=epoch)
        except Exception as error:  # whatever a store raises: it is tried again after the next wave
            log.warning("old checkpoints of %s are left: %s", topology, error)

    def _discard(self, topology: str, names: list[str]) -> None:
        try:
            self._checkpoints(topology).discard(names)
        except Exception as error:  # whatever a store raises: they are found when all names are looked at
            log.warning("%d old names of %s are left: %s", len(names), topology, error)

    def _looked_up(self, topology: TopologyState, task: TaskId, group: int, state: str, key: Any) -> dict[str, Any]:
        """What a topology that runs in batches had under the key when its last batch was committed: what its tasks have in
        memory between two batches is the same."""
        manifest = topology.checkpoint
        if manifest is None:
            return {"found": False, "value": None, "error": "no batch is committed yet", "as_of_wave": 0}
        answer: dict[str, Any] = {"found": False, "value": None, "error": "", "as_of_wave": manifest.wave}
        try:
            kept = self._kept(topology.graph, manifest, task, group)
            value = kept.lookup(state, key)
            wire.encode(value)
        except MillraceError as error:
            answer["error"] = str(error)
        except KeyError:
            answer["error"] = f"nothing is kept under {key!r} in {state!r}; its states: {', '.join(kept.names)}"
        except (TypeError, ValueError, OverflowError) as error:
            answer["error"] = f"its value cannot be sent: {error}"
        else:
            answer |= {"found": True, "value": value}
        return answer

    def _kept(self, graph: TopologyGraph, manifest: Manifest, task: TaskId, group: int) -> TaskState:
        """One key group of a component, as the checkpoint has it."""
        kept = open_states(resolve(graph.component(task.component).code)(), stable_hash, [group], graph.key_groups, str(task),
                           time.time)
        if kept is None:
            raise UnknownName(f"{task.component!r} of {graph.name!r} declares no state")
        chain = manifest.chains(task.component).get(group, [])
        kept.restore(group, self._checkpoints(graph.name).read_chain(chain))
        return kept

    # -- from other threads ------------------------------------------------------------------------------------------

    def submission(self, graph: TopologyGraph, resume: bool | None) -> Submitted:
        """The event that starts the topology, with what the store has of it. `resume`: True goes on from there, False begins
        anew, None is refused if there is anything. Waits for the store."""
        if not graph.waves:
            if resume:
                raise TopologyError(f"{graph.name!r} keeps no state and is not exactly-once: there is nothing to resume. Start "
                                    "it without --resume")
            return Submitted(graph)
        return self._thread.submit(self._submission, graph, resume).result()

    def refused(self, topology: str) -> None:
        """It was not started after all: others may run it, unless it runs here already."""
        if topology not in self._master.state.topologies:
            self._thread.submit(self._unlock, topology)

    # -- commands ----------------------------------------------------------------------------------------------------

    def store(self, manifest: Manifest, claim: bool) -> None:
        self._thread.submit(self._write, manifest, claim)

    def ended(self, topology: str) -> None:
        """Others may run it now; after what is still to be written."""
        self._thread.submit(self._unlock, topology)

    def collect(self, topology: str, epoch: int) -> None:
        self._thread.submit(self._collect, topology, epoch)

    def discard(self, topology: str, names: list[str]) -> None:
        """Names that nobody needs any more."""
        self._thread.submit(self._discard, topology, names)

    # -- for people --------------------------------------------------------------------------------------------------

    def shown(self, name: str | None) -> Future[dict[str, Any]]:
        """What is kept of the running topologies, or of one; and how many keys their tasks have now, as far as they answer."""
        state = self._master.state
        topologies = [state.topology(name)] if name is not None else list(state.topologies.values())
        shown = {"store": shown_place(self.place), "topologies": [self._shown(topology) for topology in topologies]}
        asked = {(topology.graph.name, task.component, task.index): self._ask(topology, task, "", None)
                 for topology in topologies if not topology.batched for task, place in topology.places.items()
                 if task.component != ACKER and topology.graph.component(task.component).stateful
                 and place.slot in self._master.connections}
        return _all_of(asked, lambda answers: _with_keys(shown, answers))

    def _shown(self, topology: TopologyState) -> dict[str, Any]:
        """Each batch of a topology that runs in batches is a wave."""
        waves, manifest, name = topology.waves, topology.checkpoint, topology.graph.name
        if waves is None and not topology.batched:
            return {"name": name, "waves": False, "components": []}
        shown = {"name": name, "waves": True, "epoch": topology.epoch, "trouble": topology.troubled,
                 "components": [self._component(manifest, component.name) for component in topology.graph.components
                                if component.stateful] if manifest is not None else []}
        if waves is not None:
            return {**shown, "phase": waves.phase, "wave": waves.committed, "seconds": round(waves.took, 3),
                    "given_up": waves.given_up}
        records = self._master.batches[name].records if name in self._master.batches else ()
        return {**shown, "phase": "batch" if topology.in_batch else "idle", "wave": manifest.wave if manifest else 0,
                "seconds": round(records[-1].seconds, 3) if records else 0.0, "given_up": 0}

    def _component(self, manifest: Manifest, name: str) -> dict[str, Any]:
        groups = []
        for record in manifest.records:
            if record.component == name:
                for group, chain in sorted(record.chains.items()):
                    groups.append({"group": group, "task": record.index, "bytes": sum(ref.length for ref in chain),
                                   "pieces": len(chain), "blob": chain[-1].blob, "wave": wave_of(chain[-1].blob)})
        return {"name": name, "bytes": manifest.size(name), "key_groups": groups,
                "fragments": [{"blob": blob, "raw": blocks.r, "check": blocks.c, "workers": blocks.slots}
                              for blob, blocks in sorted(manifest.blocks(name).items())]}

    def query(self, name: str | None, component: str, key: Any, state: str | None = None) -> Future[dict[str, Any]]:
        """What the component has under the key: now, asked of the task that owns it, or as of the last batch. `state`: which
        of its states; not needed if it uses `state`, or just one other."""
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
            return _merged(self._thread.submit(self._looked_up, topology, task, group, state, key), described)
        if place is None or place.slot not in self._master.connections:
            raise MillraceError(f"{task}, which owns key group {group}, is on no worker now: ask again")
        return _merged(self._ask(topology, task, state, key), described)

    def _ask(self, topology: TopologyState, task: TaskId, state: str, key: Any) -> Future[dict[str, Any]]:
        number, future = next(self._numbers), Future[dict[str, Any]]()
        self._asked[number] = time.monotonic() + ANSWER_SECONDS, future
        query = wire.Query(number, topology.number, topology.graph.number(task), state, key)
        self._master.worker_port.send(topology.places[task].slot, query)
        return future

    def answered(self, answer: wire.Answer) -> None:
        _, future = self._asked.pop(answer.number, (0.0, None))
        if future is not None:
            future.set_result({"found": answer.found, "value": answer.value, "error": answer.error})

    def tick(self, now: float) -> None:
        for number, (until, future) in list(self._asked.items()):
            if now >= until:
                del self._asked[number]
                future.set_exception(MillraceError(f"the task has not answered within {ANSWER_SECONDS:g} s: ask again"))

    def _topology_with(self, name: str | None, component: str) -> TopologyState:
        topologies = self._master.state.topologies
        if name is not None:
            topology = self._master.state.topology(name)
            topology.graph.component(component)  # which says what there is
            return topology
        found = [topology for topology in topologies.values()
                 if any(one.name == component for one in topology.graph.components)]
        if len(found) > 1:
            raise UnknownName(f"{', '.join(topology.graph.name for topology in found)} all have a component {component!r}: say "
                              f"which with `millrace state TOPOLOGY --query {component} KEY`")
        if not found:
            there = "; ".join(f"{topology.graph.name} has {', '.join(one.name for one in topology.graph.components)}"
                              for topology in topologies.values())
            raise UnknownName(f"no running topology has a component {component!r}; {there or 'none is running'}")
        return found[0]


def hashable(component: str, key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        raise MillraceError(f"{component!r} keeps nothing under {key!r}: a key is a text, a number, true, false or null, or a "
                            "list of these if several fields make it up") from None
    return key


def only_state(graph: TopologyGraph, component: str) -> str:
    names = used_states(resolve(graph.component(component).code))
    if not names or DEFAULT_STATE in names:
        return DEFAULT_STATE
    if len(names) > 1:
        raise UnknownName(f"{component!r} of {graph.name!r} has the states {', '.join(names)}: say which with --name")
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


def _all_of(asked: dict[Any, Future[dict[str, Any]]], put_together: Callable[[dict[Any, Any]], dict[str, Any]]) \
        -> Future[dict[str, Any]]:
    """Done when all are, with what those have said that answered."""
    whole: Future[dict[str, Any]] = Future()
    left = set(asked)

    def one_is_done(key: Any) -> None:
        left.discard(key)
        if not left:
            whole.set_result(put_together({key: future.result()["value"] for key, future in asked.items()
                                           if future.exception() is None and future.result()["found"]}))

    if not asked:
        whole.set_result(put_together({}))
    for key, future in asked.items():
        future.add_done_callback(lambda done, key=key: one_is_done(key))  # type: ignore[misc]
    return whole


def _with_keys(shown: dict[str, Any], answers: dict[tuple[str, str, int], dict[str, Any]]) -> dict[str, Any]:
    """How many keys each task has now, and how many of them have changed since the last wave."""
    for topology in shown["topologies"]:
        for component in topology["components"]:
            component["tasks"] = {index: {"keys": sum(found["keys"].values()), "dirty": sum(found["dirty"].values())}
                                  for (name, of, index), found in answers.items()
                                  if (name, of) == (topology["name"], component["name"])}
            for group in component["key_groups"]:
                found = answers.get((topology["name"], component["name"], group["task"]))
                if found is not None:
                    group["keys"], group["dirty"] = (found[what].get(group["group"], 0) for what in ("keys", "dirty"))
    return shown

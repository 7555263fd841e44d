"""The master's checkpoints: writes manifests, deletes old checkpoints, finds the checkpoint to resume from.

A store may be slow, so all of it is done on one thread beside the master's. state_queries.py answers questions about state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from millrace.api.grouping import stable_hash
from millrace.control.events import Event, ManifestStored, Submitted
from millrace.control.submission import check_choice, check_not_running
from millrace.control.topology_state import TopologyState
from millrace.errors import CorruptCheckpoint, MillraceError, NotTheAuthor, TopologyError, UnknownName
from millrace.master.state_home import state_home
from millrace.model.graph import TaskId, TopologyGraph, resolve
from millrace.redaction import shown_place
from millrace.runtime.checkpoints.lock import Lock
from millrace.runtime.checkpoints.store import CheckpointStore, open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.runtime.wire import messages as wire
from millrace.state.checkpoint import Manifest
from millrace.state.task_state import TaskState, open_states

log = logging.getLogger("millrace.master")


def default_store(cluster: str) -> str:
    """A directory in the user's state home, one for each cluster name: runs under other names do not find it."""
    return str(state_home() / "checkpoints" / quote(cluster, safe=""))


class CheckpointingPort(Protocol):
    """The part of the master that checkpointing uses."""

    def later(self, work: Callable[[], Any]) -> None:
        """Run the work on the master's thread soon; callable from any thread."""

    def tell(self, event: Event) -> None:
        """Let the master decide on an event; called on its thread."""

    def give_way(self, error: NotTheAuthor) -> None:
        """Stop deciding, because another master has taken over; called on the master's thread."""


class Checkpointing:
    """Called on the master's thread, unless a method says otherwise. `place`: the checkpoint store's url or directory.
    `running`: names of the running topologies."""

    def __init__(self, place: str, running: Container[str], port: CheckpointingPort) -> None:
        self.place, self._running, self._port = place, running, port
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._store: CheckpointStore | None = None
        self._locks: dict[str, Lock | None] = {}  # by name of a running topology

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        for topology in list(self._locks):
            self._unlock(topology)
        if self._store is not None:
            self._store.close()

    # -- commands ----------------------------------------------------------------------------------------------------

    def store(self, manifest: Manifest, claim: bool) -> None:
        self._thread.submit(self._write, manifest, claim)

    def ended(self, topology: str) -> None:
        """Release the topology's lock for other masters, after all pending writes."""
        self._thread.submit(self._unlock, topology)

    def collect(self, topology: str, epoch: int) -> None:
        """Delete blobs that the newest checkpoints no longer need. Callable from any thread."""
        self._thread.submit(self._collect, topology, epoch)

    def discard(self, topology: str, names: list[str]) -> None:
        """Delete names that nothing needs. Callable from any thread."""
        self._thread.submit(self._discard, topology, names)

    def lookup(self, topology: TopologyState, task: TaskId, group: int, state: str, key: Any) -> Future[dict[str, Any]]:
        """The value under a key as of the last committed batch, for a topology that runs in batches. Between two batches its
        tasks have the same value in memory."""
        return self._thread.submit(self._looked_up, topology, task, group, state, key)

    # -- from other threads ------------------------------------------------------------------------------------------

    def submission(self, graph: TopologyGraph, resume: bool | None) -> Submitted:
        """The event that starts the topology, with its checkpoint in the store. `resume`: True resumes from it, False starts
        fresh, None raises if there is a checkpoint. Waits for the store."""
        if not graph.waves:
            if resume:
                raise TopologyError(f"{graph.name!r} keeps no state and is not exactly-once: there is nothing to resume. Start "
                                    "it without --resume")
            return Submitted(graph)
        return self._thread.submit(self._submission, graph, resume).result()

    def refused(self, topology: str) -> None:
        """Release the lock of a topology that could not be started, unless it already runs here."""
        if topology not in self._running:
            self._thread.submit(self._unlock, topology)

    # -- on the checkpoints' thread ----------------------------------------------------------------------------------

    def _checkpoints(self, topology: str) -> Checkpoints:
        if self._store is None:
            self._store = open_store(self.place)
        return Checkpoints(self._store, topology)

    def _submission(self, graph: TopologyGraph, resume: bool | None) -> Submitted:
        check_not_running(graph.name, self._running)  # the store has checkpoints of a running topology, too
        checkpoints = self._checkpoints(graph.name)
        take_lock = graph.name not in self._locks  # else it was just started here, and the submission will be refused
        if take_lock:
            self._locks[graph.name] = checkpoints.store.lock(graph.name)
        try:
            return self._resumption(graph, checkpoints, resume)
        except BaseException:
            if take_lock:
                self._unlock(graph.name)
            raise

    def _unlock(self, topology: str) -> None:
        lock = self._locks.pop(topology, None)
        if lock is not None:
            lock.close()

    def _resumption(self, graph: TopologyGraph, checkpoints: Checkpoints, resume: bool | None) -> Submitted:
        manifest = checkpoints.latest() if resume is not False else None  # a fresh start works with damaged ones, too
        check_choice(resume, manifest, shown_place(self.place))
        if resume:
            self._check_usable(graph, checkpoints, manifest)
        return Submitted(graph, manifest if resume else None, checkpoints.newest())

    def _check_usable(self, graph: TopologyGraph, checkpoints: Checkpoints, manifest: Manifest | None) -> None:
        if manifest is None:
            raise TopologyError(f"there is no checkpoint of {graph.name!r} in {shown_place(self.place)} to resume from: start "
                                "it without --resume, or name the store and the cluster that it ran in")
        if graph.exactly_once and not checkpoints.is_newest(manifest):
            raise CorruptCheckpoint(f"the newest checkpoint of {graph.name!r} in {shown_place(self.place)} cannot be used. "
                                    f"Resuming from an older one (wave {manifest.wave}) would republish output that its sinks "
                                    "have published since: restore the newest from a backup, or delete its manifest to accept "
                                    "that")

    def _write(self, manifest: Manifest, claim: bool) -> None:
        error = ""
        try:
            checkpoints = self._checkpoints(manifest.topology)
            (checkpoints.claim if claim else checkpoints.commit)(msgspec.structs.replace(manifest, at=time.time()))
        except NotTheAuthor as overtaken:
            taken_over = overtaken
            self._port.later(lambda: self._port.give_way(taken_over))
            return
        except Exception as failure:  # of any store: the wave is not committed, and the stream continues
            error = str(failure) if isinstance(failure, MillraceError) else f"{type(failure).__name__}: {failure}"
        event = ManifestStored(manifest.topology, manifest.epoch, manifest.wave, error)
        self._port.later(lambda: self._port.tell(event))

    def _collect(self, topology: str, epoch: int) -> None:
        try:
            self._checkpoints(topology).collect(epoch=epoch)
        except Exception as error:  # of any store: tried again after the next wave
            log.warning("old checkpoints of %s could not be deleted: %s", topology, error)

    def _discard(self, topology: str, names: list[str]) -> None:
        try:
            self._checkpoints(topology).discard(names)
        except Exception as error:  # of any store: the next collection finds them
            log.warning("%d old names of %s could not be deleted: %s", len(names), topology, error)

    def _looked_up(self, topology: TopologyState, task: TaskId, group: int, state: str, key: Any) -> dict[str, Any]:
        manifest = topology.checkpoint
        if manifest is None:
            return {"found": False, "value": None, "error": "no batch is committed yet", "as_of_wave": 0}
        answer: dict[str, Any] = {"found": False, "value": None, "error": "", "as_of_wave": manifest.wave}
        try:
            states = self._states(topology.graph, manifest, task, group)
            value = states.lookup(state, key)
            wire.encode(value)
        except MillraceError as error:
            answer["error"] = str(error)
        except KeyError:
            answer["error"] = f"no entry for key {key!r} in {state!r}; states: {', '.join(states.names)}"
        except (TypeError, ValueError, OverflowError) as error:
            answer["error"] = f"its value cannot be sent: {error}"
        else:
            answer |= {"found": True, "value": value}
        return answer

    def _states(self, graph: TopologyGraph, manifest: Manifest, task: TaskId, group: int) -> TaskState:
        """The states of one key group of a component, read from the checkpoint."""
        states = open_states(resolve(graph.component(task.component).code)(), stable_hash, [group], graph.key_groups, str(task),
                             time.time)
        if states is None:
            raise UnknownName(f"{task.component!r} of {graph.name!r} declares no state")
        chain = manifest.chains(task.component).get(group, [])
        states.restore(group, self._checkpoints(graph.name).read_chain(chain))
        return states

"""The master's checkpoints: writes manifests, deletes old checkpoints, finds the checkpoint to resume from.

A store may be slow, so all of it is done on one thread beside the master's. state_queries.py answers questions about state.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from millrace.api.grouping import stable_hash
from millrace.control.events import Event, ManifestStored, Say, Submitted
from millrace.control.submission import OLDER, Resume, check_not_running
from millrace.control.topology_state import TopologyState
from millrace.errors import MillraceError, NotTheAuthor, StoreUnreachable, TopologyError, UnknownName
from millrace.master.checkpoints.store_calls import StoreCalls
from millrace.master.state_home import state_home
from millrace.model.graph import TaskId, TopologyGraph, resolve
from millrace.redaction import shown_place
from millrace.runtime.checkpoints.lock import Lock
from millrace.runtime.checkpoints.resumption import StartOnStore
from millrace.runtime.checkpoints.store import CheckpointStore, open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.runtime.checkpoints.trial import abandon_trial, begin_trial, end_trial, raise_if_not_shared
from millrace.runtime.wire import messages as wire
from millrace.state.author import Author
from millrace.state.checkpoint import Manifest
from millrace.state.task_state import TaskState, open_states

log = logging.getLogger("millrace.master")
T = TypeVar("T")
LOOK_SECONDS = 2.0  # between two looks at the author in a store without locks
CLOSE_SECONDS = 10.0  # for the call that is being made when the master stops, and those that undo others


def default_store(cluster: str) -> str:
    """A directory in the user's state home, one for each cluster name: runs under other names do not find it."""
    return str(state_home() / "checkpoints" / quote(cluster, safe=""))


class CheckpointingPort(Protocol):
    """The part of the master that checkpointing uses."""

    def later(self, work: Callable[[], Any]) -> None:
        """Run the work on the master's thread soon; callable from any thread."""

    def tell(self, event: Event) -> None:
        """Let the master decide on an event; called on its thread."""

    def say(self, message: Say) -> None:
        """Report something to users; called on the master's thread."""

    def give_way(self, error: NotTheAuthor) -> None:
        """Stop deciding, because another master has taken over; called on the master's thread."""


class StartAttempt:
    """An attempt to start a topology. `outlook`: the event that would start it now; all checks that may refuse it come before
    the topology is taken over. `abandoned`: nobody waits for it any more."""

    def __init__(self, graph: TopologyGraph, resume: Resume) -> None:
        self.graph, self.resume = graph, resume
        self.outlook = Submitted(graph)
        self.abandoned = False
        self.start: StartOnStore | None = None  # set on the checkpoints' thread, once the topology is locked

    def check_wanted(self) -> None:
        if self.abandoned:
            raise TopologyError(f"{self.graph.name!r} is not started any more: nobody waits for it")


class Checkpointing:
    """Called on the master's thread, unless a method says otherwise. `place`: the checkpoint store's url or directory.
    `running`: names of the running topologies. `timeout`: seconds after which a call of the store is reported as hanging."""

    def __init__(self, place: str, running: Container[str], port: CheckpointingPort, timeout: float) -> None:
        self.place, self._running, self._port, self._timeout = place, running, port, timeout
        self._thread = StoreCalls()
        self.alarm = ""  # the call that hangs
        self._manifests: dict[str, tuple[Manifest, bool]] = {}  # by topology: the newest that waits to be written
        self._manifests_lock = threading.Lock()
        self._store: CheckpointStore | None = None
        self._locks: dict[str, Lock | None] = {}  # by name of a running topology
        self._attempts: dict[str, StartAttempt] = {}  # the same; how it was started
        self._authors: dict[str, Author] = {}  # the same; what this master has written to the store
        self.least_epoch = 0  # of this master
        self._looking = False
        self._look_at = 0.0

    def close(self) -> None:
        for attempt in [attempt for attempt in self._attempts.copy().values() if attempt.abandoned]:
            self._thread.submit_undoing(f"release of the lock of {attempt.graph.name!r}", self._withdraw, attempt)
        returned = self._thread.close(CLOSE_SECONDS)
        for topology in list(self._locks):
            self._unlock(topology)
        if not returned:
            log.warning("the checkpoint store %s still does not answer: it is left alone", shown_place(self.place))
        elif self._store is not None:
            self._store.close()

    def tick(self, now: float) -> None:
        """Report a call of the store that hangs, and look regularly whether another driver has taken over: a wave, which would
        notice, may not be due for long. Where there is a lock no other driver can."""
        self._watch_calls()
        if now >= self._look_at and not self._looking and self._authors:
            self._looking, self._look_at = True, now + LOOK_SECONDS
            self._thread.submit("check of the author", self._look)

    def _watch_calls(self) -> None:
        current, before = self._thread.current(), self.alarm
        what, seconds = current or ("", 0.0)
        self.alarm = self._hangs(what, seconds) if seconds >= self._timeout else ""
        if self.alarm and not before:
            self._port.say(Say(self.alarm, level="error"))
        elif before and not self.alarm:
            self._port.say(Say(f"the checkpoint store {shown_place(self.place)} answers again"))

    def _hangs(self, what: str, seconds: float) -> str:
        return f"the checkpoint store {shown_place(self.place)} has not answered for {seconds:.0f} s (pending call: {what})"

    # -- commands ----------------------------------------------------------------------------------------------------

    def store(self, manifest: Manifest, claim: bool) -> None:
        with self._manifests_lock:
            queued = manifest.topology in self._manifests
            self._manifests[manifest.topology] = manifest, claim
        if not queued:
            self._thread.submit(f"manifest of {manifest.topology!r}", self._write, manifest.topology)

    def ended(self, topology: str) -> None:
        """Release the topology's lock for other masters, after all pending writes."""
        self._thread.submit(f"release of the lock of {topology!r}", self._release, topology)

    def collect(self, topology: str, epoch: int) -> None:
        """Delete blobs that the newest checkpoints no longer need. Callable from any thread."""
        self._thread.submit(f"deletion of old checkpoints of {topology!r}", self._collect, topology, epoch)

    def delete_abandoned(self, topology: str, epoch: int, wave: int, needed: Mapping[TaskId, Iterable[str]]) -> None:
        """Delete what abandoned waves have left, see `Checkpoints.delete_abandoned`."""
        self._thread.submit(f"deletion of abandoned waves of {topology!r}", self._delete_abandoned, topology, epoch, wave,
                            needed)

    def discard(self, topology: str, names: list[str]) -> None:
        """Delete names that nothing needs. Callable from any thread."""
        self._thread.submit(f"deletion of old checkpoints of {topology!r}", self._discard, topology, names)

    def lookup(self, topology: TopologyState, task: TaskId, group: int, state: str, key: Any) -> Future[dict[str, Any]]:
        """The value under a key as of the last committed batch, for a topology that runs in batches. Between two batches its
        tasks have the same value in memory."""
        return self._thread.ask(f"state of {topology.graph.name!r}", self._looked_up, topology, task, group, state, key)

    # -- from other threads ------------------------------------------------------------------------------------------

    def author(self, topology: str) -> Author:
        """This master as the author of a topology that it has taken over."""
        return self._authors[topology]

    def attempt(self, graph: TopologyGraph, resume: Resume) -> StartAttempt:
        """Begin to start the topology: lock it, and look for the checkpoint to resume from. `take_over` or `refused` must
        follow. Waits for the store."""
        attempt = StartAttempt(graph, resume)
        if not graph.waves:
            if resume in (True, OLDER):
                raise TopologyError(f"{graph.name!r} keeps no state and is not exactly-once: there is nothing to resume. Start "
                                    f"it without --resume{' older' if resume == OLDER else ''}")
            return attempt
        try:
            self._awaited(f"search for checkpoints of {graph.name!r}", lambda: self._look_for(attempt))
        except TimeoutError as hangs:
            self.refused(attempt)  # it takes the lock if the store answers after all
            raise StoreUnreachable(str(hangs)) from None
        return attempt

    def take_over(self, attempt: StartAttempt) -> Submitted:
        """Take the topology over from any other driver; the event that starts it, to be told next. Waits for the store."""
        if not attempt.graph.waves:
            return attempt.outlook
        try:
            return self._awaited(f"takeover of {attempt.graph.name!r}", lambda: self._take_over(attempt))
        except TimeoutError as hangs:
            raise StoreUnreachable(str(hangs)) from None

    def try_store(self, ask: Callable[[str], Future[dict[int, str]]], nodes: Callable[[int], str]) -> None:
        """Raise `StoreNotShared` if workers do not share the store with the master. `ask` asks them to look for the mark with a
        token; `nodes` gives the node of a slot."""
        token, what = uuid.uuid4().hex, "test files of the workers"
        try:
            self._awaited(what, lambda: begin_trial(self._opened(), token))
            try:
                answers = ask(token).result()
            except BaseException:
                self._awaited(what, lambda: abandon_trial(self._opened(), token))
                raise
            joined = [str(slot) for slot, error in answers.items() if not error]
            unseen = self._awaited(what, lambda: end_trial(self._opened(), token, joined))
        except TimeoutError as hangs:
            raise StoreUnreachable(str(hangs)) from None
        answers |= {int(who): "the driver does not find its test file" for who in unseen}
        raise_if_not_shared(self.place, {f"worker {slot} on {nodes(slot)}": error for slot, error in answers.items() if error})

    def _awaited(self, what: str, work: Callable[[], T]) -> T:
        """Run the work on the checkpoints' thread and wait for it. Raises `TimeoutError` if the store does not answer."""
        future = self._thread.ask(what, work)
        if not wait([future], self._timeout).done:
            future.cancel()
            raise TimeoutError(f"{self._hangs(what, self._timeout)}. Start the topology again when it answers")
        return future.result()

    def refused(self, attempt: StartAttempt) -> None:
        """Undo the attempt to start a topology; if it runs here already, when it has ended."""
        attempt.abandoned = True
        if attempt.graph.name not in self._running:
            self._thread.submit_undoing(f"release of the lock of {attempt.graph.name!r}", self._withdraw, attempt)

    def start_failed(self, topology: str) -> None:
        """Undo the start of a topology that runs, but cannot do its work, when it has ended. To be called before it is
        killed."""
        attempt = self._attempts.get(topology)
        if attempt is not None:  # it has state
            self.refused(attempt)

    # -- on the checkpoints' thread ----------------------------------------------------------------------------------

    def _checkpoints(self, topology: str) -> Checkpoints:
        return Checkpoints(self._opened(), topology, self._authors.get(topology))

    def _opened(self) -> CheckpointStore:
        if self._store is None:
            self._store = open_store(self.place)
        return self._store

    def _look_for(self, attempt: StartAttempt) -> None:
        graph = attempt.graph
        check_not_running(graph.name, self._running)  # the store has checkpoints of a running topology, too
        check_not_running(graph.name, self._locks)  # it is just being started
        checkpoints = self._checkpoints(graph.name)
        self._locks[graph.name] = checkpoints.store.lock(graph.name)
        self._attempts[graph.name] = attempt
        attempt.start = StartOnStore(graph, checkpoints, shown_place(self.place), uuid.uuid4().hex, self.least_epoch)
        try:
            attempt.outlook = attempt.start.outlook(attempt.resume)
        except BaseException:
            self._withdraw(attempt)
            raise

    def _take_over(self, attempt: StartAttempt) -> Submitted:
        assert attempt.start is not None
        event = attempt.start.submission(attempt.resume, attempt.check_wanted)
        author = attempt.start.checkpoints.author
        assert author is not None
        self._authors[attempt.graph.name] = author
        return event

    def _withdraw(self, attempt: StartAttempt) -> None:
        if attempt.start is None:  # it has not got the lock: another attempt may have it
            return
        try:
            attempt.start.checkpoints.give_back()
        except Exception as error:  # of any store: the start is refused all the same
            log.warning("%s was not started and may still have been taken over in the checkpoint store: %s",
                        attempt.graph.name, error)
        finally:
            attempt.start = None
            if self._attempts.get(attempt.graph.name) is attempt:  # a later one may have the lock
                self._unlock(attempt.graph.name)

    def _release(self, topology: str) -> None:
        attempt = self._attempts.get(topology)
        if attempt is not None and attempt.abandoned:
            self._withdraw(attempt)
        else:
            self._unlock(topology)

    def _unlock(self, topology: str) -> None:
        lock = self._locks.pop(topology, None)
        self._attempts.pop(topology, None)
        self._authors.pop(topology, None)
        if lock is not None:
            lock.close()

    def _look(self) -> None:
        try:
            for topology in [name for name, lock in self._locks.items() if lock is None and name in self._authors]:
                self._checkpoints(topology).check_author()
        except NotTheAuthor as superseded:
            self._give_way(superseded)
        except Exception as error:  # of any store: waves report that it is away
            log.info("the author in the checkpoint store is not known: %s", error)
        finally:
            self._looking = False

    def _give_way(self, error: NotTheAuthor) -> None:
        self._port.later(lambda: self._port.give_way(error))

    def _write(self, topology: str) -> None:
        with self._manifests_lock:
            manifest, claim = self._manifests.pop(topology)
        error = ""
        try:
            checkpoints = self._checkpoints(manifest.topology)
            (checkpoints.claim if claim else checkpoints.commit)(msgspec.structs.replace(manifest, at=time.time()))
        except NotTheAuthor as superseded:
            self._give_way(superseded)
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

    def _delete_abandoned(self, topology: str, epoch: int, wave: int, needed: Mapping[TaskId, Iterable[str]]) -> None:
        try:
            self._checkpoints(topology).delete_abandoned(epoch, wave, needed)
        except Exception as error:  # of any store: the collection after the next commit finds them
            log.warning("what abandoned waves of %s have left could not be deleted: %s", topology, error)

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

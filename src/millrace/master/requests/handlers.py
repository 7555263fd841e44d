"""What people ask a running master, and its answers. Everything here runs on the master's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from millrace.control.events import Killed, Moved, Paused, Rescaled, Resumed
from millrace.errors import MillraceError, UnknownName
from millrace.master.requests.readers import reading_verbs
from millrace.master.requests.status import load_of, plans_of, status_of
from millrace.model.graph import ACKER, TaskId

if TYPE_CHECKING:
    from millrace.master.service import Master

Request = dict[str, Any]


class RequestHandlers:
    """One method for each verb. An answer that takes a while is a Future: others are answered meanwhile."""

    def __init__(self, master: Master, socket: zmq.Socket[Any]) -> None:
        self._master, self.socket = master, socket
        scheduling = master.scheduling
        self._verbs: dict[str, Callable[[Request], Any]] = {
            "status": lambda request: status_of(master),
            "plan": lambda request: plans_of(master.state),
            "load": lambda request: load_of(master, request.get("topology")),
            "situation": lambda request: scheduling.situation().to_json(),
            "state": lambda request: master.checkpointing.shown(request.get("topology")),
            "query": lambda request: master.checkpointing.query(request.get("topology"), request["component"], request["key"],
                                                                request["state"]),
            "kill": self._kill, "pause": self._pause, "unpause": self._unpause, "move": self._move,
            "scale": self._scale,
            "scheduler show": lambda request: scheduling.shown(),
            "scheduler history": lambda request: scheduling.past(int(request["limit"])),
            "scheduler set": lambda request: scheduling.choose(
                request["name"], request["parameters"], request["policy"], request.get("estimator"),
                request.get("estimator_parameters")),
            **reading_verbs(master),
        }

    def listen(self) -> None:
        while self.socket.poll(0):
            *to, body = self.socket.recv_multipart()
            future: Future[Any] = Future()
            try:
                answer = self._answer(msgspec.msgpack.decode(body))
                if isinstance(answer, Future):
                    future = answer
                else:
                    future.set_result(answer)
            except Exception as error:
                future.set_exception(error)
            if future.done():
                self._reply(to, future)
            else:
                future.add_done_callback(partial(self._reply_later, to))

    def _answer(self, request: Request) -> Any:
        verb = request.get("verb")
        if verb not in self._verbs:
            raise MillraceError(f"unknown verb {verb!r}; there are {', '.join(self._verbs)}")
        return self._verbs[verb](request)

    def _reply_later(self, to: list[bytes], future: Future[Any]) -> None:
        """On any thread."""
        self._master.later(lambda: self._reply(to, future))

    def _reply(self, to: list[bytes], future: Future[Any]) -> None:
        error = future.exception()
        if error is None:
            answer = {"ok": future.result()}
        else:
            known = isinstance(error, MillraceError)
            answer = {"error": str(error) if known else f"{type(error).__name__}: {error}", "kind": type(error).__name__}
        try:
            body = msgspec.msgpack.encode(answer)
        except (TypeError, OverflowError, ValueError) as wrong:  # a user's own parameters may be anything
            body = msgspec.msgpack.encode({"error": f"the answer cannot be sent: {wrong}", "kind": "MillraceError"})
        self.socket.send_multipart([*to, body])

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def _kill(self, request: Request) -> str:
        name: str = request["topology"]
        self._master.tell(Killed(name, float(request.get("wait", 10.0)), time.monotonic()))
        return name

    def _pause(self, request: Request) -> str:
        self._master.tell(Paused(request["topology"]))
        return str(request["topology"])

    def _unpause(self, request: Request) -> str:
        self._master.tell(Resumed(request["topology"]))
        return str(request["topology"])

    def _move(self, request: Request) -> dict[str, Any]:
        try:
            task, slot = TaskId.parse(str(request["task"])), int(request["slot"])
        except ValueError as error:
            raise UnknownName(str(error)) from None
        name: str = request.get("topology") or self._topology_with(task)
        topology = self._master.state.topology(name)
        source = topology.places[task].slot if task in topology.places else None
        self._master.tell(Moved(name, task, slot))
        keyed = task.component != ACKER and topology.graph.component(task.component).keyed
        return {"topology": name, "task": str(task), "from": source, "to": slot, "keyed": keyed,
                "waves": topology.waves is not None, "batched": topology.batched}

    def _scale(self, request: Request) -> dict[str, Any]:
        """`par`: component -> tasks. Without a topology: the one that has these components."""
        par: dict[str, int] = dict(request["par"])
        name: str = request.get("topology") or self._topology_of(par)
        topology = self._master.state.topology(name)
        before = {component: topology.graph.component(component).par for component in par}
        version = topology.version
        self._master.tell(Rescaled(name, par))
        owned = {component: list(groups) for component, groups in topology.key_groups.items() if component in par}
        return {"topology": name, "from": before, "to": par, "version": topology.version,
                "changed": topology.version != version, "key_groups": owned}

    def _topology_of(self, components: Iterable[str]) -> str:
        topologies = {name: {one.name for one in topology.graph.components}
                      for name, topology in self._master.state.topologies.items()}
        found = [name for name, there in topologies.items() if there.issuperset(components)]
        if len(found) == 1:
            return found[0]
        asked = ", ".join(map(repr, components))
        if found:
            raise UnknownName(f"{', '.join(found)} all have {asked}: say which with --topology")
        there = "; ".join(f"{name} has {', '.join(sorted(own))}" for name, own in topologies.items())
        raise UnknownName(f"no running topology has {asked}; {there or 'none is running'}")

    def _topology_with(self, task: TaskId) -> str:
        topologies = self._master.state.topologies
        found = [name for name, topology in topologies.items() if task in topology.places]
        if len(found) == 1:
            return found[0]
        if found:
            raise UnknownName(f"{', '.join(found)} all have a task {task}: say which with --topology")
        running = {f"{name}[0..{count - 1}]" for topology in topologies.values()
                   for name, count in topology.plan.parallelism.items()}
        raise UnknownName(f"no running topology has a task {task}; there are {', '.join(sorted(running)) or 'none'}")

"""The fragment exchange: a thread per worker process that holds fragments of other workers' snapshots and fetches its own.

    worker's loop ── save, fetch, keep, drop ──► queue ──► exchange's thread ◄──► ROUTER, DEALER sockets
          ▲                                                  │        ▲
          └────────────── post(done) ◄───────────────────────┴ helper ┘  encodes and decodes: seconds for a large blob

All state belongs to the exchange's thread, so there are no locks.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import zmq

from millrace.errors import BadParameter, MillraceError, NotEnoughFragments, WireError
from millrace.runtime.fragments.jobs import Fetching, Holders, Saving, Telling
from millrace.runtime.fragments.links import LINK_WINDOW, Address, Asker, FragmentLinks
from millrace.runtime.fragments.messages import (
    PART_BYTES,
    Accepted,
    Discard,
    FragmentRequest,
    Get,
    Head,
    Keep,
    Nothing,
    Part,
    read_fragment_answer,
    read_fragment_request,
)
from millrace.runtime.wire.messages import encode
from millrace.runtime.wire.transport import Keys, bind_tcp, serve
from millrace.state.erasure import Bytes, Code, gather, room
from millrace.state.fragments import NAME_PARTS, FragmentTree, HeldBlob, cut

log = logging.getLogger(__name__)
HELD_BYTES = 1 << 30
SECONDS = 30.0
SILENCE = 5.0
TICK_SECONDS = 0.05
IDLE_SECONDS = 1.0
MESSAGES_PER_TURN = 32  # read from one socket before the others get their turn
PART_FRAME_LIMIT = PART_BYTES + 65536
Post = Callable[[Callable[[], None]], None]


@dataclass(slots=True)
class _Incoming:
    """A fragment that has arrived in part."""

    head: Head
    payload: memoryview
    end: int
    at: float


class FragmentExchange:
    """Saves, fetches and holds fragments. `post` runs a call on the worker's loop; all callbacks go through it. At most `limit`
    bytes are held for others. `died` is told of an error that ends one of its threads."""

    def __init__(self, context: zmq.Context[Any], name: str, directory: Path, bind: str, keys: Keys, boot: str, post: Post,
                 limit: int = HELD_BYTES, silence: float = SILENCE,
                 died: Callable[[BaseException], None] | None = None) -> None:
        self.malformed = 0  # frames that are not messages of ours, or unexpected answers
        self.tree = FragmentTree(limit)  # belongs to the exchange's thread
        self._post, self._silence, self._died = post, silence, died
        self._path = directory / f"{name}.ipc"
        self._poller = zmq.Poller()
        self._servers: list[zmq.Socket[Any]] = []
        self._context = context
        try:
            self.endpoints = Address(f"ipc://{self._path}", self._bind(bind, keys), boot)
        except (MillraceError, zmq.ZMQError):
            self._close_servers()
            raise
        self._links = FragmentLinks(context, keys, boot, PART_FRAME_LIMIT, silence, self._poller)
        self._incoming: dict[tuple[bytes, str, int], _Incoming] = {}
        self._jobs: list[Saving | Fetching | Telling] = []
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake_fd, self._signal_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(self._signal_fd, False)
        self._poller.register(self._wake_fd, zmq.POLLIN)
        self._ended = False
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._helper = threading.Thread(target=self._watched, args=(self._help,), daemon=True, name="fragment helper")
        self._thread = threading.Thread(target=self._watched, args=(self._run,), daemon=True, name="fragment exchange")
        self._helper.start()
        self._thread.start()

    def save(self, blob: str, parts: Sequence[Bytes], r: int, c: int, holders: Holders, done: Callable[[int], None],
             seconds: float = SECONDS) -> None:
        """Cut a blob into r + c fragments and send each to its holder. `parts` are concatenated and must not change meanwhile.
        `done` gets the number of fragments held."""
        if len(blob.split("/")) != NAME_PARTS:
            raise BadParameter(f"{blob!r} is not a blob name: use <topology>/<component>/<task index>/<epoch>-<wave>")
        self._check(r, c, holders)
        job = Saving(self, holders, seconds, self._posted(done))

        def cut_up() -> None:
            data = parts[0] if len(parts) == 1 else gather(parts, sum(map(len, parts)))
            fragments = cut(blob, data, r, c)
            self._call(lambda: job.push(fragments))

        self._call(lambda: self._begin(job))
        self._work.put(cut_up)

    def fetch(self, blob: str, r: int, c: int, holders: Holders, done: Callable[[memoryview | NotEnoughFragments], None],
              seconds: float = SECONDS) -> None:
        """Restore a blob from any r of its fragments. `done` gets the blob or an error."""
        self._check(r, c, holders)
        self._call(lambda: self._begin(Fetching(self, blob, (r, c), holders, seconds, self._posted(done))))

    def keep(self, task: str, blobs: Sequence[str], addresses: Iterable[Address], done: Callable[[int], None]) -> None:
        """Tell holders that only these blobs of a task (`<topology>/<component>/<task index>`) are still needed. Include those
        being saved. `done` gets the number of confirmations."""
        self._tell(lambda: Keep(0, task, list(blobs)), addresses, done)

    def drop(self, prefix: str, addresses: Iterable[Address], done: Callable[[int], None]) -> None:
        """Tell holders to discard everything below this path, for example a topology."""
        self._tell(lambda: Discard(0, prefix), addresses, done)

    def forget(self, address: Address) -> None:
        """Forget a worker that is gone: requests to it fail at once."""
        self._call(lambda: self._links.forget(address))

    def listing(self, done: Callable[[list[HeldBlob]], None], prefix: str = "") -> None:
        """List the blobs held here, for display."""
        self._call(lambda: self._posted(done)(self.tree.listing(prefix)))

    def close(self) -> None:
        """Stop. Pending jobs are reported as failed."""
        if self._ended:
            return
        self._work.put(None)
        self._helper.join()
        self._ended = True
        self._wake()
        self._thread.join()
        os.close(self._wake_fd)
        os.close(self._signal_fd)

    # --- called by jobs

    def now(self) -> float:
        return time.monotonic()

    def heard(self, address: Address) -> float:
        """Time of the last answer from there."""
        return self._links.heard(address)

    def ask(self, address: Address, request: FragmentRequest, part: memoryview | None, asker: Asker) -> None:
        try:
            link = self._links.to(address)
        except MillraceError as error:
            log.warning("%s", error)
            asker.answered(None, None)
        else:
            link.ask(request, part, asker, self.now())

    def build(self, action: Callable[[], memoryview | None], then: Callable[[memoryview | None], None]) -> None:
        def work() -> None:
            built = action()
            self._call(lambda: then(built))

        self._work.put(work)

    # --- between the threads

    def _check(self, r: int, c: int, holders: Holders) -> None:
        Code(r, c)
        indexes = [index for index, _ in holders]
        if len(set(indexes)) < len(indexes) or not set(indexes) <= set(range(r + c)):
            raise BadParameter(f"invalid holders for fragments {indexes}: the indexes must be 0 to {r + c - 1}, each with one "
                               "holder")

    def _tell(self, message: Callable[[], Keep | Discard], addresses: Iterable[Address], done: Callable[[int], None]) -> None:
        self._call(lambda: self._begin(Telling(self, message, addresses, self._posted(done))))

    def _begin(self, job: Saving | Fetching | Telling) -> None:
        self._jobs.append(job)
        job.start()

    def _posted(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda result: self._post(lambda: done(result))

    def _call(self, call: Callable[[], None]) -> None:
        if self._ended:
            raise MillraceError("the fragment exchange of this worker is closed: it cannot save or fetch")
        self._calls.put(call)
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # a pipe full of wake-ups: one is enough
            os.write(self._signal_fd, b".")

    def _watched(self, run: Callable[[], None]) -> None:
        """Run a thread, and report an error that ends it."""
        try:
            run()
        except BaseException as error:
            if self._died is None:
                raise
            self._died(error)

    def _help(self) -> None:
        while (work := self._work.get()) is not None:
            _guarded(work)

    # --- the exchange's thread

    def _run(self) -> None:
        try:
            while not self._ended:
                busy = self._links.busy or self._jobs
                ready = dict(self._poller.poll(int(1000 * (TICK_SECONDS if busy else IDLE_SECONDS))))
                _guarded(partial(self._turn, ready))
        except zmq.ZMQError as error:
            log.warning("the fragment exchange ends because its sockets were closed elsewhere: %s", error)
        finally:
            while not self._calls.empty():
                _guarded(self._calls.get())
            for job in self._jobs:
                _guarded(partial(job.tick, math.inf))
            self._links.close()
            self._close_servers()

    def _turn(self, ready: dict[Any, int]) -> None:
        if self._wake_fd in ready:
            with suppress(BlockingIOError):
                os.read(self._wake_fd, 4096)
            while not self._calls.empty():
                _guarded(self._calls.get())
        for socket in ready:
            if isinstance(socket, zmq.Socket):
                _guarded(partial(self._take_from, socket))
        now = self.now()
        self._links.close_silent(now)
        for job in self._jobs:
            _guarded(partial(job.tick, now))
        self._jobs = [job for job in self._jobs if not job.over]
        for key in [key for key, incoming in self._incoming.items() if now - incoming.at > SECONDS]:
            del self._incoming[key]

    def _take_from(self, socket: zmq.Socket[Any]) -> None:
        for _ in range(MESSAGES_PER_TURN):
            if socket.closed:  # its link was closed meanwhile
                return
            try:
                frames = [frame.buffer for frame in socket.recv_multipart(zmq.NOBLOCK, copy=False)]
            except zmq.Again:
                return
            try:
                if socket in self._servers:
                    self._serve(socket, bytes(frames[0]), *read_fragment_request(frames[1:]))
                else:
                    self._hear(socket, frames)
            except WireError as error:
                self.malformed += 1
                log.debug("dropped: %s", error)

    def _hear(self, socket: zmq.Socket[Any], frames: list[Any]) -> None:
        link = self._links.by_socket[socket]
        if not link.answer(*read_fragment_answer(frames), self.now()):
            raise WireError("an unexpected answer")

    # --- holding for others

    def _serve(self, socket: zmq.Socket[Any], peer: bytes, request: FragmentRequest, part: memoryview | None) -> None:
        if isinstance(request, Get):
            self._send(socket, peer, *self._look_up(request))
            return
        ok = True
        if isinstance(request, Keep):
            self.tree.keep_only(request.task, request.blobs)
        elif isinstance(request, Discard):
            self.tree.forget(request.prefix)
        elif part is not None:
            ok = self._take(peer, request.head, request.offset, part)
        self._send(socket, peer, Accepted(request.request, ok))

    def _send(self, socket: zmq.Socket[Any], peer: bytes, answer: Accepted | Part | Nothing, *parts: memoryview) -> None:
        """Send an answer. A ROUTER drops it if the peer is gone or does not read."""
        socket.send_multipart([peer, encode(answer), *parts], zmq.NOBLOCK, copy=False)

    def _look_up(self, get: Get) -> tuple[Part, memoryview] | tuple[Nothing]:
        fragment = self.tree.get(get.blob, get.index)
        if fragment is None or get.offset > len(fragment.payload):
            return (Nothing(get.request),)
        part = memoryview(fragment.payload)[get.offset : get.offset + PART_BYTES]
        return Part(get.request, Head.of(fragment), get.offset), part

    def _take(self, peer: bytes, head: Head, offset: int, part: memoryview) -> bool:
        """Store a part. False if it cannot be held: no room, not a valid fragment, or damaged."""
        key = (peer, head.blob, head.index)
        incoming = self._incoming.pop(key, None) if offset else self._expect(head)
        if incoming is None or incoming.head != head or incoming.end != offset or offset + len(part) > len(incoming.payload):
            return False
        incoming.payload[offset : offset + len(part)] = part
        incoming.end += len(part)
        incoming.at = self.now()
        if incoming.end == len(incoming.payload):
            return zlib.crc32(incoming.payload) == head.crc and self.tree.put(head.fragment(incoming.payload))
        self._incoming[key] = incoming
        return bool(part)  # an empty part makes no progress

    def _expect(self, head: Head) -> _Incoming | None:
        if len(head.blob.split("/")) != NAME_PARTS or head.identity.fault() or head.index >= head.r + head.c:
            return None
        size = head.identity.block_size
        arriving = sum(len(incoming.payload) for incoming in self._incoming.values())
        if self.tree.bytes + arriving + size > self.tree.limit:
            return None
        return _Incoming(head, room(size), 0, self.now())

    # --- sockets

    def _bind(self, host: str, keys: Keys) -> str:
        """Bind the server sockets; return the tcp endpoint, or an empty string."""
        self._server().bind(f"ipc://{self._path}")
        if not host:
            return ""
        remote = self._server()
        serve(remote, keys)
        return bind_tcp(remote, host)

    def _server(self) -> zmq.Socket[Any]:
        socket = self._context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.maxmsgsize = PART_FRAME_LIMIT
        socket.rcvhwm = 4 * LINK_WINDOW  # the excess of a peer that exceeds its window waits on its side
        self._servers.append(socket)
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _close_servers(self) -> None:
        for socket in self._servers:
            socket.close(linger=0)
        self._path.unlink(missing_ok=True)


def _guarded(action: Callable[[], None]) -> None:
    """Run an action and log its errors: the thread must survive them, since it holds others' fragments."""
    try:
        action()
    except Exception:
        log.exception("an error in the fragment exchange")

"""The coordination store: the master publishes plans here, and the agent of every node reads its part. All other copies follow.

Only one master writes at a time: the one with the latest claim. A revision is published as a whole or not at all.

    embedded                          in the memory of the master's process, gone with it
    zookeeper://host:port[,host:port] survives the master; another master can take over

ZooKeeper's side of it, under /millrace/<cluster>, open to one user alone if the URL names one:

    author                              the number of the latest claim
    plans/<author>-<revision>/<node>+0  a node's part, compressed and signed, in as many pieces as it takes: +1, +2, ...
    current                             the stamp in force and a digest of its parts

A master writes the pieces first and then sets `current`, in a transaction that also checks that `author` is unchanged. Nobody
reads the pieces of a master that died half-way or was replaced meanwhile.
"""

from __future__ import annotations

import hashlib
import logging
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from millrace.config import EMBEDDED
from millrace.control.assignment import Stamp
from millrace.errors import MillraceError, NotTheAuthor, StoreUnreachable
from millrace.runtime.plans.signed_parts import PartSigner
from millrace.runtime.plans.zookeeper_access import ZooKeeperAccess

PIECE = 512 << 10  # ZooKeeper limits a whole request to 1 MB
PLANS_KEPT = 3
BASE = "/millrace"

_PIECES = struct.Struct(">I")  # the number of pieces, in front of the first
_RECONNECT = {"max_tries": -1, "delay": 0.1, "backoff": 1.5, "max_delay": 1.0}  # seconds between attempts, without end

log = logging.getLogger(__name__)
T = TypeVar("T")


class CoordinationStore(Protocol):
    """Thread-safe."""

    def claim(self) -> int:
        """Become the only author of plans, in place of any earlier one. Returns a number larger than any before."""
        ...

    def publish(self, stamp: Stamp, parts: Mapping[str, bytes]) -> None:
        """Put a revision in force: node name -> its part. The change is atomic for readers.

        Raises `NotTheAuthor` if a later claim was made, and `StoreUnreachable` if there is no answer: the revision may or may
        not be in force, and publishing it again is right in both cases. Other parts need another revision.
        """
        ...

    def read(self, node: str) -> tuple[Stamp, bytes] | None:
        """The node's part of the revision in force; None if there is no revision or it has no part for this node."""
        ...

    def watch(self, node: str, changed: Callable[[], None]) -> None:
        """Call `changed`, from any thread, when there may be a new revision, including after a lost session is restored."""
        ...

    def close(self) -> None:
        """Must not be called from inside `changed`."""
        ...


class _Published(NamedTuple):
    """The revision in force. The digest distinguishes a repeated publication from another one under the same stamp."""

    stamp: Stamp
    digest: str

    def encode(self) -> bytes:
        return f"{self.stamp} {self.digest}".encode()

    @classmethod
    def decode(cls, data: bytes) -> _Published | None:
        stamp, _, digest = data.decode().partition(" ")
        return cls(Stamp.parse(stamp), digest) if stamp else None


def open_coordination(url: str, cluster: str, secret: bytes) -> CoordinationStore:
    """Open the store that a setting names: "embedded", or a URL of ZooKeeper. `secret`: of the run, for signatures."""
    if url == EMBEDDED:
        return EmbeddedStore()
    return ZooKeeperStore(ZooKeeperAccess.parse(url), cluster, PartSigner(secret, cluster))


def _next_author(before: int) -> int:
    """A clock-based number, so that it rises even if the store lost its data. The nodes' plan stores keep theirs, and would
    ignore a master that counts from one again."""
    return max(before + 1, time.time_ns() // 1_000_000)


def _digest(parts: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for node, part in sorted(parts.items()):
        for piece in (node.encode(errors="surrogatepass"), part):
            whole.update(len(piece).to_bytes(8, "big") + piece)
    return whole.hexdigest()


def _unclaimed(stamp: Stamp) -> NotTheAuthor:
    return NotTheAuthor(f"plan {stamp} was not published: nobody has claimed to be the author of this cluster's plans. "
                        "Claim first; if that was done, the store has lost its data since")


def _check_author(stamp: Stamp, author: int) -> None:
    if stamp.author != author:
        raise NotTheAuthor(f"plan {stamp} was not published: master number {author} writes the plans now, and this one is "
                           f"number {stamp.author}. Stop it, or let it claim again")


def _check_newer(new: _Published, current: _Published | None) -> bool:
    """True if the revision is newer; False if it is in force already. Raises if it is older or contradicts that."""
    if current is None or new.stamp > current.stamp:
        return True
    if new == current:
        return False
    what = "an older revision" if new.stamp < current.stamp else "other parts under the same stamp"
    raise MillraceError(f"plan {new.stamp} was not published: {current.stamp} is in force and this would be {what}. "
                        "Give every plan a larger revision")


class EmbeddedStore:
    """Keeps plans in the master's memory; agents reach them through the master."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._author: int | None = None
        self._current: _Published | None = None
        self._parts: Mapping[str, bytes] = {}
        self._watchers: list[Callable[[], None]] = []

    def claim(self) -> int:
        with self._lock:
            self._author = _next_author(self._author or 0)
            return self._author

    def publish(self, stamp: Stamp, parts: Mapping[str, bytes]) -> None:
        new = _Published(stamp, _digest(parts))
        with self._lock:
            if self._author is None:
                raise _unclaimed(stamp)
            _check_author(stamp, self._author)
            if not _check_newer(new, self._current):
                return
            self._current, self._parts = new, dict(parts)
            watchers = list(self._watchers)
        _call_all(watchers)

    def read(self, node: str) -> tuple[Stamp, bytes] | None:
        with self._lock:
            if self._current is None or node not in self._parts:
                return None
            return self._current.stamp, self._parts[node]

    def watch(self, node: str, changed: Callable[[], None]) -> None:
        with self._lock:
            self._watchers.append(changed)

    def close(self) -> None:
        with self._lock:
            self._watchers.clear()


def _call_all(watchers: Iterable[Callable[[], None]]) -> None:
    """Call all watchers. An error of one must affect neither the others nor the master."""
    for changed in watchers:
        try:
            changed()
        except Exception:
            log.exception("%r, called because the plans may have changed, raised", changed)


class ZooKeeperStore:
    """Plans in ZooKeeper. `timeout`: seconds without an answer until an error, and of the session."""

    def __init__(self, access: ZooKeeperAccess, cluster: str, signer: PartSigner, timeout: float = 5.0) -> None:
        self._access, self._signer = access, signer
        self._root = f"{BASE}/{_znode(cluster)}"
        self._author, self._plans, self._current = (f"{self._root}/{name}" for name in ("author", "plans", "current"))
        self._watchers: list[Callable[[], None]] = []
        self._lock = threading.Lock()  # one publication at a time: its steps are not one transaction
        self._link = _ZooKeeperClient(access, timeout, self._connected)

    def claim(self) -> int:
        """Compare and set. If the answer is lost, the next number is taken; an unused number does no harm."""
        return self._link.run("to become the author of the plans", self._claim)

    def publish(self, stamp: Stamp, parts: Mapping[str, bytes]) -> None:
        new = _Published(stamp, _digest(parts))
        with self._lock:
            if self._link.run(f"to publish plan {stamp}", lambda: self._publish(new, parts)):
                self._tidy(stamp)

    def read(self, node: str) -> tuple[Stamp, bytes] | None:
        return self._link.run(f"to read the plan of node {node!r}", lambda: self._read(node))

    def watch(self, node: str, changed: Callable[[], None]) -> None:
        self._watchers.append(changed)
        self._arm()

    def close(self) -> None:
        self._watchers.clear()
        self._link.close()

    # --- claiming and publishing ---

    def _claim(self) -> int:
        self._link.wait(self._link.client.ensure_path_async(BASE, self._access.shared_acl()))
        for path in (self._root, self._plans, self._current):
            self._link.wait(self._link.client.ensure_path_async(path))
        author = self._raise_author()
        self._close_to_others()
        return author

    def _close_to_others(self) -> None:
        """Keep others out of nodes that were made without a user, by an earlier run."""
        acl = self._access.own_acl()
        if acl is not None:
            for path in (self._root, self._plans, self._current, self._author):
                self._link.wait(self._link.client.set_acls_async(path, acl))

    def _raise_author(self) -> int:
        while True:
            previous = self._link.get(self._author)
            author = _next_author(int(previous.data) if previous else 0)
            data = str(author).encode()
            if previous is None:
                done = self._link.client.create_async(self._author, data)
            else:
                done = self._link.client.set_async(self._author, data, version=previous.version)
            if self._link.wait(done, but=("NodeExistsError", "NoNodeError", "BadVersionError")) is not None:
                return author

    def _publish(self, new: _Published, parts: Mapping[str, bytes]) -> bool:
        """Publish; False if the revision was in force already. Restarted from the beginning when the connection is lost."""
        while True:
            author, current = self._link.get(self._author), self._link.get(self._current)
            if author is None or current is None:
                raise _unclaimed(new.stamp)
            _check_author(new.stamp, int(author.data))
            if not _check_newer(new, _Published.decode(current.data)):
                return False
            if self._write(new.stamp, parts) and self._flip(new, author.version, current.version):
                return True

    def _write(self, stamp: Stamp, parts: Mapping[str, bytes]) -> bool:
        """Write all pieces at once, each with its own time limit. False if they were removed meanwhile, which only a later
        author does."""
        directory = f"{self._plans}/{stamp}"
        self._remove(stamp)  # left by an unfinished attempt
        self._link.wait(self._link.client.ensure_path_async(directory))
        pieces = ((f"{directory}/{_piece(node, number)}", piece) for node, part in parts.items()
                  for number, piece in enumerate(_cut(self._signer.sign(stamp, node, zlib.compress(part)))))
        all_under_way = [self._link.client.create_async(path, piece) for path, piece in pieces]
        made = [self._link.wait(under_way, but=("NoNodeError",)) for under_way in all_under_way]
        return None not in made

    def _flip(self, new: _Published, author_version: int, current_version: int) -> bool:
        """Set `current`; False if `author` or `current` changed: the caller then checks the author again."""
        transaction = self._link.client.transaction()
        transaction.check(self._author, author_version)
        transaction.set_data(self._current, new.encode(), current_version)
        return self._link.commit(transaction)

    def _tidy(self, current: Stamp) -> None:
        """Delete all but the last few plans. Plans after the current one belong to a later author. A failure is only logged:
        the plan is in force, and the next publication tries again."""
        try:
            self._link.run("to delete old plans", lambda: self._remove_before(current))
        except StoreUnreachable as error:
            log.info("old plans stay until the next one is published: %s", error)

    def _remove_before(self, current: Stamp) -> None:
        names = self._link.wait(self._link.client.get_children_async(self._plans))
        past = sorted(stamp for stamp in map(Stamp.parse, names) if stamp <= current)
        for stamp in past[:-PLANS_KEPT]:
            self._remove(stamp)

    def _remove(self, stamp: Stamp) -> None:
        directory = f"{self._plans}/{stamp}"
        names = self._link.wait(self._link.client.get_children_async(directory), but=("NoNodeError",)) or []
        paths = [*(f"{directory}/{name}" for name in names), directory]
        for under_way in [self._link.client.delete_async(path) for path in paths]:
            self._link.wait(under_way, but=("NoNodeError",))

    # --- reading and watching ---

    def _read(self, node: str) -> tuple[Stamp, bytes] | None:
        """Read the node's part. If a piece is missing while the plan is still in force, the node has no part in it. Otherwise
        the plan was deleted meanwhile, and there is a newer one."""
        current = self._link.get(self._current)
        while True:
            published = _Published.decode(current.data) if current else None
            if published is None:
                return None
            signed = self._read_part(f"{self._plans}/{published.stamp}", node)
            if signed is not None:  # nothing in it is read before its signature has been checked
                return published.stamp, zlib.decompress(self._signer.check(published.stamp, node, signed))
            before, current = current, self._link.get(self._current)
            if before == current:
                return None

    def _read_part(self, directory: str, node: str) -> bytes | None:
        first = self._link.get(f"{directory}/{_piece(node, 0)}")
        if first is None or len(first.data) < _PIECES.size:
            return None
        pieces = [first.data[_PIECES.size :]]
        for number in range(1, _PIECES.unpack_from(first.data)[0]):
            piece = self._link.get(f"{directory}/{_piece(node, number)}")
            if piece is None:
                return None
            pieces.append(piece.data)
        return b"".join(pieces)

    def _connected(self) -> None:
        """Set the watch again after a lost connection, which may have hidden changes."""
        if self._watchers:
            self._arm()
            self._link.later(self._changed)

    def _arm(self) -> None:
        """Set a watch, which fires once. This does not wait: a restored connection sets another."""
        self._link.client.exists_async(self._current, watch=self._fired)

    def _fired(self, event: Any) -> None:
        """Set the next watch before anyone reads, so that no change is missed."""
        if event.path is not None:  # None: the connection was lost
            self._arm()
            self._changed()

    def _changed(self) -> None:
        _call_all(list(self._watchers))


def _znode(name: str) -> str:
    """A name as one step of a path: '/', '.' and non-ASCII characters are escaped."""
    return quote(name, safe="", errors="surrogatepass").replace(".", "%2E")


def _piece(node: str, number: int) -> str:
    return f"{_znode(node)}+{number}"


def _cut(signed: bytes) -> list[bytes]:
    pieces = [signed[start : start + PIECE] for start in range(0, len(signed), PIECE)]
    return [_PIECES.pack(len(pieces)) + pieces[0], *pieces[1:]]


class _ZNode(NamedTuple):
    data: bytes
    version: int


class _ZooKeeperClient:
    """A kazoo client with a time limit on every call, that raises Millrace's errors."""

    def __init__(self, access: ZooKeeperAccess, timeout: float, connected: Callable[[], None]) -> None:
        self._hosts, self._timeout, self._connected = access.hosts, timeout, connected
        self._closed = self._was_lost = False
        self.client = _new_client(access, timeout)
        self.client.add_listener(self._state_changed)
        self._live: threading.Event = self.client.start_async()
        if not self._live.wait(timeout):
            error = self._unreachable("to connect")
            self.close()
            raise error

    def run(self, what: str, action: Callable[[], T]) -> T:
        """Run the action; restart it when a lost connection is restored, within the time limit."""
        deadline = time.monotonic() + self._timeout
        while not self._closed and self._live.wait(max(0.0, deadline - time.monotonic())):
            try:
                return action()
            except _lost() as error:
                log.debug("restarting: %s: %r", what, error)
            except _too_slow():
                break
            except _refused() as error:
                raise StoreUnreachable(f"ZooKeeper at {self._hosts} refused {what}: {error!r}. Check user and password, "
                                       "and its access control lists and limits") from error
        raise self._unreachable(what)

    def wait(self, under_way: Any, but: tuple[str, ...] = ()) -> Any:
        """The answer; None if it is one of the errors named in `but`."""
        from kazoo import exceptions

        expected = tuple(getattr(exceptions, name) for name in but)
        try:
            return under_way.get(timeout=self._timeout)
        except expected:
            return None

    def get(self, path: str) -> _ZNode | None:
        answer = self.wait(self.client.get_async(path), but=("NoNodeError",))
        return None if answer is None else _ZNode(answer[0], answer[1].version)

    def commit(self, transaction: Any) -> bool:
        """Commit; False, and nothing done, if a version is not the expected one."""
        from kazoo.exceptions import BadVersionError, NoNodeError, RolledBackError, RuntimeInconsistency

        results = self.wait(transaction.commit_async())
        reasons = [result for result in results if isinstance(result, Exception)
                   and not isinstance(result, (RolledBackError, RuntimeInconsistency))]  # caused by the others
        for reason in reasons:
            if not isinstance(reason, (BadVersionError, NoNodeError)):
                raise reason
        return not reasons

    def later(self, call: Callable[[], None]) -> None:
        """Make the call on kazoo's thread for watches, where waiting for an answer is allowed."""
        from kazoo.protocol.states import Callback

        self.client.handler.dispatch_callback(Callback("watch", call, ()))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self.client.stop()
        except _refused() as error:
            log.warning("the connection to ZooKeeper at %s did not end in time: %r", self._hosts, error)
        self.client.close()

    def _state_changed(self, state: str) -> None:
        """On kazoo's thread for the connection: nothing here may wait."""
        if state == "CONNECTED":
            if self._was_lost:
                log.warning("ZooKeeper at %s answers again", self._hosts)
            self._was_lost = False
            self._connected()
        elif not self._closed and not self._was_lost:
            self._was_lost = True
            log.warning("the connection to ZooKeeper at %s is lost: reconnecting", self._hosts)

    def _unreachable(self, what: str) -> StoreUnreachable:
        if self._closed:
            return StoreUnreachable(f"ZooKeeper at {self._hosts} was asked {what} after this store was closed: open another")
        return StoreUnreachable(f"ZooKeeper at {self._hosts} did not answer the request {what} within {self._timeout:g} s: "
                                "check that it is running, that host and port are right, and that no firewall is in between")


def _new_client(access: ZooKeeperAccess, timeout: float) -> Any:
    try:
        from kazoo.client import KazooClient
    except ImportError:
        raise MillraceError(f"plans in ZooKeeper at {access.hosts} need the Python package kazoo: "
                            "pip install millrace[zookeeper]") from None
    quiet = logging.getLogger(f"{__name__}.kazoo")
    if quiet.level == logging.NOTSET:
        quiet.setLevel(logging.CRITICAL)  # it logs every attempt to reconnect; we log once each way
    try:
        return KazooClient(timeout=timeout, connection_retry=_RECONNECT, logger=quiet, **access.client_options())
    except ValueError:
        raise MillraceError(f"{access.hosts!r} names no ZooKeeper: use host:port, with more of them after commas") from None


def _lost() -> tuple[type[Exception], ...]:
    """Errors of kazoo when the connection is lost during a request. A function, as those below, because kazoo is optional and
    imported only on use."""
    from kazoo.exceptions import ConnectionLoss, OperationTimeoutError, SessionExpiredError, SessionMovedError

    return ConnectionLoss, OperationTimeoutError, SessionExpiredError, SessionMovedError


def _too_slow() -> type[Exception]:
    from kazoo.handlers.threading import KazooTimeoutError

    return KazooTimeoutError


def _refused() -> type[Exception]:
    from kazoo.exceptions import KazooException

    return KazooException

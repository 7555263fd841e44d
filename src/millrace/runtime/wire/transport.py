"""ZeroMQ sockets between workers and to the master, and their authentication.

Processes of one host use ipc sockets in a directory that only their user can enter. Everything on tcp uses CURVE with one key
pair per cluster, made by the master and shipped with the Spark job; both sides must own it.
"""

from __future__ import annotations

import os
import socket as sockets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from millrace.config import FRAME_LIMIT
from millrace.control.assignment import WorkerAddress
from millrace.errors import AddressInUse, MillraceError

# After a cut the kernel alone would wait up to two minutes before it sends again on an old connection, and half a minute before
# it tries a new one again. Bytes that are acknowledged late, on a slow link, do not end a connection.
UNACKED_MS = 5000  # bytes sent may stay unacknowledged for this long; then the connection is replaced
CONNECT_MS = 2000  # a connection that is not made by then is tried again


@dataclass(frozen=True, slots=True)
class Keys:
    """The cluster's CURVE key pair. Its repr hides the keys, since this object is shipped and logged."""

    public: bytes = field(repr=False)
    secret: bytes = field(repr=False)

    @classmethod
    def make(cls) -> Keys:
        return cls(*zmq.curve_keypair())


class Gate:
    """Admits only clients that own the cluster's key. One per context that has a tcp server socket."""

    def __init__(self, context: zmq.Context[Any], keys: Keys) -> None:
        self._public = keys.public
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", credentials_provider=self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by the authenticator: whether a public key is admitted."""
        return zmq.utils.z85.encode(key) == self._public if len(key) == 32 else key == self._public

    def close(self) -> None:
        self._authenticator.stop()


class Refusals:
    """Counts refused connections: a wrong key, no key, or a peer that does not speak ZeroMQ.

    libzmq has an event for only some of these. All of them are accepted and then disconnected without a handshake.
    """

    def __init__(self, socket: zmq.Socket[Any]) -> None:
        self.monitor = socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._count = 0
        self._pending: dict[int, bool] = {}  # file descriptors without a handshake, the oldest first

    def count(self) -> int:
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._pending[int(event["value"])] = True
            elif event["event"] == zmq.EVENT_DISCONNECTED:
                self._count += self._pending.pop(int(event["value"]), False)
            elif self._pending:  # the event does not name the peer; removing the oldest keeps the sum right
                del self._pending[next(iter(self._pending))]
        return self._count


def serve(socket: zmq.Socket[Any], keys: Keys) -> None:
    """Make a socket a CURVE server."""
    socket.setsockopt(zmq.TCP_MAXRT, UNACKED_MS)
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret


def visit(socket: zmq.Socket[Any], keys: Keys) -> None:
    """Make a socket a CURVE client of the cluster."""
    socket.setsockopt(zmq.TCP_MAXRT, UNACKED_MS)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
    socket.curve_serverkey = keys.public
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret


def bind_tcp(socket: zmq.Socket[Any], host: str, port: int = 0) -> str:
    """Bind and return the endpoint. Raises `AddressInUse`."""
    if not 0 <= port <= 65535:
        raise MillraceError(f"{port} is not a port: use 1 to 65535, or 0 for any free one")
    address = f"[{host}]" if ":" in host else host
    try:
        socket.bind(f"tcp://{address}:{port or '*'}")
    except zmq.ZMQError as error:
        if error.errno == zmq.EADDRINUSE:
            raise AddressInUse(f"port {port} on {host} is in use by another process: choose another port, or 0 for any "
                               "free one") from None
        raise MillraceError(f"cannot listen on {host} port {port or 'any'}: {error.strerror}. "
                            "Is that an address of this machine?") from None
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def private_directory(path: str) -> Path:
    """Make or check a directory that only this user can enter."""
    directory = Path(path)
    directory.mkdir(mode=0o700, parents=False, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise MillraceError(f"{directory} is not a private directory of this user: remove it, or set TMPDIR elsewhere")
    return directory


def boot_id() -> str:
    """Identifies the running kernel and its namespace of process ids. Files may still not be shared: see `ipc_answers`."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def ipc_answers(endpoint: str) -> bool:
    """Try an ipc endpoint, without sending anything. Containers may share the kernel and process ids but not the directory of
    the sockets."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a listener whose queue is full answers too, only later
        try:
            probe.connect(endpoint.removeprefix("ipc://"))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


def reached_by_ipc(own_boot: str, boot: str, ipc: str, tcp: str) -> bool:
    """True if a process is reached through its ipc socket, False if through tcp. One that can only be reached through ipc is
    not tried: it may be starting, or about to be declared lost."""
    return bool(own_boot) and boot == own_boot and (not tcp or ipc_answers(ipc))


class DataPort:
    """The sockets on which a worker receives: ipc for its own host, and tcp with CURVE if there are other hosts."""

    def __init__(self, context: zmq.Context[Any], name: str, directory: Path, bind_host: str, keys: Keys,
                 frame_limit: int = FRAME_LIMIT.default) -> None:
        self.sockets: list[zmq.Socket[Any]] = []
        self._path = directory / f"{name}.ipc"
        self.ipc = f"ipc://{self._path}"
        local = self._socket(context, frame_limit)
        local.bind(self.ipc)
        self.tcp = ""
        self._refusals: Refusals | None = None
        if bind_host:
            remote = self._socket(context, frame_limit)
            serve(remote, keys)
            self._refusals = Refusals(remote)
            self.tcp = bind_tcp(remote, bind_host)

    def _socket(self, context: zmq.Context[Any], frame_limit: int) -> zmq.Socket[Any]:
        socket = context.socket(zmq.PULL)
        socket.rcvhwm = 0  # bounded by the channels' windows; a limit here would hold up credits behind data
        socket.maxmsgsize = frame_limit + 65536
        socket.linger = 0
        self.sockets.append(socket)
        return socket

    def count_refusals(self) -> int:
        """The number of connections refused so far."""
        return self._refusals.count() if self._refusals is not None else 0

    def close(self) -> None:
        if self._refusals is not None:
            self.sockets[-1].disable_monitor()
        for socket in self.sockets:
            socket.close(linger=0)
        self._path.unlink(missing_ok=True)


class SocketLink:
    """A PUSH socket to one worker. It never blocks: the channels' windows bound its queue."""

    def __init__(self, socket: zmq.Socket[Any]) -> None:
        self.socket = socket

    def send(self, frames: list[Any]) -> None:
        if len(frames) == 1:
            self.socket.send(frames[0], zmq.NOBLOCK)
        else:
            self.socket.send(frames[0], zmq.SNDMORE | zmq.NOBLOCK)
            self.socket.send(frames[1], zmq.NOBLOCK)


class SocketPeers:
    """Links to the other workers, made on first use."""

    def __init__(self, context: zmq.Context[Any], keys: Keys, boot: str) -> None:
        self._context, self._keys, self._boot = context, keys, boot
        self._links: dict[int, SocketLink] = {}

    def link(self, address: WorkerAddress) -> SocketLink:
        self.forget(address.slot)
        same_host = reached_by_ipc(self._boot, address.boot, address.ipc, address.tcp)
        if not same_host and not address.tcp:
            raise MillraceError(f"worker {address.slot} is on another host ({address.node}) but has no tcp port: give the "
                                "engine a `bind` address that the other hosts can reach")
        socket = self._context.socket(zmq.PUSH)
        socket.sndhwm = 0
        socket.linger = 0
        if not same_host:
            visit(socket, self._keys)
        try:
            socket.connect(address.ipc if same_host else address.tcp)
        except zmq.ZMQError as error:
            socket.close()
            raise MillraceError(f"worker {address.slot} cannot be reached at {address}: {error.strerror}") from None
        link = self._links[address.slot] = SocketLink(socket)
        return link

    def forget(self, slot: int) -> None:
        link = self._links.pop(slot, None)
        if link is not None:
            link.socket.close(linger=0)

    def close(self) -> None:
        for slot in list(self._links):
            self.forget(slot)

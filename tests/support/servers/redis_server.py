"""A Redis server for the tests."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from support.servers.catalog import REDIS
from support.servers.certificates import Certificates, make_certificates
from support.servers.needed import locate
from support.servers.ports import free_port

START_SECONDS = 20


class RedisServer:
    """One server on the loopback. Only its log is on disk, so it is empty after a restart."""

    def __init__(self, binary: str, directory: Path) -> None:
        self.binary, self.directory, self.port = binary, directory, free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [self.binary, *self.port_options(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
             "--dir", str(self.directory), "--logfile", str(self.directory / "redis.log")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), self.connection() as probe:
                probe.sendall(b"PING\r\n")
                if probe.recv(7) in (b"+PONG\r\n", b"-NOAUTH"):
                    return
            time.sleep(0.05)
        self.stop()
        log = self.directory / "redis.log"
        raise RuntimeError(f"redis-server did not start: {log.read_text()[-1000:] if log.exists() else 'no log'}")

    def port_options(self) -> list[str]:
        return ["--port", str(self.port)]

    def connection(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=1)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class TlsRedisServer(RedisServer):
    """One that speaks TLS only and wants a password."""

    def __init__(self, binary: str, directory: Path, certificates: Certificates, password: str) -> None:
        super().__init__(binary, directory)
        self.certificates = certificates
        self.url = f"rediss://:{password}@127.0.0.1:{self.port}/0?ssl_ca_certs={certificates.authority}"
        (directory / "redis.conf").write_text(f"requirepass {password}\n")

    def port_options(self) -> list[str]:
        return [str(self.directory / "redis.conf"), "--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no",
                "--tls-cert-file", str(self.certificates.certificate), "--tls-key-file", str(self.certificates.key),
                "--tls-ca-cert-file", str(self.certificates.authority)]

    def connection(self) -> socket.socket:
        context = ssl.create_default_context(cafile=self.certificates.authority)
        return context.wrap_socket(super().connection(), server_hostname="127.0.0.1")


@contextlib.contextmanager
def running_redis(directory: Path) -> Iterator[RedisServer]:
    """Skips the test if Redis is not installed."""
    server = RedisServer(locate(REDIS), directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def running_tls_redis(directory: Path, password: str) -> Iterator[TlsRedisServer]:
    """Skips the test if Redis or openssl is not installed."""
    server = TlsRedisServer(locate(REDIS), directory, make_certificates(directory, "Redis with TLS"), password)
    server.start()
    try:
        yield server
    finally:
        server.stop()

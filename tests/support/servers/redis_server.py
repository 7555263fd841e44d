"""A Redis server for the tests."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from support.servers.catalog import REDIS
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
            [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
             "--dir", str(self.directory), "--logfile", str(self.directory / "redis.log")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.sendall(b"PING\r\n")
                if probe.recv(7) == b"+PONG\r\n":
                    return
            time.sleep(0.05)
        self.stop()
        log = self.directory / "redis.log"
        raise RuntimeError(f"redis-server did not start: {log.read_text()[-1000:] if log.exists() else 'no log'}")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def running_redis(directory: Path) -> Iterator[RedisServer]:
    """Skips the test if Redis is not installed."""
    server = RedisServer(locate(REDIS), directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()

"""Real servers for the tests that need one: started on a free port of the loopback, stopped by their pid."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))  # for `recording`
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from debian import free_port, install_debian_package

START_SECONDS = 20


class RedisServer:
    """A redis-server of our own, with nothing on disk but its log."""

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


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory) -> Iterator[RedisServer]:
    pytest.importorskip("redis", reason="the Python package redis is not installed: pip install millrace[redis]")
    if shutil.which("redis-server") is None:
        reason = install_debian_package("redis-server")
        if reason:
            pytest.skip(reason)
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server was installed and is still not on the PATH")
    server = RedisServer(binary, tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_client(redis_server):
    """A client of an empty server."""
    import redis

    client = redis.Redis.from_url(redis_server.url, decode_responses=True)
    client.flushall()
    yield client
    client.close()

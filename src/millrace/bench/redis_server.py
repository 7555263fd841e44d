"""A Redis server for one benchmark, started on a free port of the loopback interface."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millrace.errors import MillraceError

START_SECONDS = 60.0
NO_SERVER = ("Redis is left out: there is no redis-server on the PATH. Install it (Debian, Ubuntu: apt-get install "
             "redis-server; macOS: brew install redis) and run this again; the benchmark starts it on its own.")
NO_CLIENT = "Redis is left out: its Python client is not installed. Install it (pip install redis) and run this again."


@contextmanager
def redis_server(directory: Path) -> Iterator[tuple[Any, str]]:
    """Yield a client of a server that keeps nothing on disk, and an empty string; or None, and how to get Redis."""
    program = shutil.which("redis-server")
    if program is None:
        yield None, NO_SERVER
        return
    try:
        import redis
    except ImportError:
        yield None, NO_CLIENT
        return
    port = _free_port()
    server = subprocess.Popen([program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                               "--dir", str(directory)], stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port)
    try:
        _await_answer(client, server, redis.exceptions.ConnectionError)
        yield client, ""
    finally:
        client.close()
        server.terminate()
        server.wait()


def _await_answer(client: Any, server: subprocess.Popen[bytes], refused: type[Exception]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            client.ping()
            return
        except refused as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise MillraceError(f"the Redis server of this benchmark does not answer: {error}") from None
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

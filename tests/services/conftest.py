"""Real servers for the tests that need one: started on a free port of the loopback, stopped by their pid."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))  # for `recording`

POLICY = Path("/usr/sbin/policy-rc.d")
APT_SECONDS = 240
START_SECONDS = 20


@functools.cache
def install_debian_package(package: str) -> str:
    """Installs a package if that can be done here. Returns why not, or an empty text."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"{package} is not installed, and only root on Debian can install it: apt-get install {package}"
    with _services_stay_off():
        for command in (["update"], ["install", "--yes", "--no-install-recommends", package]):
            failure = _apt_get(command)
            if failure and command[0] == "install":  # an update that fails may still have left what is needed
                return f"apt-get install {package} failed: {failure}"
    return ""


def _apt_get(arguments: list[str]) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    try:
        done = subprocess.run(["apt-get", "-qq", *arguments], env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=APT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no end after {APT_SECONDS} s"
    return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[-500:]


@contextlib.contextmanager
def _services_stay_off() -> Iterator[None]:
    """Debian starts a service when it installs it, unless this script says no. One that is there is left as it is."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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

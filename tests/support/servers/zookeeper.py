"""A ZooKeeper of our own for tests that need one."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers.debian import free_port, install_debian_package

JAR = Path("/usr/share/java/zookeeper.jar")  # where Debian's package has it
START_SECONDS = 60


class ZooKeeperServer:
    """One server on the loopback, its data in a directory that outlives a stop: it can be started again."""

    def __init__(self, java: str, directory: Path) -> None:
        self.java, self.directory, self.port = java, directory, free_port()
        self.hosts = f"127.0.0.1:{self.port}"
        self.url = f"zookeeper://{self.hosts}"
        self.process: subprocess.Popen[bytes] | None = None
        self.log = directory / "zookeeper.log"
        self.config = directory / "zoo.cfg"
        self.config.write_text(f"dataDir={directory / 'data'}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
                               "admin.enableServer=false\n4lw.commands.whitelist=ruok\ntickTime=500\n")

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.jmx.log4j.disable=true",
                 "-Dzookeeper.forceSync=no",  # the process is killed, never the machine
                 "-cp", str(JAR), "org.apache.zookeeper.server.ZooKeeperServerMain", str(self.config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.sendall(b"ruok")
                if probe.recv(4) == b"imok":
                    return
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"ZooKeeper did not start: {self.log.read_text()[-1000:] or 'nothing in its log'}")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def running_zookeeper(directory: Path) -> Iterator[ZooKeeperServer]:
    """Skips the test if there is none here and none can be installed."""
    pytest.importorskip("kazoo", reason="the Python package kazoo is not installed: pip install millrace[zookeeper]")
    if not JAR.exists():
        reason = install_debian_package("zookeeper")
        if reason:
            pytest.skip(reason)
    java = shutil.which("java")
    if java is None or not JAR.exists():
        pytest.skip(f"Debian's package zookeeper should have brought java and {JAR}, and did not")
    server = ZooKeeperServer(java, directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()

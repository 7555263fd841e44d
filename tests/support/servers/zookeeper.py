"""A ZooKeeper server for the tests."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.servers.catalog import ZOOKEEPER, ZOOKEEPER_JAR
from support.servers.certificates import Certificates
from support.servers.needed import locate
from support.servers.ports import free_port

START_SECONDS = 60
SERVING = b"Zookeeper version"


class ZooKeeperServer:
    """One server on the loopback. Its data survives a stop, so it can be started again."""

    def __init__(self, java: str, directory: Path, certificates: Certificates | None = None) -> None:
        self.java, self.directory, self.port = java, directory, free_port()
        self.hosts = f"127.0.0.1:{self.port}"
        self.url = f"zookeeper://{self.hosts}"
        self.process: subprocess.Popen[bytes] | None = None
        self.log = directory / "zookeeper.log"
        self.config = directory / "zoo.cfg"
        self.config.write_text(f"dataDir={directory / 'data'}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
                               "admin.enableServer=false\n4lw.commands.whitelist=srvr\ntickTime=500\n")
        self.classes, self.tls_hosts = str(ZOOKEEPER_JAR), ""
        if certificates is not None:
            self._add_tls(certificates)

    def _add_tls(self, certificates: Certificates) -> None:
        """Serve TLS on a second port. Debian's jar does not name all the jars that it needs for that."""
        port, both = free_port(), self.directory / "certificate-and-key.pem"
        both.write_text(certificates.key.read_text() + certificates.certificate.read_text())
        self.tls_hosts = f"127.0.0.1:{port}"
        self.classes = f"{ZOOKEEPER_JAR}:{ZOOKEEPER_JAR.with_name('netty-codec.jar')}"
        with self.config.open("a") as config:
            config.write("serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\nssl.clientAuth=none\n"
                         f"secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\nssl.keyStore.type=PEM\n"
                         f"ssl.keyStore.location={both}\nssl.trustStore.type=PEM\n"
                         f"ssl.trustStore.location={certificates.authority}\n")

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.jmx.log4j.disable=true",
                 "-Dzookeeper.forceSync=no",  # the process is killed, never the machine
                 "-cp", self.classes, "org.apache.zookeeper.server.ZooKeeperServerMain", str(self.config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                # `ruok` is answered before sessions are: a client that connects in between waits for its whole time limit.
                probe.sendall(b"srvr")
                if probe.recv(len(SERVING)) == SERVING:
                    return
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"ZooKeeper did not start: {self.log.read_text()[-1000:] or 'nothing in its log'}")

    @contextlib.contextmanager
    def stranger(self, timeout: float) -> Iterator[Any]:
        """A client of someone who reaches the server, has no user and does not know the key of any run."""
        from kazoo.client import KazooClient

        client = KazooClient(self.hosts, timeout=timeout)
        client.start(timeout)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def running_zookeeper(directory: Path, certificates: Certificates | None = None) -> Iterator[ZooKeeperServer]:
    """Skips the test if ZooKeeper is not installed."""
    server = ZooKeeperServer(locate(ZOOKEEPER), directory, certificates)
    server.start()
    try:
        yield server
    finally:
        server.stop()

"""A driver and executors on two hosts, and someone who listens on the cable between them.

The hosts are network namespaces, so this needs root.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zmq.utils.z85

from millrace.spark.session.encryption import ENCRYPTED, SECRET
from millrace.spark.session.environment import spark_home
from millrace.spark.session.java import ensure_java
from support.network.hosts import Host, two_hosts
from support.network.sniffer import sniffed

pytestmark = pytest.mark.timeout(900)
CLAIM = "encryption between hosts"
DEPLOY = "org.apache.spark.deploy"
PORT = "7077"
SECONDS = 400  # for a driver on a busy machine


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    with two_hosts(CLAIM) as (near, far):
        yield near, far


@dataclass(frozen=True)
class Overheard:
    """The driver's answer, and all bytes that could be read on the cable."""

    answer: dict[str, Any]
    row: bytes
    plan: bytes
    secret: bytes
    connections: list[bytes]

    def heard(self, text: bytes) -> bool:
        return any(text in connection for connection in self.connections)

    @property
    def key_was_heard(self) -> bool:
        key = self.answer["secret"].encode()
        return self.heard(key) or self.heard(zmq.utils.z85.decode(key))


@contextmanager
def daemon(host: Host, log: Path, ready: str, *arguments: str) -> Iterator[None]:
    """One of Spark's own processes on a host, once its log has the text."""
    home = spark_home({})
    environment = {**os.environ, "JAVA_HOME": str(ensure_java()), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": host.address,
                   "SPARK_LOCAL_HOSTNAME": host.address, "SPARK_DAEMON_MEMORY": "256m",
                   "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    with log.open("wb") as output:
        process = subprocess.Popen(host.command(str(home / "bin" / "spark-class"), *arguments), env=environment, stdout=output,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        with subprocess.Popen(["tail", "-n", "+1", "-f", f"--pid={process.pid}", str(log)], stdout=subprocess.PIPE,
                              text=True) as tail:
            assert tail.stdout is not None
            limit = threading.Timer(SECONDS, tail.kill)  # ends the loop, so that the log is shown
            limit.start()
            try:
                assert any(ready in line for line in tail.stdout), f"no {ready!r} in {log.read_text()[-2000:]}"
            finally:
                limit.cancel()
                tail.terminate()
        yield
    finally:
        process.terminate()
        process.wait(SECONDS)


@contextmanager
def standalone(host: Host, directory: Path, settings: dict[str, str]) -> Iterator[str]:
    """A standalone cluster with these settings in its spark-defaults.conf."""
    defaults = directory / "spark-defaults.conf"
    defaults.touch(mode=0o600)
    defaults.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    url = f"spark://{host.address}:{PORT}"
    with ExitStack() as stack:
        stack.enter_context(daemon(host, directory / "master.log", "I have been elected leader", f"{DEPLOY}.master.Master",
                                   "--host", host.address, "--port", PORT, "--webui-port", "0",
                                   "--properties-file", str(defaults)))
        stack.enter_context(daemon(host, directory / "worker.log", "Successfully registered with master",
                                   f"{DEPLOY}.worker.Worker", "--host", host.address, "--cores", "3", "--memory", "1g",
                                   "--webui-port", "0", "--properties-file", str(defaults),
                                   "--work-dir", str(directory / "work"), url))
        yield url


def overhear(hosts: tuple[Host, Host], directory: Path, secret: str) -> Overheard:
    """Run a driver on one host with executors on the other; with a secret, encrypted."""
    near, far = hosts
    row, plan = secrets.token_hex(16), secrets.token_hex(16)
    own = {SECRET: secret} if secret else {}
    request = {"name": f"overheard-{os.getpid()}", "row": row, "plan": plan, "encrypted": bool(secret),
               "settings": {"history.url": "none", "checkpoint.store": str(directory / "checkpoints")},
               "spark": {**own, "spark.executor.memory": "512m", "spark.driver.host": near.address}}
    environment = {**os.environ, "SPARK_LOCAL_IP": near.address,
                   "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    settings = {**ENCRYPTED, **own} if secret else {}
    with standalone(far, directory, settings) as url, sniffed(near, directory / "frames") as capture:
        done = subprocess.run(near.command(sys.executable, "-m", "support.network.sniffed_driver", url), text=True,
                              input=json.dumps(request), capture_output=True, timeout=SECONDS, check=False, env=environment)
        assert done.returncode == 0, done.stderr[-4000:] + (directory / "worker.log").read_text()[-2000:]
    assert capture.dropped == 0
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["status"] and answer["rows"] == [row]
    return Overheard(answer, row.encode(), plan.encode(), secret.encode(), capture.connections())


def test_with_a_secret_neither_keys_nor_rows_can_be_read_on_the_cable(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    overheard = overhear(hosts, tmp_path, secrets.token_hex(24))
    assert overheard.answer["warnings"] == [] and overheard.answer["refusal"] == ""
    assert sum(map(len, overheard.connections)) > 100_000  # the code was shipped over this cable
    assert not overheard.key_was_heard
    for text in (overheard.row, overheard.plan, overheard.secret):
        assert not overheard.heard(text)


@pytest.mark.slow  # it proves that the listener hears what is not encrypted
def test_without_a_secret_they_can_be_read_and_millrace_warns(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """Proves that the listener hears what is to be heard. The plan has its own encryption, but its key can be read."""
    overheard = overhear(hosts, tmp_path, "")
    [warning] = overheard.answer["warnings"]
    assert "they carry the workers' keys" in warning and warning in overheard.answer["refusal"]
    assert overheard.key_was_heard
    assert overheard.heard(overheard.row)
    assert not overheard.heard(overheard.plan)

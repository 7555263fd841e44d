"""Spark master URLs: parsing them, and checking that the master answers."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from millrace.errors import MasterUnreachable, MillraceError

CONNECT_SECONDS = 12.0
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class MasterUrl:
    """A parsed Spark master URL. `kind` is local, local-cluster, spark, k8s or yarn."""

    url: str
    kind: str
    cores: int = 0
    executors: int = 0  # of a local-cluster
    executor_memory_mb: int = 0
    addresses: tuple[tuple[str, int], ...] = ()

    @property
    def on_this_machine(self) -> bool:
        """True if driver and executors share this machine and its files."""
        return self.kind in ("local", "local-cluster")

    @property
    def on_loopback(self) -> bool:
        """True if nothing has to listen beyond the loopback interface."""
        hosts = {host for host, _ in self.addresses}
        return self.on_this_machine or (bool(hosts) and hosts <= {LOOPBACK, "localhost"})


def parse_master(url: str) -> MasterUrl:
    """Parse a master URL. Refuses a wrong one at once, where Spark would show a stack trace ten seconds later."""
    text = url.strip()
    if local := re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?", text):
        cores = {None: 1, "*": os.cpu_count() or 1}.get(local.group(1)) or int(local.group(1))
        return MasterUrl(text, "local", cores=cores)
    if cluster := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]", text):
        executors, cores, memory = (int(part) for part in cluster.groups())
        return MasterUrl(text, "local-cluster", cores=executors * cores, executors=executors, executor_memory_mb=memory)
    if text.startswith("spark://"):
        parts = text.removeprefix("spark://").split(",")
        return MasterUrl(text, "spark", addresses=tuple(_address(part, 7077, url) for part in parts))
    if text.startswith("k8s://"):
        rest = text.removeprefix("k8s://")
        default = 80 if rest.startswith("http://") else 443
        return MasterUrl(text, "k8s", addresses=(_address(rest.split("://")[-1], default, url),))
    if text == "yarn":
        return MasterUrl(text, "yarn")
    raise MillraceError(
        f"{url!r} is not a Spark master. It can be local[N], local-cluster[EXECUTORS,CORES,MEGABYTES], "
        "spark://HOST:PORT, k8s://https://HOST:PORT or yarn."
    )


def _address(text: str, default_port: int, url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or default_port
    except ValueError as error:
        raise MillraceError(f"The Spark master {url!r} has no usable address: {error}.") from error
    if not host:
        raise MillraceError(f"The Spark master {url!r} names no host; it should look like spark://HOST:PORT.")
    return host, port


def check_reachable(master: MasterUrl, timeout: float = CONNECT_SECONDS) -> None:
    """Connect to the master before Spark does: Spark takes a minute to give up, and reports it as a stack trace."""
    if master.kind == "yarn" and not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
        raise MasterUnreachable(
            "The master is yarn, but neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set, so YARN cannot be found. "
            "Set one of them to the directory that has yarn-site.xml."
        )
    failures = []
    for host, port in master.addresses:
        try:
            socket.create_connection((host, port), timeout=timeout / len(master.addresses)).close()
            return
        except OSError as error:
            failures.append(f"{host}:{port}: {error}")
    if failures:
        raise MasterUnreachable(
            f"The Spark master {master.url} does not answer ({'; '.join(failures)}). "
            "Check that it is running and that host and port are right, or use local[N] to run on this machine."
        )

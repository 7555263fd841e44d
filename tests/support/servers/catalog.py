"""The servers that tests need: where each one is found, its Debian package, and the claims that its tests prove.

Imports only the standard library: `install` runs before pytest does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")  # its place in Debian's package


def redis_binary() -> str | None:
    return shutil.which("redis-server")


def postgres_binaries() -> str | None:
    """The directory with initdb and postgres. Debian keeps them off the PATH, one directory for each version."""
    on_path = shutil.which("initdb")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    for directory in ([Path(on_path).resolve().parent] if on_path else []) + debian:
        if all(os.access(directory / name, os.X_OK) for name in ("initdb", "postgres")):
            return str(directory)
    return None


def zookeeper_java() -> str | None:
    """The Java that runs ZooKeeper's jar."""
    return shutil.which("java") if ZOOKEEPER_JAR.exists() else None


@dataclass(frozen=True, slots=True)
class Server:
    """A server program. `find` returns its location, or None if it is not installed."""

    name: str
    package: str  # Debian's
    module: str  # the Python client, which tests import
    claims: str
    find: Callable[[], str | None]

    def advice(self) -> str:
        return f"{self.name} is not installed: ./millrace test installs it as root on Debian (apt-get install {self.package})"


REDIS = Server("Redis", "redis-server", "redis", "Redis connectors, sinks and checkpoint stores", redis_binary)
ZOOKEEPER = Server("ZooKeeper", "zookeeper", "kazoo", "plans and coordination in ZooKeeper", zookeeper_java)
POSTGRES = Server("PostgreSQL", "postgresql", "psycopg", "history and sinks in PostgreSQL", postgres_binaries)
SERVERS = (REDIS, ZOOKEEPER, POSTGRES)

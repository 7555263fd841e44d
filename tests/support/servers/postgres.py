"""A PostgreSQL server for the tests: in a temporary directory, on a free port of the loopback, stopped by its pid."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.servers.catalog import POSTGRES
from support.servers.needed import locate
from support.servers.ports import free_port

START_SECONDS = 60
STOP_SECONDS = 20
USER = "millrace"


def unprivileged_user() -> pwd.struct_passwd | None:
    """The account that the server runs as when the tests run as root, which PostgreSQL refuses. None if there is none."""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


class PostgresServer:
    """Data, socket and log in one directory of its own, which `remove` deletes."""

    def __init__(self, binaries: Path) -> None:
        self.binaries, self.port, self.password = binaries, free_port(), secrets.token_urlsafe(12)
        self.directory = Path(tempfile.mkdtemp(prefix="millrace-postgres-"))  # pytest's own can only be entered by root
        self.data, self.log = self.directory / "data", self.directory / "log"
        self.url = f"postgresql+psycopg://{USER}:{self.password}@127.0.0.1:{self.port}/postgres"
        self.process: subprocess.Popen[bytes] | None = None
        self._as_user: dict[str, Any] = {}
        password_file = self.directory / "password"
        password_file.write_text(self.password)
        if os.geteuid() == 0:
            user = unprivileged_user()
            if user is None:
                raise RuntimeError("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            for path in (self.directory, password_file):
                os.chown(path, user.pw_uid, user.pw_gid)
        self._initdb(password_file)

    def _initdb(self, password_file: Path) -> None:
        done = subprocess.run(
            [self.binaries / "initdb", "-D", self.data, "-U", USER, "--pwfile", password_file, "--auth", "scram-sha-256",
             "--encoding", "UTF8", "--no-locale", "--no-sync"],
            cwd=self.directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **self._as_user)
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed: {(done.stderr or done.stdout)[-1000:]}")

    def start(self) -> None:
        """Returns when it takes connections."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.binaries / "postgres", "-D", self.data, "-h", "127.0.0.1", "-p", str(self.port), "-k", self.directory,
                 "-c", "fsync=off", "-c", "max_connections=20", "-c", "shared_buffers=16MB"],
                cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._as_user)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if self._answers():
                return
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"postgres did not start: {self.log.read_text()[-1000:]}")

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(host="127.0.0.1", port=self.port, user=USER, password=self.password, dbname="postgres",
                            connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def execute(self, statement: str) -> None:
        """One statement outside a transaction, such as CREATE DATABASE."""
        import psycopg

        with psycopg.connect(host="127.0.0.1", port=self.port, user=USER, password=self.password, dbname="postgres",
                             autocommit=True) as connection:
            connection.execute(statement.encode())

    def stop(self) -> None:
        """Ends every connection at once, as an administrator's restart does."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGQUIT)  # its children end with it, which they would not by SIGKILL
            self.process.wait(STOP_SECONDS)
        self.process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Skips the test if PostgreSQL is not installed."""
    server = PostgresServer(Path(locate(POSTGRES)))
    try:
        server.start()
        yield server
    finally:
        server.remove()

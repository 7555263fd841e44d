"""Parents and survivors among processes, read from /proc."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from millrace.spark.session.settings import DAEMON


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent, process group, session, ... Empty if it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def ancestors(pid: int) -> Iterator[int]:
    while stat := _stat(pid):
        pid = int(stat[1])
        if pid:
            yield pid


def alive(pid: int) -> bool:
    """False for a zombie too."""
    stat = _stat(pid)
    return bool(stat) and stat[0] not in "ZX"


def in_session(leader: int) -> list[int]:
    """The live processes of a session, without zombies."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    stats = {pid: _stat(pid) for pid in pids}
    return [pid for pid, stat in stats.items() if stat and int(stat[3]) == leader and stat[0] not in "ZX"]


def executor_of(worker: int) -> int | None:
    """The process of the Spark executor that a Python worker belongs to."""
    return next((pid for pid in ancestors(worker) if "--executor-id" in command(pid)), None)


def is_daemon(pid: int) -> bool:
    """True for a daemon of Spark and for what it has forked: PySpark's, or that of resident workers."""
    return not {"pyspark.daemon", DAEMON}.isdisjoint(command(pid))


def python_workers(root: int) -> list[int]:
    """Spark's Python workers below a process: the processes that a daemon has forked."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    families = {pid: list(ancestors(pid)) for pid in pids if is_daemon(pid)}
    return [pid for pid, family in families.items() if root in family and family[0] in families]


def daemon_of(worker: int) -> int:
    """The process that forks Spark's Python workers."""
    return next(pid for pid in ancestors(worker) if is_daemon(pid))

"""The processes and the store around a topology, for faults to break."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil


class TakenAway:
    """A directory behind a symbolic link. While it is unavailable a plain file takes the link's place, so that code that makes
    missing directories cannot restore it; each change is one rename."""

    def __init__(self, base: Path) -> None:
        self.path, self._disk, self._other = base / "checkpoints", base / "disk", base / "other"
        self._disk.mkdir()
        self.bring_back()

    def take_away(self) -> None:
        self._other.touch()
        self._other.replace(self.path)

    def bring_back(self) -> None:
        self._other.symlink_to(self._disk)
        self._other.replace(self.path)


def executor_of(pid: int) -> int | None:
    """The process of the Spark executor that a process belongs to; None if one of them is gone."""
    try:
        return next((parent.pid for parent in psutil.Process(pid).parents() if "--executor-id" in parent.cmdline()), None)
    except psutil.Error:
        return None


def has_ended(pid: int) -> bool:
    """True if the process has ended, even if its parent has not waited for it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def catches(pid: int, number: signal.Signals) -> bool:
    """True if the process has a handler for the signal, which would otherwise end it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    mask = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(mask >> (number - 1) & 1)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended on its own."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return

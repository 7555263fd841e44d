"""The node that a worker runs on: its name and capacity."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from millrace.config import NODE_BY
from millrace.model.cluster import Node

CGROUP = Path("/sys/fs/cgroup")
SOME_MHZ = 1000.0  # if the system reports none: loads are then shares of a core, times 1000


def this_node(settings: Mapping[str, Any], executor: str) -> Node:
    """This node as the schedulers see it: with the container's limits, not the machine's."""
    name = os.environ.get("MILLRACE_NODE") or socket.gethostname()
    if NODE_BY.of(settings) == "executor" and executor:
        name = f"{name}/{executor}"
    return Node(name, _cores(), _mhz(), _memory_mb(), machine_name())


def machine_name() -> str:
    """Names whatever this process has its cores from: the container if that has a quota of its own, else the machine. Nodes of
    the same name share these cores."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{kernel}/{CGROUP.stat().st_ino}" if _quota() is not None else kernel
    except OSError:
        return ""


def machine_cpu_seconds() -> float:
    """CPU time that all processes on these cores have used so far, and that a hypervisor has taken from them."""
    if _quota() is not None:
        usage = dict(line.split() for line in _cgroup("cpu.stat").splitlines())
        return int(usage.get("usage_usec", 0)) / 1e6
    cores = _affinity()
    if len(cores) == os.cpu_count():
        return _busy(psutil.cpu_times())
    return sum(_busy(times) for core, times in enumerate(psutil.cpu_times(percpu=True)) if core in cores)


def _busy(times: Any) -> float:
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _quota() -> float | None:
    """The cores that the container may use at a time; None if it may use all."""
    quota = _cgroup("cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]):
        return int(quota[0]) / int(quota[1])
    return None


def _cores() -> float:
    cores, quota = max(1, len(_affinity())), _quota()
    return min(cores, quota) if quota is not None else cores


def _mhz() -> float:
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, AttributeError):  # virtual machines often report none
        frequency = None
    return float(max(frequency.current, frequency.max) or SOME_MHZ) if frequency is not None else SOME_MHZ


def _memory_mb() -> int:
    total = psutil.virtual_memory().total
    limit = _cgroup("memory.max")
    return int((min(total, int(limit)) if limit.isdigit() else total) // 2**20)


def _cgroup(name: str) -> str:
    try:
        return (CGROUP / name).read_text().strip()
    except OSError:
        return ""

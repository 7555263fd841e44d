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
    return Node(name, _cores(), _mhz(), _memory_mb())


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup("cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]):
        cores = min(cores, max(1, round(int(quota[0]) / int(quota[1]))))
    return max(1, cores)


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

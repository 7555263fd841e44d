"""The node of a worker: containers with a quota have their own cores, others share those of the machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace.runtime import node

TWO_CORES = "200000 100000"


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(node, "CGROUP", tmp_path)
    monkeypatch.setattr(node, "_affinity", lambda: set(range(8)))
    return tmp_path


def test_without_a_quota_the_cores_are_those_of_the_machine(container: Path) -> None:
    (container / "cpu.max").write_text("max 100000\n")
    here = node.this_node({}, "7")
    assert here.cores == 8 and "/" not in here.machine
    assert node.this_node({"worker.node.by": "executor"}, "7").machine == here.machine != ""


def test_a_quota_is_the_containers_own(container: Path) -> None:
    (container / "cpu.max").write_text(TWO_CORES)
    here = node.this_node({}, "7")
    assert here.cores == 2 and here.machine.endswith(f"/{container.stat().st_ino}")


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 1.5), ("50000 100000", 0.5), ("1600000 100000", 8)])
def test_a_quota_may_be_a_part_of_a_core(container: Path, quota: str, cores: float) -> None:
    (container / "cpu.max").write_text(quota)
    assert node.this_node({}, "").cores == cores


def test_in_a_container_its_own_processes_count(container: Path) -> None:
    (container / "cpu.max").write_text(TWO_CORES)
    (container / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    assert node.machine_cpu_seconds() == 2.5


def test_on_a_machine_all_processes_count_that_use_these_cores(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = SimpleNamespace(user=1.0, nice=2.0, system=4.0, idle=100.0, iowait=100.0, irq=8.0, softirq=16.0, steal=32.0)
    monkeypatch.setattr(node.psutil, "cpu_times", lambda percpu=False: [times] * 8 if percpu else times)
    monkeypatch.setattr(node.os, "cpu_count", lambda: 8)
    assert node.machine_cpu_seconds() == 63.0
    monkeypatch.setattr(node, "_affinity", lambda: {0, 5})
    assert node.machine_cpu_seconds() == 126.0

"""The table of `millrace workers`."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.cli.workers import print_workers


def row(slot: int, tasks: list[str], leaving: str = "") -> dict[str, Any]:
    return {"slot": slot, "node": "host-a", "executor": "7", "pid": 4000 + slot, "tasks": tasks, "leaving": leaving}


def test_every_worker_has_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_workers([row(0, ["words/count[0]", "words/count[1]"]), row(3, [], "restarted")])
    title, header, first, second = capsys.readouterr().out.splitlines()
    assert title == "2 workers"
    assert header.split() == ["slot", "node", "executor", "process", "tasks"]
    assert first.split() == ["0", "host-a", "7", "4000", "words/count[0..1]"]
    assert second.split(maxsplit=4) == ["3", "host-a", "7", "4003", "none (is being restarted)"]


def test_a_cluster_without_workers(capsys: pytest.CaptureFixture[str]) -> None:
    print_workers([])
    assert capsys.readouterr().out == "no workers\n"

"""The table of `millrace workers`."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.cli.workers import auto_text, print_workers


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


def auto(**changed: Any) -> dict[str, Any]:
    return {"on": True, "min": 1, "max": 4, "idle": 60.0, "cool_down": 30.0, "share": 0.5, "under_way": "", "trouble": "",
            "decision": "there are as many workers as are needed", **changed}


def test_limits_in_words() -> None:
    assert auto_text(auto()) == (
        "from 1 to 4 workers; given back after 60 s with no tasks, or a load of at most 50%, and at the earliest 30 s after "
        "the last change. Now: there are as many workers as are needed")
    assert "after 60 s with no tasks and at" in auto_text(auto(share=0.0))
    assert auto_text(auto(under_way="1 more worker is requested")).endswith("Now: 1 more worker is requested")
    assert auto_text(auto(trouble="no worker could be added", under_way="1 more")).endswith("Now: no worker could be added")
    assert auto_text(auto(on=False)) == "the number of workers changes only by hand (millrace workers add, remove)"

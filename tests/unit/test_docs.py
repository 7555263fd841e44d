"""What the documents say is true: examples run, tables are current, links lead somewhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording import attach, tuples

import millrace
from millrace.api.topology import Topology
from millrace.cli.settings_table import settings_page
from millrace.model.graph import graph_of
from millrace.schedulers.base import NewPlan, NoChange
from millrace.schedulers.instances import random_situation
from millrace.schedulers.parameters import with_parameters
from millrace.schedulers.rules import check_result
from millrace.testing.local_cluster import LocalCluster

ROOT = Path(millrace.__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.S)


def test_the_first_topology_is_the_example_file() -> None:
    assert blocks(ROOT / "README.md")[0] == (ROOT / "examples" / "first.py").read_text()


def test_the_first_topology_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from examples.first import WordCount

    assert issubclass(WordCount, Topology)
    cluster = LocalCluster(workers=2)
    cluster.submit(WordCount)
    cluster.run_until(lambda: sum(task.meters.executed for task in cluster.tasks("count")) >= 1000, seconds=1e6)
    counted = sum(sum(task.component.state.values()) for task in cluster.tasks("count"))
    assert counted == sum(task.meters.executed for task in cluster.tasks("count"))
    assert graph_of(WordCount).name == "wordcount"


def test_the_bolt_of_the_state_page_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("trips")
    monkeypatch.setitem(sys.modules, "trips", module)
    exec(blocks(ROOT / "docs" / "STATE.md")[0], vars(module))
    bolt, recorder = attach(module.Trips)
    for tup in tuples("car at", [["a", 1.0], ["b", 2.0], ["a", 3.0]]):
        bolt.process(tup)
    assert recorder.values() == [["a", 1], ["b", 1], ["a", 2]]
    assert (bolt.trips["a"].stops, bolt.recent["a"]) == (2, [1.0, 3.0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_the_pages_is_python(page: Path) -> None:
    for block in blocks(page):
        ast.parse(block)


def test_the_scheduler_of_the_page_schedules() -> None:
    names: dict[str, Any] = {}
    exec(blocks(ROOT / "docs" / "SCHEDULERS.md")[0], names)
    situation = random_situation(np.random.default_rng(1))
    scheduler = with_parameters(names["AllInOnePlace"], {"least_tasks": 1}, "the page's")
    result = check_result(situation, scheduler.schedule(situation.graphs, situation.cluster, situation.load, situation.plan))
    assert isinstance(result, NewPlan)
    again = scheduler.schedule(situation.graphs, situation.cluster, situation.load, result.plans)
    assert isinstance(again, NoChange)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_the_settings_page_is_current() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page(), \
        "run: python -m millrace.cli.settings_table > docs/settings.md"


def test_every_verb_the_readme_names_exists() -> None:
    verbs = set(re.findall(r"\./millrace (\w+)", (ROOT / "README.md").read_text()))
    for verb in verbs:
        found = subprocess.run([sys.executable, "-m", "millrace.cli.main", verb, "--help"], capture_output=True, check=False)
        assert found.returncode == 0, f"README names `millrace {verb}`, which the command does not have"


def test_public_names_are_sorted_and_there() -> None:
    assert millrace.__all__ == sorted(millrace.__all__)
    for name in millrace.__all__:
        assert getattr(millrace, name) is not None

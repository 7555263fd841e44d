"""Checks of README.md and docs/: samples that need no Spark run, generated tables are current, links and paths exist. The other
samples are run by tests/spark/test_samples.py."""

from __future__ import annotations

import ast
import html
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording import attach, tuples
from typer.main import get_command

import millrace
from millrace.api.topology import Topology
from millrace.cli.main import app
from millrace.cli.settings_table import settings_page
from millrace.model.flowchart import mermaid
from millrace.model.graph import graph_of
from millrace.schedulers.base import NewPlan, NoChange
from millrace.schedulers.instances import random_situation
from millrace.schedulers.parameters import with_parameters
from millrace.schedulers.rules import check_result
from millrace.testing.local_cluster import LocalCluster
from support.suites.pages import DOCS, FILE_NAME, PAGES, README, ROOT, blocks, put_in

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PACKAGE = Path(millrace.__file__).parent
CODE_FILE = re.compile(r"`([\w./-]+\.py)`")
COMMAND = re.compile(r"^    (?:\S*/)?millrace (.+?)(?:\s+> \S+)?(?:\s{2,}#.*)?$", re.M)  # with what follows > or #


def test_the_first_sample_of_the_readme_is_the_example_file() -> None:
    assert blocks(README)[0] == (ROOT / "examples" / "hello.py").read_text()


def test_the_first_sample_of_the_readme_prints_what_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = types.ModuleType("hello")
    monkeypatch.setitem(sys.modules, "hello", module)
    exec(put_in(blocks(README)[0], {"/tmp/hello": str(tmp_path)}), vars(module))
    cluster = LocalCluster(workers=2)
    cluster.submit(module.Hello)
    printed = re.findall(r"```json\n(.*?)```", README.read_text(), re.S)[0]
    cluster.run_until(lambda: cluster.tasks("files")[0].meters.executed >= len(printed.splitlines()), seconds=1e6)
    lines = [line for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert sorted(lines) == printed.splitlines()


def test_the_endless_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from examples.first import WordCount

    assert issubclass(WordCount, Topology)
    cluster = LocalCluster(workers=2)
    cluster.submit(WordCount)
    cluster.run_until(lambda: sum(task.meters.executed for task in cluster.tasks("count")) >= 1000, seconds=1e6)
    counted = sum(sum(task.component.state.values()) for task in cluster.tasks("count"))
    assert counted == sum(task.meters.executed for task in cluster.tasks("count"))
    assert graph_of(WordCount).name == "wordcount"


def test_the_second_sample_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("second")
    monkeypatch.setitem(sys.modules, "second", module)
    exec(blocks(README)[1] + SECOND, vars(module))
    cluster = LocalCluster(workers=2)
    cluster.submit(module.Both)
    cluster.run_until(lambda: cluster.tasks("seen")[0].meters.executed >= 500, seconds=1e6)
    rows = cluster.tasks("seen")[0].component.rows
    assert rows == [(f"d{n % 10}", n) for n in range(101, 101 + len(rows))]


SECOND = '''
from millrace import Topology

class Seen(Bolt):
    def initialize(self, storm_conf, context):
        self.rows = []

    def process(self, tup):
        self.rows.append(tuple(tup.values))

class Both(Topology):
    readings = Readings.spec()
    large = Large.spec(inputs=[readings])
    seen = Seen.spec(inputs=[large])
'''


def test_the_bolt_of_the_state_page_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("trips")
    monkeypatch.setitem(sys.modules, "trips", module)
    exec(blocks(DOCS / "STATE.md")[0], vars(module))
    bolt, recorder = attach(module.Trips)
    for tup in tuples("car at", [["a", 1.0], ["b", 2.0], ["a", 3.0]]):
        bolt.process(tup)
    assert recorder.values() == [("a", 1), ("b", 1), ("a", 2)]
    assert (bolt.trips["a"].stops, bolt.recent["a"]) == (2, [1.0, 3.0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_the_pages_is_python(page: Path) -> None:
    for block in blocks(page):
        ast.parse(block)


def test_files_of_the_pages_can_be_imported() -> None:
    """Including those that need a server: a topology is checked when its class is created."""
    names: list[str] = []
    for page in PAGES:
        for block in blocks(page):
            if file := FILE_NAME.match(block):
                exec(block, {"__name__": file[1]})
                names.append(file[1])
    assert "from_kafka" in names
    assert len(set(names)) == len(names), f"two files of the pages have one name: {names}"


def test_the_scheduler_of_the_page_schedules() -> None:
    names: dict[str, Any] = {}
    exec(blocks(DOCS / "SCHEDULERS.md")[0], names)
    situation = random_situation(np.random.default_rng(1))
    scheduler = with_parameters(names["AllInOnePlace"], {"least_tasks": 1}, "the page's")
    result = check_result(situation, scheduler.schedule(situation.graphs, situation.cluster, situation.load, situation.plan))
    assert isinstance(result, NewPlan)
    again = scheduler.schedule(situation.graphs, situation.cluster, situation.load, result.plans)
    assert isinstance(again, NoChange)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!http)([^)#]+)#?([^)]*)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
        assert not anchor or anchor in headings(page.parent / target), f"{target} has no heading {anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_pages_name_exist(page: Path) -> None:
    """`control/ledger.py` is below src/millrace, `tests/...` and `examples/...` below the project."""
    missing = [name for name in CODE_FILE.findall(page.read_text())
               if not any((folder / name).is_file() for folder in (PACKAGE, ROOT, ROOT / "examples"))]
    files = {f"{file[1]}.py" for block in blocks(page) if (file := FILE_NAME.match(block))}
    assert set(missing) <= files, f"{page.name} names files that do not exist: {missing}"


def test_the_map_of_the_code_says_where_things_are() -> None:
    """The map keeps the subjects that a newcomer looks for first."""
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", (DOCS / "ARCHITECTURE.md").read_text(), re.M))
    for subject in ("the XOR ledger", "T-Storm's choice of a slot", "the smoothing of measured loads", "hand-over",
                    "the worker's diff of plans", "the commit point of a batch"):
        assert any(row.startswith(subject) and CODE_FILE.findall(place) for row, place in rows.items()), subject


def test_rooms_of_the_code_are_on_the_page() -> None:
    """Every folder of the package has a row in the table of folders, which names its rooms."""
    rows = re.findall(r"^\| (`[^|]+?/`) \| ([^|]+?) \|", (DOCS / "ARCHITECTURE.md").read_text(), re.M)
    missing = []
    for path in PACKAGE.rglob("*"):
        if path.is_dir() and any(path.glob("*.py")) and path.name != "other_engines":
            folder, *room = path.relative_to(PACKAGE).parts
            texts = [text for names, text in rows if f"`{folder}/`" in names]
            if not texts or (room and f"`{room[0]}/`" not in texts[0]):
                missing.append("/".join((folder, *room)))
    assert not missing, f"docs/ARCHITECTURE.md does not name {missing}"


def test_the_lines_of_the_demo_are_those_of_its_picture() -> None:
    (lines,) = re.findall(r"```\n(\S+ words went in.*?)```", (ROOT / "README.md").read_text(), re.S)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (DOCS / "demo.svg").read_text())
    picture = " ".join("".join(html.unescape(text) for text in texts).split())
    assert " ".join(lines.split()) in picture


def test_the_flowchart_of_the_page_is_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from examples.first import WordCount

    (chart,) = re.findall(r"```mermaid\n(.*?)```", (DOCS / "OPERATIONS.md").read_text(), re.S)
    assert chart == mermaid(graph_of(WordCount)) + "\n"


def headings(page: Path) -> list[str]:
    """The anchors of a page, as links spell them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in titles]


def test_the_settings_page_is_current() -> None:
    assert (DOCS / "settings.md").read_text() == settings_page(), \
        "run: python -m millrace.cli.settings_table > docs/settings.md"


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=lambda page: page.name)
def test_commands_of_the_pages_are_understood(page: Path) -> None:
    """Verbs, arguments and options exist; nothing is run."""
    for line in COMMAND.findall(page.read_text().replace("\\\n", " ")):
        for command in line.split("; ./millrace "):
            assert_understood(command)


def assert_understood(command: str) -> None:
    words, verb = shlex.split(command), get_command(app)
    while hasattr(verb, "commands") and (words or not verb.invoke_without_command):
        assert words and words[0] in verb.commands, f"there is no `millrace {command}`"
        verb = verb.commands[words.pop(0)]
    verb.make_context(verb.name, words)  # exits with an error that names the option or argument


def test_the_command_itself_answers() -> None:
    completed = subprocess.run([sys.executable, "-m", "millrace.cli.main", "run", "--help"], capture_output=True, check=False)
    assert completed.returncode == 0


def test_public_names_are_sorted_and_there() -> None:
    assert millrace.__all__ == sorted(millrace.__all__)
    for name in millrace.__all__:
        assert getattr(millrace, name) is not None

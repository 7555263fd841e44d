"""Imports point one way: deciders do not import actors, and only one folder imports Spark."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "millrace"

# A folder (or module) imports only itself and those before it.
ORDER = ["redaction", "errors", "checkout", "config", "hotpath", "api", "model", "schedulers", "elastic", "state", "control",
         "simulation", "runtime", "microbatch", "connectors", "workloads", "master", "spark", "cli"]
# The same inside a folder with rooms: a room (or module) imports only itself and those before it.
ROOMS = {
    "control": ["assignment", "backup_placement", "feeding", "in_flight", "ledger", "pauses", "moves", "migrations",
                "migration_metrics", "scaling", "strategies", "topology_status", "waves", "wording", "workers", "batches",
                "events", "plan_diff", "plan_parts", "scheduling", "submission", "topology_state", "placement_control",
                "batch_control", "wave_control", "moving", "worker_reports", "master_state"],
    "runtime": ["clock", "durable", "meters", "node", "parent", "wire", "leftovers", "flow", "plans", "fragments",
                "checkpoints", "taps", "feeds", "tasks", "worker"],
    "master": ["state_home", "state_view", "failures", "batch_log", "event_log", "load", "ended", "plans", "checkpoints",
               "scheduling", "requests", "workers", "thread", "batches", "feeding", "service"],
    "spark": ["sources", "session", "cluster", "dataframes", "batches", "running_topology", "engine", "microbatch"],
}
WITH_ROOMS = {"millrace", *(f"millrace.{folder}" for folder in ROOMS)}
MOST_MODULES = 24  # in one folder, beside its docstring in __init__.py; more want rooms
EXEMPT = {"bench", "testing"}  # they look at the whole from outside; nothing but the CLI's verbs leans on them
PURE = {"redaction", "errors", "config", "hotpath", "api", "model", "schedulers", "elastic", "state", "control", "simulation"}
IMPURE_MODULES = {"asyncio", "multiprocessing", "pyspark", "socket", "subprocess", "threading", "time", "zmq"}


class Import(NamedTuple):
    layer: str
    file: str
    line: int
    module: str  # what is imported, with dots
    for_types: bool  # only under `if TYPE_CHECKING:`


def imports_of(path: Path, root: Path = SOURCE) -> Iterator[Import]:
    relative = path.relative_to(root)
    layer = relative.parts[0].removesuffix(".py")
    package = ["millrace", *relative.parent.parts]
    tree = ast.parse(path.read_text(), str(path))
    guarded = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    for_types = {id(inner) for node in guarded for statement in node.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            module = f"{base}{node.module or ''}".rstrip(".")
            # `from millrace import api` imports a folder and not the package alone, and so it is with a folder's rooms
            names = [f"{module}.{alias.name}" for alias in node.names] if module in WITH_ROOMS else [module]
        else:
            continue
        for name in names:
            yield Import(layer, str(relative), node.lineno, name, id(node) in for_types)


ALL = [imported for path in sorted(SOURCE.rglob("*.py")) if path.name != "__init__.py" or path.parent != SOURCE
       for imported in imports_of(path)]


def show(wrong: list[Import]) -> str:
    return "\n".join(f"  src/millrace/{imported.file}:{imported.line} imports {imported.module}" for imported in wrong)


def layer_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "millrace" and len(parts) > 1 else None


def test_every_folder_has_its_place() -> None:
    layers = {path.name.removesuffix(".py") for path in SOURCE.iterdir()
              if path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py")))}
    unknown = layers - {*ORDER, *EXEMPT, "__init__", "__main__"}
    assert not unknown, f"{sorted(unknown)} is in no layer: give it a place in ORDER in {Path(__file__).name}"
    gone = {*ORDER, *EXEMPT, *PURE} - layers
    assert not gone, f"{sorted(gone)} does not exist: delete it from ORDER, EXEMPT and PURE in {Path(__file__).name}"


def test_a_folder_imports_only_those_before_it() -> None:
    wrong = [imported for imported in ALL if imported.layer in ORDER and (target := layer_of(imported.module)) is not None
             and (ORDER.index(target) > ORDER.index(imported.layer) if target in ORDER
                  else target in EXEMPT and imported.layer != "cli")]
    assert not wrong, ("these imports point the wrong way:\n" + show(wrong) +
                       f"\nThe order is {', '.join(ORDER)}. Move what is needed to an earlier folder, or pass it in.")


def room_of(path: str) -> str:
    """The room that a file of the package is in; for a file beside the rooms, its own name."""
    return path.split("/")[1].removesuffix(".py")


@pytest.mark.parametrize("folder", ROOMS)
def test_every_room_has_its_place(folder: str) -> None:
    there = {path.name.removesuffix(".py") for path in (SOURCE / folder).iterdir()
             if path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py")))} - {"__init__"}
    assert there == set(ROOMS[folder]), f"ROOMS in {Path(__file__).name} must list what is in src/millrace/{folder}"


def against_the_order_of_rooms(imports: Iterable[Import]) -> list[Import]:
    return [imported for imported in imports
            if (order := ROOMS.get(imported.layer)) is not None and not imported.file.endswith("__init__.py")
            and len(parts := imported.module.split(".")) > 2 and parts[:2] == ["millrace", imported.layer]
            and parts[2] in order and order.index(parts[2]) > order.index(room_of(imported.file))]


@pytest.mark.parametrize("folder", ROOMS)
def test_a_room_imports_only_those_before_it(folder: str) -> None:
    wrong = [imported for imported in against_the_order_of_rooms(ALL) if imported.layer == folder]
    assert not wrong, (f"these imports point the wrong way:\n{show(wrong)}\nThe order of rooms is {', '.join(ROOMS[folder])}. "
                       "For an annotation, put a Protocol into the earlier room, as runtime/tasks/host.py does.")


def test_an_import_for_types_counts_as_one_against_the_order_of_rooms(tmp_path: Path) -> None:
    path = tmp_path / "runtime" / "flow" / "sample.py"
    path.parent.mkdir(parents=True)
    path.write_text("if TYPE_CHECKING:\n    from millrace.runtime.tasks.task import Task\n")
    [wrong] = against_the_order_of_rooms(imports_of(path, tmp_path))
    assert wrong.for_types and (wrong.file, wrong.module) == ("runtime/flow/sample.py", "millrace.runtime.tasks.task")


def test_no_folder_is_too_full() -> None:
    """A folder of tests may have a few helpers of its own; more of them belong in tests/support."""
    tests, most_helpers = Path(__file__).parents[1], 2
    full = []
    for folder in sorted({path.parent for root in (SOURCE, tests) for path in root.rglob("*.py")}):
        names = {path.name for path in folder.glob("*.py")} - {"conftest.py", "__init__.py"}
        of_tests = {name for name in names if name.startswith("test_")}
        others = len(names - of_tests)
        if len(of_tests) > MOST_MODULES or others > (most_helpers if of_tests else MOST_MODULES):
            full.append(f"{folder}: {len(of_tests)} files of tests, {others} others")
    assert not full, "give these folders rooms, and move helpers of tests to tests/support:\n" + "\n".join(full)


def test_api_keyed_knows_no_component() -> None:
    """Keyed state is plain mappings; what attaches them to components is above it."""
    wrong = [imported for imported in ALL if imported.file.startswith("api/keyed/") and not imported.for_types
             and imported.module.startswith("millrace.api.") and not imported.module.startswith("millrace.api.keyed.")]
    assert not wrong, show(wrong)


def test_deciders_touch_neither_clock_nor_network_nor_process() -> None:
    wrong = [imported for imported in ALL if imported.layer in PURE and imported.module.split(".")[0] in IMPURE_MODULES]
    assert not wrong, ("these folders only decide, so that they can be tested by comparing values:\n" + show(wrong) +
                       "\nLet runtime, spark or master do it, and hand in their results as an argument or an event.")


def test_only_spark_imports_pyspark() -> None:
    wrong = [imported for imported in ALL
             if imported.layer not in {"spark", *EXEMPT} and imported.module.split(".")[0] == "pyspark"]
    assert not wrong, "only src/millrace/spark may import pyspark:\n" + show(wrong) + "\nMove the code there."


def test_the_api_needs_pyarrow_for_types_only() -> None:
    wrong = [imported for imported in ALL if imported.layer == "api" and imported.module.split(".")[0] == "pyarrow"
             and not imported.for_types]
    assert not wrong, "put these under `if TYPE_CHECKING:`, the API must import without pyarrow:\n" + show(wrong)


@pytest.mark.parametrize(("code", "expected"), [
    ("import time, os.path", ["time", "os.path"]),
    ("from millrace.spark.cluster.launcher import X", ["millrace.spark.cluster.launcher"]),
    ("from millrace import spark, api", ["millrace.spark", "millrace.api"]),
    ("from ..spark import launcher", ["millrace.spark.launcher"]),
    ("from .plan import Plan", ["millrace.model.plan"]),
    ("from . import plan", ["millrace.model"]),
    ("from millrace.runtime import worker, node", ["millrace.runtime.worker", "millrace.runtime.node"]),
    ("from ..master import service", ["millrace.master.service"]),
    ("from .. import spark", ["millrace.spark"]),
    ("def f():\n    import zmq", ["zmq"]),
])
def test_the_walk_finds_imports_of_every_form(code: str, expected: list[str], tmp_path: Path) -> None:
    path = tmp_path / "model" / "sample.py"
    path.parent.mkdir()
    path.write_text(code)
    assert [imported.module for imported in imports_of(path, tmp_path)] == expected


def test_the_walk_saw_the_package() -> None:
    assert {"api", "model", "schedulers"} <= {imported.layer for imported in ALL}, f"no sources found in {SOURCE}"

"""The steps of the hot path: the compiled ones do what those in Python do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.checkout import project_root
from millrace.model.graph import StreamDef, TaskId
from millrace.runtime.flow.routing import KeyMemory
from millrace.runtime.hotpath import steps as chosen
from millrace.runtime.hotpath.plain import HANDLE
from millrace.runtime.tasks.output import Output

ROWS = st.lists(st.tuples(st.integers(0, 9) | st.text(max_size=2) | st.none(), st.floats(allow_nan=False)))


@given(rows=ROWS, positions=st.sampled_from([(0,), (1,), (0, 1), (1, 0)]), count=st.integers(1, 5))
def test_rows_are_put_where_the_memory_says(steps: ModuleType, rows: list[tuple[Any, ...]], positions: tuple[int, ...],
                                            count: int) -> None:
    found: list[Any] = []

    def find(key: Any) -> int:
        found.append(key)
        return hash(key) % count

    keys = [row[positions[0]] if len(positions) == 1 else tuple(row[place] for place in positions) for row in rows]
    parts = steps.buckets(rows, KeyMemory(find), positions, count)
    assert parts == [[row for row, key in zip(rows, keys, strict=True) if hash(key) % count == part] for part in range(count)]
    assert len(found) == len(set(found)), "a key is asked for once"


@pytest.mark.parametrize("positions", [(0,), (0, 1)])
def test_a_key_that_cannot_be_hashed_is_a_type_error(steps: ModuleType, positions: tuple[int, ...]) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        steps.buckets([([1], 2)], KeyMemory(lambda key: 0), positions, 1)


def test_an_error_of_the_memory_passes_through(steps: ModuleType) -> None:
    def find(key: Any) -> int:
        raise KeyError("no owner")

    with pytest.raises(KeyError, match="no owner"):
        steps.buckets([(1,)], KeyMemory(find), (0,), 1)


def test_ids_of_splits_differ(steps: ModuleType) -> None:
    output = Output(TaskId("lines", 0), 0, StreamDef("default", ("line",)))
    for split in range(3):
        emit = steps.fast_emit(output, None, HANDLE, track=True, splits=3, split=split)
        emit(("a",), 0, None, None, None, False)
        emit(("b",), 5, None, None, None, False)
    assert output.ids == [0, 15, 1, 16, 2, 17]


def test_values_of_derived_types_are_left_to_the_slow_path(steps: ModuleType) -> None:
    class Text(str):
        pass

    slow: list[Any] = []
    output = Output(TaskId("lines", 0), 0, StreamDef("default", ("line",)))
    emit = steps.fast_emit(output, lambda *call: slow.append(call[0]), HANDLE, track=False)
    emit((Text("a"),), 0, None, None, None, False)
    assert slow == [("a",)]
    assert output.rows == []


@pytest.mark.parametrize("variable", ["", "1"])
def test_a_variable_chooses_python(variable: str) -> None:
    asked = "from millrace.runtime.hotpath.steps import COMPILED; print(COMPILED)"
    done = subprocess.run([sys.executable, "-c", asked], env={**os.environ, "MILLRACE_PURE_PYTHON": variable},
                          capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(bool(chosen.COMPILED and not variable))


def test_an_installation_with_a_compiler_has_the_compiled_steps() -> None:
    try:
        installed = distribution("millrace").read_text("direct_url.json") or ""
    except PackageNotFoundError:
        installed = ""
    if f"{project_root().as_uri()}\"" not in installed:
        pytest.skip("these sources are not the installed ones")
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    assert list((project_root() / "src/millrace/runtime/hotpath").glob("compiled.*.so"))

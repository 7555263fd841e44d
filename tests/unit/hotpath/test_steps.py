"""The steps of the hot path: the compiled ones do what those in Python do."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import weakref
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.checkout import project_root
from millrace.hotpath import steps as chosen
from millrace.hotpath.plain import HANDLE
from millrace.model.graph import StreamDef, TaskId
from millrace.runtime.flow.routing import KeyMemory
from millrace.runtime.tasks.output import Output

SCALARS = (st.none() | st.booleans() | st.integers(-2**63, 2**64 - 1) | st.floats(allow_nan=False) | st.binary(max_size=300)
           | st.text(max_size=40) | st.text("ab", max_size=2) | st.text("x", min_size=30, max_size=300))
VALUES = SCALARS | st.lists(st.integers(0, 3), max_size=2) | st.dictionaries(st.text(max_size=2), st.integers(0, 3), max_size=2)
class Pair(NamedTuple):
    first: Any
    second: Any
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


# -- rows emitted together ---------------------------------------------------------------------------------------------

@given(rows=st.lists(st.tuples(VALUES, SCALARS) | st.tuples(SCALARS) | st.lists(SCALARS, max_size=3)))
def test_rows_are_plain_if_all_have_the_width_and_scalars_only(steps: ModuleType, rows: list[Any]) -> None:
    plain = all(len(row) == 2 and not any(isinstance(value, list | dict) for value in row) for row in rows)
    assert steps.plain_rows(rows, 2) == (list(map(tuple, rows)) if plain else None)


def test_a_list_among_the_rows_is_copied(steps: ModuleType) -> None:
    row = ["a", 1]
    rows = [("b", 2), row]
    taken = steps.plain_rows(rows, 2)
    row[0] = "changed"
    assert taken == [("b", 2), ("a", 1)]
    assert rows[1] is row, "the caller's list stays as it is"


@pytest.mark.parametrize("rows", [["ab"], [{"a": 1, "b": 2}], [Pair("a", 1)], [("a", 1), "bc"]])
def test_rows_of_other_types_are_not_plain(steps: ModuleType, rows: list[Any]) -> None:
    assert steps.plain_rows(rows, 2) is None


# -- tuples ------------------------------------------------------------------------------------------------------------

def test_a_tuple_is_what_bolts_expect(steps: ModuleType) -> None:
    tup = steps.Tuple.of("7", "split", "default", 3, Pair("a", 1))
    assert (tup.id, tup.component, tup.stream, tup.task, tup.values) == ("7", "split", "default", 3, ("a", 1))
    assert tuple(tup) == ("7", "split", "default", 3, ("a", 1))
    assert (tup[4], len(tup), tup.values.second) == (("a", 1), 5, 1)
    assert "values=Pair(first='a', second=1)" in repr(tup)
    assert {tup: 1}[tup] == 1
    assert tup != steps.Tuple.of("7", "split", "default", 3, Pair("a", 1)), "tuples are told apart by identity"
    with pytest.raises(AttributeError):
        tup.values = ()
    with pytest.raises(AttributeError):
        tup.other = 1


def test_a_tuple_can_be_copied(steps: ModuleType) -> None:
    twin = copy.deepcopy(steps.Tuple.of("7", "split", "default", 3, ("a", 1)))
    assert (twin.id, twin.values) == ("7", ("a", 1))


def test_the_tuples_of_a_chunk_are_numbered(steps: ModuleType) -> None:
    origin = SimpleNamespace(component="split", stream="default", task=3, tuple_id=lambda index: f"c:{index}")
    rows = [("a",), ("b",)]
    assert [(tup.id, tup.values, tup.origin, tup.index) for tup in steps.tuples_of(rows, origin)] == [
        ("c:0", ("a",), origin, 0), ("c:1", ("b",), origin, 1)]
    assert list(steps.tuples_of([], origin)) == []


def test_tuples_are_freed_with_what_they_hold(steps: ModuleType) -> None:
    class Origin:
        pass

    origin = Origin()
    gone = weakref.ref(origin)
    kept = list(steps.tuples_of([("a",)] * 1000, origin))
    del origin
    assert gone() is not None
    del kept
    assert gone() is None


@given(rows=st.lists(st.tuples(VALUES, VALUES)))
def test_rows_get_names(steps: ModuleType, rows: list[Any]) -> None:
    named = steps.name_rows(rows, Pair)
    assert named == rows
    assert all(type(row) is Pair and row.first is values[0] for row, values in zip(named, rows, strict=True))


def test_a_named_row_has_the_hash_of_its_values(steps: ModuleType) -> None:
    body = msgspec.msgpack.encode([("a", 1)])
    decoded = steps.RowDecoder(Pair, msgspec.msgpack.Decoder(list[Pair])).decode(body)
    assert [hash(row) for row in (*steps.name_rows([("a", 1)], Pair), *decoded)] == [hash(("a", 1))] * 2


@pytest.mark.parametrize("row", [(1,), (1, 2, 3), ()])
def test_a_row_of_another_width_gets_no_names(steps: ModuleType, row: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"length 2|have 2"):
        steps.name_rows([(1, 2), row], Pair)


# -- keyed state -------------------------------------------------------------------------------------------------------

def test_a_quick_dict_is_a_dict(steps: ModuleType) -> None:
    class Counts(steps.QuickDict):  # type: ignore[name-defined,misc]
        __slots__ = ()

        def __missing__(self, key: Any) -> int:
            if key == "none":
                raise KeyError(key)
            return 0

    counts = Counts()
    assert (counts["a"], counts.add("a"), counts.add("a", 5), counts["a"], counts) == (0, 1, 6, 6, {"a": 6})
    with pytest.raises(KeyError, match="none"):
        counts["none"]
    with pytest.raises(TypeError, match="unhashable"):
        counts[[]]


def test_add_calls_what_a_class_overrides(steps: ModuleType) -> None:
    class Doubled(steps.QuickDict):  # type: ignore[name-defined,misc]
        def __getitem__(self, key: Any) -> int:
            return int(self.get(key, 0))

        def __setitem__(self, key: Any, value: int) -> None:
            super().__setitem__(key, 2 * value)

    doubled = Doubled()
    assert (doubled.add("a", 3), doubled) == (3, {"a": 6})


# -- decoding ----------------------------------------------------------------------------------------------------------

def decoder(steps: ModuleType, row_type: Any) -> Any:
    return steps.RowDecoder(row_type, msgspec.msgpack.Decoder(list[row_type]))


@given(rows=st.lists(st.tuples(VALUES, VALUES)), row_type=st.sampled_from([tuple, Pair]),
       view=st.sampled_from([bytes, memoryview]))
def test_rows_are_decoded_as_msgpack_has_them(steps: ModuleType, rows: list[Any], row_type: Any, view: Any) -> None:
    body = msgspec.msgpack.encode(rows)
    for _ in range(2):  # the second time with what it remembers
        decoded = decoder(steps, row_type).decode(view(body))
        assert decoded == rows
        assert all(type(row) is row_type for row in decoded)
        assert [[type(value) for value in row] for row in decoded] == [[type(value) for value in row] for row in rows]


@given(rows=st.lists(st.tuples(SCALARS, SCALARS), min_size=1), data=st.data())
def test_a_malformed_body_is_an_error_or_other_rows_and_never_a_crash(steps: ModuleType, rows: list[Any], data: Any) -> None:
    body = bytearray(msgspec.msgpack.encode(rows))
    if data.draw(st.booleans()):
        del body[data.draw(st.integers(0, len(body) - 1)):]
    else:
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    expected = outcome(msgspec.msgpack.Decoder(list[Pair]), bytes(body))
    assert outcome(decoder(steps, Pair), bytes(body)) == expected


def outcome(decode: Any, body: bytes) -> str:
    try:
        return repr(decode.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("body", [
    b"", b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\x91\xdd\xff\xff\xff\xff", b"\x91\x92\xdb\xff\xff\xff\xff",
    b"\x91\x92\xa1\xff\x01", b"\x91\x92\xc6\xff\xff\xff\xffab", b"\x91\x92\x01\x02\x03", b"\x81\x01\x02",
    b"\x91\x93\x01\x02\x03", b"\x91\x92\xa3ab"])
def test_sizes_that_a_body_does_not_have_are_errors(steps: ModuleType, body: bytes) -> None:
    assert "Error" in outcome(decoder(steps, Pair), body)


def test_many_different_strings_and_decoders_leave_nothing_behind(steps: ModuleType) -> None:
    words = [f"word-{number}" for number in range(20_000)]
    body = msgspec.msgpack.encode([(word, 1) for word in words])
    for _ in range(3):
        each = decoder(steps, Pair)
        for _ in range(2):
            assert [row.first for row in each.decode(body)] == words


@pytest.mark.parametrize("variable", ["", "1"])
def test_a_variable_chooses_python(variable: str) -> None:
    asked = "from millrace.hotpath.steps import COMPILED; print(COMPILED)"
    done = subprocess.run([sys.executable, "-c", asked], env={**os.environ, "MILLRACE_PURE_PYTHON": variable},
                          capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(bool(chosen.COMPILED and not variable))


def test_the_compiled_steps_are_found_beside_a_zip_file(tmp_path: Path) -> None:
    if chosen.compiled_file() is None:
        pytest.skip("the compiled steps were not built")
    package = project_root() / "src"
    archive = shutil.make_archive(str(tmp_path / "millrace"), "zip", package, "millrace")
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    asked = ("from millrace.hotpath import steps; from millrace.api.tuple import Tuple; "
             f"print(steps.__file__.startswith({archive!r}), steps.compiled_file(), Tuple.__module__)")
    for copied in (False, True):
        if copied:
            shutil.copy(chosen.compiled_file() or "", shipped)
        path = [archive, str(shipped), *(entry for entry in sys.path if entry and Path(entry) != package)]
        done = subprocess.run([sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {asked}"], capture_output=True,
                              text=True, check=True)
        assert done.stdout.split()[0] == "True"
        assert done.stdout.split()[1].startswith(str(shipped)) is copied


def test_an_installation_with_a_compiler_has_the_compiled_steps() -> None:
    try:
        installed = distribution("millrace").read_text("direct_url.json") or ""
    except PackageNotFoundError:
        installed = ""
    if f"{project_root().as_uri()}\"" not in installed:
        pytest.skip("these sources are not the installed ones")
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    assert list((project_root() / "src/millrace/hotpath").glob("compiled.*.so"))

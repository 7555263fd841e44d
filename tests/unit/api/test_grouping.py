"""Groupings as values, and the hash behind fields groupings."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from millrace.api.grouping import Grouping, stable_hash

CONSTANTS = ("SHUFFLE", "LOCAL_OR_SHUFFLE", "ALL", "GLOBAL", "NONE", "DIRECT")
BERLIN = ZoneInfo("Europe/Berlin")


def by_length(values: Sequence[Any], tasks: int) -> list[int]:
    return [len(values[0]) % tasks]


def test_the_constants_differ_and_show_their_kind() -> None:
    groupings = [getattr(Grouping, name) for name in CONSTANTS]
    assert len(set(groupings)) == len(CONSTANTS)
    assert list(map(repr, groupings)) == ["shuffle", "local-or-shuffle", "all", "global", "none", "direct"]
    assert repr(Grouping.fields("a", "b")) == "fields(a, b)"


def test_fields_takes_names_or_one_sequence_of_names() -> None:
    assert Grouping.fields("a", "b") == Grouping.fields(["a", "b"]) == Grouping.fields(("a", "b"))
    assert Grouping.fields("a", "b").names == ("a", "b")


@pytest.mark.parametrize(("names", "error", "message"), [
    ((), ValueError, "at least one field"),
    (([],), ValueError, "at least one field"),
    ((3,), TypeError, r"not 3 \(int\)"),
    ((["a", None],), TypeError, r"not None \(NoneType\)"),
])
def test_fields_refuses(names: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Grouping.fields(*names)


def test_a_combine_has_an_aggregate_for_each_field_or_is_the_merge_of_the_bolt() -> None:
    combined = Grouping.fields("a", combine={"n": "sum", "at": "last"})
    assert combined.names == ("a",) and combined.combine == (("n", "sum"), ("at", "last"))
    assert repr(combined) == "fields(a; sum n, last at)"
    assert repr(Grouping.fields("a", "b", combine="merge")) == "fields(a, b; merge)"
    assert Grouping.fields("a", combine=None) == Grouping.fields("a") != combined


@pytest.mark.parametrize(("combine", "error", "message"), [
    ({}, ValueError, "combine is empty"),
    ({"n": "mean"}, ValueError, r"'mean' for the field 'n': the aggregates are sum, min, max, first, last, all, any"),
    ({"n": sum}, ValueError, "the aggregates are sum"),
    ({"n": ["sum"]}, ValueError, "the aggregates are sum"),
    ({"a": "sum"}, ValueError, "by which the stream is grouped"),
    ({3: "sum"}, TypeError, r"key 3 \(int\)"),
    ("sum", TypeError, r'or "merge", not \'sum\' \(str\)'),
    (["n"], TypeError, "a dict of field to aggregate"),
    (True, TypeError, "not True"),
])
def test_combine_refuses(combine: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Grouping.fields("a", combine=combine)


def test_custom_names_a_function_that_every_worker_can_import() -> None:
    assert Grouping.custom(by_length).code == f"{__name__}:by_length"
    assert repr(Grouping.custom(by_length)) == f"custom({__name__}:by_length)"
    for refused in (lambda values, tasks: [0], 3, "by_length"):
        with pytest.raises(TypeError, match="top of a module"):
            Grouping.custom(refused)  # type: ignore[arg-type]


@pytest.mark.parametrize("grouping", [getattr(Grouping, name) for name in CONSTANTS]
                         + [Grouping.fields("a", "b"), Grouping.custom(by_length), Grouping.fields("a", combine="merge"),
                            Grouping.fields("a", combine={"n": "sum", "at": "last"})])
def test_a_grouping_travels(grouping: Grouping) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(grouping), type=Grouping) == grouping


@pytest.mark.parametrize(("key", "other"), [
    (1, 1.0), (1, True), (0, False), (0.0, -0.0), ((1, "a"), [1.0, "a"]), (2**70, float(2**70)),
    (float(2**63), 2**63), (-(2**63), -float(2**63)), (((1,),), [[True]]),
    (Decimal("1.0"), Decimal("1.00")), (Decimal("1.00"), 1), (Decimal("-0.0"), 0), (Decimal("1E+2"), 100),
    (Decimal("1.50"), 1.5),
    (Decimal("1.10"), Decimal("1.1")), (Decimal("0.00000010"), Decimal("1E-7")), (Decimal(2**70), 2**70),
    (Decimal("12345678901234567890123456789012345678.10"), Decimal("12345678901234567890123456789012345678.1")),
    ((Decimal("2.0"), "a"), [2, "a"]),
    (datetime(2026, 1, 1, 3, tzinfo=timezone(timedelta(hours=3))), datetime(2026, 1, 1, tzinfo=UTC)),
    (datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN), datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN, fold=1)),
])
def test_keys_that_python_calls_equal_have_one_hash(key: Any, other: Any) -> None:
    assert stable_hash(key) == stable_hash(other)


def test_different_keys_are_told_apart() -> None:
    keys = ["", "a", b"a", 0, 1, -1, 1.5, None, ("a",), ("a", "b"), ("ab",), 2**64, Decimal("1.1"), Decimal("NaN"),
            Decimal("12345678901234567890123456789012345678.1"), Decimal("12345678901234567890123456789012345678.2")]
    assert len({stable_hash(key) for key in keys}) == len(keys)


def test_the_hash_is_the_same_in_every_process() -> None:
    program = "from millrace.api.grouping import stable_hash; print(stable_hash(('straße', 7, 1.5, None)))"
    hashes = {subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                             env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed}).stdout
              for seed in ("1", "2")}
    assert hashes == {f"{stable_hash(('straße', 7, 1.5, None))}\n"}
    # Snapshots hold keys by key group, so the value must not change from one release to the next either.
    assert stable_hash("word") == zlib.crc32(b"\xa4word") == 2704303174
    assert [stable_hash(key) for key in (1, 1.5, ("a", 2), datetime(2026, 1, 1, tzinfo=UTC))] == [
        2768625435, 3622288468, 2086664878, 2795493438]


def test_equal_numbers_of_any_size_are_spread_over_all_tasks() -> None:
    assert {stable_hash(key) % 8 for key in range(200)} == set(range(8))

"""Figures for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.figures import count, duration, megabytes, milliseconds, number_of, p50_and_p99, share, size


@pytest.mark.parametrize(("value", "shown"), [
    (None, "-"), (0, "0"), (0.4, "0"), (7, "7"), (1234, "1,234"), (9999.4, "9,999"), (9999.9, "10 k"), (12_345, "12.3 k"),
    (999_499, "999 k"), (999_999, "1 M"), (4_560_000, "4.56 M"), (7.2e9, "7.2 G"), (1e30, "1,000,000,000,000 E"),
])
def test_counts(value: float | None, shown: str) -> None:
    assert count(value) == shown


@pytest.mark.parametrize(("value", "shown"), [
    (0, "0 B"), (759, "759 B"), (999.6, "1 kB"), (55_741, "55.7 kB"), (4_200_000, "4.2 MB"), (24_103e6, "24.1 GB"),
])
def test_sizes(value: float, shown: str) -> None:
    assert size(value) == shown
    assert megabytes(value / 1e6) == shown


@pytest.mark.parametrize(("value", "shown"), [
    (0.0, "0"), (0.0134, "0.013"), (0.25, "0.25"), (1.0, "1"), (2.095, "2.1"), (9.96, "10"), (45.8, "46"), (1234.5, "1,234"),
])
def test_milliseconds(value: float, shown: str) -> None:
    assert milliseconds(value) == shown


@pytest.mark.parametrize(("value", "shown"), [
    (0.0, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (3600, "1 h 0 min"), (90_061, "1 d 1 h"),
])
def test_durations(value: float, shown: str) -> None:
    assert duration(value) == shown


def test_the_others() -> None:
    assert (p50_and_p99(None), p50_and_p99({"p50": 0.013, "p99": 12.4})) == ("-", "0.013/12")
    assert (share(None), share(0.042), share(1.5)) == ("-", "4%", "150%")
    assert [number_of(n, "task") for n in (0, 1, 2, 20_000)] == ["0 tasks", "1 task", "2 tasks", "20 k tasks"]
    assert number_of(2, "topology", "topologies") == "2 topologies"


@given(st.floats(0, 1e18))
def test_a_count_is_short_and_nearly_right(value: float) -> None:
    shown = count(value)
    number, _, letter = shown.partition(" ")
    assert len(shown) <= 6
    assert float(number.replace(",", "")) * 1000 ** " kMGTPE".index(letter or " ") == pytest.approx(value, rel=0.006, abs=0.5)

"""Windows of the elastic loop: backlogs, and load windows that are joined to the loop's own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.elastic.elastic_window import ElasticWindow, JoinedWindows
from millrace.elastic.network import Network, Station


def window(seconds: float, offered: float = 100.0, tasks: int = 2, **more: Any) -> ElasticWindow:
    network = Network((Station("a", 1), Station("b", tasks, 100.0)), {("a", "b"): 1.0}, {"a": offered})
    return ElasticWindow(1e9, seconds, network, **more)


@pytest.mark.parametrize(("offered", "carried", "backlog", "waiting"), [
    (100, 100, 50, 0), (100, 100, 51, 51), (0, 100, 50, 0), (0, 100, 60, 60), (0, 0, 0, 0), (0, 0, 1, 1)])
def test_half_a_second_of_what_is_offered_or_carried_is_no_backlog(offered: float, carried: float, backlog: int,
                                                                   waiting: int) -> None:
    assert window(5.0, offered, carried={"a": carried}, backlog={"a": backlog}).waiting == waiting


def test_a_window_as_long_as_the_period_stays_as_it_is() -> None:
    joined = JoinedWindows(5.0)
    for seconds in (5.0, 4.99, 7.0):
        made = window(seconds)
        assert joined.add(made) is made


def test_shorter_windows_are_joined() -> None:
    joined = JoinedWindows(4.0)
    assert joined.add(window(1.0, 100, measured_ms=10.0, carried={"a": 80.0}, backlog={"a": 20}, settling=True)) is None
    assert joined.add(window(1.0, 300, busy="a migration")) is None
    found = joined.add(window(2.0, 600, measured_ms=40.0, carried={"a": 500.0}, backlog={"a": 300}))
    assert found is not None and (found.seconds, found.network.offered) == (4.0, {"a": 400.0})
    assert (found.measured_ms, found.carried, found.backlog) == (30.0, {"a": 270.0}, {"a": 300})
    assert (found.settling, found.busy) == (True, "a migration")
    assert joined.add(window(1.0)) is None, "the next one begins"


def test_windows_with_other_numbers_of_tasks_are_not_joined() -> None:
    joined = JoinedWindows(4.0)
    joined.add(window(3.0, 1000))
    assert joined.add(window(3.0, 100, tasks=3)) is None
    found = joined.add(window(1.0, 100, tasks=3))
    assert found is not None and found.network.external_rate == 100


@given(st.floats(0.1, 60), st.floats(0.05, 1.0))
def test_joined_windows_have_at_least_the_period(period: float, share: float) -> None:
    joined, seconds = JoinedWindows(period), period * share
    found = next(made for made in (joined.add(window(seconds)) for _ in range(100)) if made is not None)
    assert 0.9 * period <= found.seconds * (1 + 1e-9) and found.seconds < 0.9 * period + seconds * (1 + 1e-9)

"""DS2: the cases of its publication, and bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.elastic.allocation import Allocation, Infeasible, Limits
from millrace.elastic.ds2 import parallelism
from millrace.elastic.models import Ds2Model
from millrace.elastic.network import Network, Station


def operators(offered: float, first_in: float, first_out: float, second_in: float, sources: int = 1) -> Network:
    """Sources of this rate each, and two operators with their true rates of processing and output."""
    names = [f"source{number}" for number in range(sources)]
    return Network((*(Station(name, 1) for name in names), Station("first", 1, first_in), Station("second", 1, second_in)),
                   {**{(name, "first"): 1.0 for name in names}, ("first", "second"): first_out / first_in},
                   dict.fromkeys(names, offered))


@pytest.mark.parametrize(("offered", "first_in", "first_out", "second_in", "one_source", "two_sources"), [
    (100, 50, 400, 100, (2, 8), (4, 16)),
    (200, 40, 700, 99, (5, 36), (10, 71)),
    (200, 10, 700, 201, (20, 70), (40, 140)),
])
def test_published_cases(offered: float, first_in: float, first_out: float, second_in: float, one_source: tuple[int, int],
                         two_sources: tuple[int, int]) -> None:
    for sources, expected in ((1, one_source), (2, two_sources)):
        par = parallelism(operators(offered, first_in, first_out, second_in, sources))
        assert (par["first"], par["second"]) == expected


def test_a_quotient_that_is_whole_but_for_rounding_is_not_rounded_up() -> None:
    network = Network((Station("a", 1), Station("b", 1, 0.1)), {("a", "b"): 1.0}, {"a": 0.1 * 3})  # 0.30000000000000004
    assert parallelism(network)["b"] == 3


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e3), st.floats(0.05, 1.0))
def test_no_task_is_busier_than_asked_and_one_fewer_would_be(offered: float, rate: float, busy: float) -> None:
    network = Network((Station("a", 1), Station("b", 1, rate)), {("a", "b"): 1.0}, {"a": offered})
    tasks = parallelism(network, busy)["b"]
    assert offered / (tasks * rate) <= busy * (1 + 1e-8)
    assert tasks == 1 or offered / ((tasks - 1) * rate) > busy * (1 - 1e-8)


def test_the_model_keeps_bounds_and_predicts_the_latency() -> None:
    network = operators(100, 50, 400, 100)
    found = Ds2Model(utilization=1.0).allocate(network, Limits())
    assert isinstance(found, Allocation) and found.par == {"source0": 1, "first": 2, "second": 8}
    assert found.predicted_ms is None, "always busy, a task would never empty its queue"
    roomy = Ds2Model(utilization=0.5).allocate(network, Limits())
    assert isinstance(roomy, Allocation) and roomy.par == {"source0": 1, "first": 4, "second": 16}
    assert roomy.predicted_ms == pytest.approx(network.latency(roomy.par) * 1000)
    refused = Ds2Model(utilization=0.5).allocate(network, Limits(c_max=20))
    assert isinstance(refused, Infeasible) and refused.nearest == {"c_max": 21}


def test_a_component_that_cannot_have_enough_tasks_is_named() -> None:
    network = Network((Station("a", 1), Station("b", 2, 10.0, most=4)), {("a", "b"): 1.0}, {"a": 39.0})
    found = Ds2Model().allocate(network, Limits())
    assert isinstance(found, Allocation) and found.par["b"] == 4, "busier than wished, but it keeps up"
    assert Ds2Model().missed(network, {"a": 1, "b": 4}, Limits()) == ""
    assert Ds2Model().missed(network, {"a": 1, "b": 3}, Limits()) == "b cannot keep up with 39.0 tuples/s"
    assert Ds2Model().missed(network.scaled(0.9), {"a": 1, "b": 3}, Limits()) == "b cannot keep up with 35.1 tuples/s"
    assert Ds2Model().missed(network.scaled(0.7), {"a": 1, "b": 3}, Limits()) == (
        "b would be busy for more than 80% of the time")
    assert Ds2Model().allocate(network.scaled(2), Limits()) == Infeasible(
        "'b' needs 10 tasks for 78.0 tuples/s and can have at most 4, so that it carries less than "
        "40.0, and the topology less than 40.0")

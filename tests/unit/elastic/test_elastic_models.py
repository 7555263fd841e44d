"""Elastic models by name: parameters and limits are checked, and what is wrong is said."""

from __future__ import annotations

import math
from typing import Any

import pytest

from millrace.elastic.allocation import Allocation, Limits, allocate
from millrace.elastic.models import MODELS, PastRates, checked_limits, make_model
from millrace.elastic.network import Network, Station
from millrace.errors import BadParameter, UnknownName

NETWORK = Network((Station("a", 1), Station("b", 1, 100.0)), {("a", "b"): 1.0}, {"a": 250.0})


def test_an_unknown_model_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UnknownName, match="no elastic model named 'magic'; there are erstream, ds2, predictive"):
        make_model("magic", {}, Limits(c_max=3))


@pytest.mark.parametrize(("name", "parameters", "limits", "words"), [
    ("erstream", {}, Limits(), "needs a goal: c_max=N"),
    ("predictive", {"horizon": 5}, Limits(), "needs a goal: c_max=N"),
    ("erstream", {"gamma": 1}, Limits(c_max=3), "'erstream' has no parameter 'gamma'; it has none"),
    ("ds2", {}, Limits(t_max_ms=20.0), "'ds2' has no limit t_max_ms; it has c_max"),
    ("ds2", {"utilization": 1.5}, Limits(), "utilization = 1.5 is out of range: it must be from 0.05 to 1"),
    ("predictive", {"horizon": 0}, Limits(c_max=3), "horizon = 0 is out of range"),
])
def test_wrong_parameters_are_refused(name: str, parameters: dict[str, Any], limits: Limits, words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        make_model(name, parameters, limits)


@pytest.mark.parametrize("values", [{"c_max": 0}, {"c_max": 2.5}, {"c_max": True}, {"c_max": "many"}, {"c_max": math.nan},
                                    {"c_max": math.inf}, {"t_max_ms": 0}, {"t_max_ms": -1}, {"t_max_ms": math.inf},
                                    {"t_max_ms": "soon"}, {"t_max_ms": math.nan}])
def test_limits_that_are_no_sensible_numbers_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(BadParameter, match="it must be a"):
        checked_limits(values)


def test_limits() -> None:
    assert checked_limits({"c_max": 12.0, "t_max_ms": 20}) == Limits(12, 20.0)
    assert checked_limits({}) == Limits()


@pytest.mark.parametrize("name", MODELS)
def test_every_model_grows_what_cannot_keep_up(name: str) -> None:
    limits = Limits(c_max=10)
    model = make_model(name, {}, limits)
    found = model.allocate(model.load(NETWORK, PastRates()), limits)
    assert isinstance(found, Allocation) and found.par["b"] >= 3
    assert model.missed(NETWORK, NETWORK.present, limits) == "b cannot keep up with 250.0 tuples/s"
    assert model.missed(NETWORK, found.par, limits) == ""


def test_erstream_is_algorithm_1() -> None:
    limits = Limits(t_max_ms=15.0)
    model = make_model("erstream", {}, limits)
    assert model.load(NETWORK, PastRates()) is NETWORK
    assert model.allocate(NETWORK, limits) == allocate(NETWORK, limits)

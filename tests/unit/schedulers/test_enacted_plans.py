"""Plans that the schedule generator enacts: one that it refuses for ever is as bad as none, however good it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from millrace.model.situation import Situation
from millrace.schedulers.instances import large_situation
from millrace.schedulers.registry import make_scheduler
from millrace.simulation.compare import outcome


def share_left(situation: Situation, name: str, parameters: dict[str, Any]) -> float:
    """The traffic between nodes when the scheduler has no more plans, or one is refused, over that at the start."""
    result = outcome(make_scheduler(name, parameters), situation, lambda: 0.0)
    assert result.enacted is not None and not result.enacted_overloaded, result.reason
    return result.enacted.inter_node / result.before.inter_node


@pytest.mark.parametrize(("name", "parameters", "most"), [
    ("tstorm", {}, 0.9), ("tstorm", {"gamma": 3.0}, 0.9), ("tstorm", {"improve": True}, 0.5), ("online", {}, 0.6),
    ("erstream", {}, 0.6), ("slstream", {}, 0.5), ("multilevel", {}, 0.5), ("otd", {}, 0.99)])
def test_plans_for_nodes_with_several_cores_are_enacted(name: str, parameters: dict[str, Any], most: float) -> None:
    assert share_left(large_situation(200, 24, np.random.default_rng(1)), name, parameters) < most

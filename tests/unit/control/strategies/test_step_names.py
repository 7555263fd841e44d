"""Names of steps in records: the same whether a strategy has made the step or a move."""

from __future__ import annotations

from millrace.control.migrations import CHECKPOINT, HAND_OVER, REPLACE
from millrace.control.strategies.steps import Checkpoint, HandOver, Replace, step_name


def test_a_step_has_one_name() -> None:
    assert [step_name(step) for step in (HandOver({}), Replace({}), Checkpoint())] == [HAND_OVER, REPLACE, CHECKPOINT]

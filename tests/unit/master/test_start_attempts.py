"""Attempts to start a topology on a checkpoint store: what is refused, and what an attempt that came to nothing leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millrace.control.events import Event, Say
from millrace.control.submission import Resume
from millrace.errors import NotTheAuthor, TopologyError
from millrace.master.checkpoints.checkpointing import Checkpointing
from millrace.model.graph import TopologyGraph

LIMIT_SECONDS = 60.0
STATELESS = TopologyGraph("plain", (), {})


class SilentPort:
    """A master that has nothing to do: no topology runs."""

    def later(self, work: Callable[[], Any]) -> None:
        work()

    def tell(self, event: Event) -> None: ...

    def say(self, message: Say) -> None: ...

    def give_way(self, error: NotTheAuthor) -> None:
        raise error


@pytest.mark.parametrize(("resume", "option"), [(True, "--resume"), ("older", "--resume older")])
def test_a_topology_without_state_has_nothing_to_resume(resume: Resume, option: str) -> None:
    calls = Checkpointing("/nowhere", (), SilentPort(), LIMIT_SECONDS)
    with pytest.raises(TopologyError, match=rf"'plain' keeps no state.* nothing to resume\. Start it without {option}$"):
        calls.attempt(STATELESS, resume)
    calls.close()

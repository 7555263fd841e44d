"""Opens keyed state for unit tests of a bolt, without an engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from millrace.api.component import Component
from millrace.api.grouping import stable_hash
from millrace.config import KEY_GROUP_COUNT
from millrace.state.task_state import open_states

C = TypeVar("C", bound=Component)


def with_state(bolt: C, now: Callable[[], float] = time.time) -> C:
    """Opens the states that the bolt declares, empty, as the owner of every key group; returns the bolt.

        bolt = with_state(Count())
        bolt.process(tup)
        assert bolt.counts == {"a": 1}
        assert bolt.emitted[0].values == ("a", 1)

    `now`: wall seconds, for a state with a ttl. `start` does this too, and calls `initialize`.
    """
    open_states(bolt, stable_hash, range(KEY_GROUP_COUNT.default), KEY_GROUP_COUNT.default, type(bolt).__name__, now)
    return bolt

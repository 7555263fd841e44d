"""Notices wait for the spout; those of failures also wait for room, one root at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.api.spout import ReliableSpout, Spout
from millrace.runtime.tasks.spout_notices import ACKED, ACTIVATE, DEACTIVATE, SpoutNotices


class Recording(Spout):
    """Records its calls; refuses the id "bad"."""

    outputs = ["n"]

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def activate(self) -> None:
        self.calls.append(("activate",))

    def deactivate(self) -> None:
        self.calls.append(("deactivate",))

    def ack(self, tup_id: Any) -> None:
        self.calls.append(("ack", tup_id))
        if tup_id == "bad":
            raise ValueError(tup_id)

    def fail(self, tup_id: Any) -> None:
        self.calls.append(("fail", tup_id, self.fail_cause))


class Silent(Spout):
    outputs = ["n"]


class Reliable(ReliableSpout):
    outputs = ["n"]


def notices_for(component: Spout) -> tuple[SpoutNotices, list[BaseException], SimpleNamespace]:
    errors: list[BaseException] = []
    meters = SimpleNamespace(failed=0)
    task: Any = SimpleNamespace(component=component, meters=meters, report_error=lambda error, tup: errors.append(error))
    return SpoutNotices(task), errors, meters


def test_failures_wait_for_room_and_come_one_at_a_time() -> None:
    notices, _, _ = notices_for(Recording())
    notices.waiting.append((ACKED, [1]))
    notices.failures += [("error", [2]), ("lost", [3])]
    assert notices.due(room=False) and notices.take(room=False) == [(ACKED, [1])]
    assert not notices.due(room=False) and notices.take(room=False) == []
    assert notices.due(room=True) and notices.take(room=True) == [("error", [2])]
    assert notices.take(room=True) == [("lost", [3])]
    assert not notices.due(room=True)


def test_every_kind_of_notice_is_a_call() -> None:
    component = Recording()
    notices, errors, _ = notices_for(component)
    notices.deliver([(ACTIVATE, []), (ACKED, [1, 2]), ("timeout", [3]), (DEACTIVATE, [])])
    assert component.calls == [("activate",), ("ack", 1), ("ack", 2), ("fail", 3, "timeout"), ("deactivate",)]
    assert not errors


def test_a_call_that_raises_is_reported_and_the_other_ids_are_still_told() -> None:
    component = Recording()
    notices, errors, meters = notices_for(component)
    notices.deliver([(ACKED, ["bad", 1])])
    assert component.calls == [("ack", "bad"), ("ack", 1)]
    assert [str(error) for error in errors] == ["bad"] and meters.failed == 1


@pytest.mark.parametrize(("component", "acks", "untracked"), [
    (Recording(), True, True), (Silent(), False, False), (Reliable(), True, False)],
    ids=["defines ack", "defines none", "reliable"])
def test_a_spout_gets_the_acks_that_it_uses(component: Spout, acks: bool, untracked: bool) -> None:
    notices, _, _ = notices_for(component)
    notices.start(active=False)
    assert (notices.wants_acks, notices.wants_untracked_acks) == (acks, untracked)
    assert notices.waiting == []


def test_a_spout_that_starts_in_a_running_topology_is_activated() -> None:
    notices, _, _ = notices_for(Recording())
    notices.start(active=True)
    assert notices.take(room=False) == [(ACTIVATE, [])]


class Noted(Reliable):
    """Notes the ids that are acked."""

    def __init__(self) -> None:
        super().__init__()
        self.acked: list[Any] = []

    def ack(self, tup_id: Any) -> None:
        self.acked.append(tup_id)
        super().ack(tup_id)


@pytest.mark.parametrize("kind", [Reliable, Noted])
def test_a_reliable_spout_forgets_what_is_acked(kind: type[Reliable]) -> None:
    component = kind()
    component.unacked_tuples = dict.fromkeys(range(5), ((1,), None, None, False))
    component.failed_tuples[1] = 2
    notices, errors, _ = notices_for(component)
    notices.deliver([(ACKED, [7, 0, 1]), (ACKED, [3])])
    assert list(component.unacked_tuples) == [2, 4] and not component.failed_tuples and not errors
    assert not isinstance(component, Noted) or component.acked == [7, 0, 1, 3]

"""Decisions on the number of workers, by example."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.control.scheduling.capacity import (
    NOBODY_USES_IT,
    OVERLOADED_WINDOWS,
    Add,
    AutoWorkers,
    GiveBack,
    Shortage,
    Stay,
    WorkerCapacity,
    WorkerSeen,
    Workforce,
    shortage_of,
)
from millrace.errors import BadParameter, TopologyError

OVERLOAD = Shortage(1, "worker 0 is busy for 99% of the time")
LONG = 10_000.0  # seconds, more than any pause


def capacity(low: int = 1, high: int = 4, **values: Any) -> WorkerCapacity:
    return WorkerCapacity(AutoWorkers(low, high, **{"idle": 0.0, "cool_down": 0.0, **values}))


def force(*workers: WorkerSeen, after: float | None = 0.0, **values: Any) -> Workforce:
    return Workforce(workers, lambda slot: after, **values)


def busy(*slots: int) -> list[WorkerSeen]:
    return [WorkerSeen(slot, f"e{slot}", tasks=2, load=0.95, heaviest=0.5) for slot in slots]


def overloaded(control: WorkerCapacity, shortage: Shortage = OVERLOAD) -> None:
    for _ in range(OVERLOADED_WINDOWS):
        control.window(shortage)


def test_off_decides_nothing() -> None:
    control = WorkerCapacity(AutoWorkers())
    overloaded(control)
    assert control.decide(0.0, force()) == Stay("off") and control.request is None


def test_too_few_workers_are_made_up_for_at_once() -> None:
    assert capacity(low=3).decide(0.0, force(*busy(0))) == Add(2, "there is 1 worker, and the minimum is 3")


def test_one_overloaded_window_is_not_enough() -> None:
    control = capacity()
    control.window(OVERLOAD)
    assert isinstance(control.decide(0.0, force(*busy(0))), Stay)
    control.window(None)
    control.window(OVERLOAD)
    assert isinstance(control.decide(1.0, force(*busy(0))), Stay)
    control.window(OVERLOAD)
    assert control.decide(2.0, force(*busy(0))) == Add(1, OVERLOAD.reason, for_tasks=True)


def test_an_empty_worker_is_used_before_another_one_is_added() -> None:
    control = capacity(idle=LONG)
    overloaded(control)
    assert isinstance(control.decide(0.0, force(*busy(0), WorkerSeen(1))), Stay)


def test_at_the_most_workers_the_shortage_is_reported() -> None:
    control = capacity(high=2)
    overloaded(control)
    decision = control.decide(0.0, force(*busy(0, 1)))
    assert isinstance(decision, Stay) and decision.short
    assert decision.reason == (f"{OVERLOAD.reason}; no worker is added: there are 2 workers, the maximum. Raise it with "
                               "`millrace workers auto MIN..MAX`")


def test_a_shortage_that_workers_would_not_end_is_reported() -> None:
    control = capacity()
    overloaded(control, Shortage(1, "worker 0 is full", "no scheduler is in use"))
    decision = control.decide(0.0, force(*busy(0)))
    assert decision == Stay("worker 0 is full; no worker is added: no scheduler is in use", short=True)


def test_a_refused_request_is_followed_by_smaller_ones_with_doubled_pauses() -> None:
    control, now, counts, pauses = capacity(high=9, cool_down=20.0), 0.0, [], []
    for _ in range(4):
        overloaded(control, Shortage(8, "overload"))
        asked = now
        while isinstance(decision := control.decide(now, force(*busy(0))), Stay):
            now += 1.0
        counts.append(decision.count)  # type: ignore[union-attr]
        pauses.append(now - asked)
        control.failed(now)
    assert counts == [8, 4, 2, 1] and pauses == [0.0, 20.0, 40.0, 80.0]


def test_workers_without_tasks_go_first_then_those_whose_executor_is_free_then() -> None:
    light = WorkerSeen(0, "a", tasks=1, load=0.0)
    shared, alone = WorkerSeen(1, "a"), WorkerSeen(2, "b")
    order = []
    workers = [light, WorkerSeen(4, "c", tasks=1, load=0.1), shared, alone, WorkerSeen(5, "d"), WorkerSeen(6, "d")]
    control = capacity()
    while not isinstance(decision := control.decide(0.0, force(*workers)), Stay):
        assert isinstance(decision, GiveBack)
        order.append(decision.slot)
        control.given_back(0.0)
        workers = [worker for worker in workers if worker.slot != decision.slot]
    assert order == [2, 6, 5, 1, 0] and decision.reason == "there is 1 worker, the minimum"


def test_tasks_that_do_not_fit_elsewhere_keep_their_worker() -> None:
    light = WorkerSeen(1, "b", tasks=1, load=0.1)
    for after in (None, 0.51):
        assert isinstance(capacity().decide(0.0, force(*busy(0), light, after=after)), Stay)
    assert isinstance(capacity().decide(0.0, force(*busy(0), light, after=0.5)), GiveBack)
    assert isinstance(capacity(share=0.0).decide(0.0, force(*busy(0), light)), Stay)


def test_more_workers_than_allowed_are_given_back_although_they_are_busy() -> None:
    stuck = WorkerSeen(2, "c", tasks=1, load=0.1, stays="lines[0] cannot be moved")
    decision = capacity(high=2, idle=LONG).decide(0.0, force(*busy(0, 1), stuck, after=0.9))
    assert decision == GiveBack(1, "there are 3 workers, and the maximum is 2")
    only = capacity(high=1).decide(0.0, force(stuck, WorkerSeen(3, "c", tasks=1, stays="lines[1] cannot be moved")))
    assert only == Stay("there are 2 workers, and the maximum is 1, but none can be given back; worker 2: lines[0] cannot be "
                        "moved")


def test_a_worker_that_no_scheduler_has_used_is_not_replaced_at_once() -> None:
    """It was added because of an overload, and given back because it had no tasks."""
    control, now = capacity(), 0.0
    overloaded(control)
    assert isinstance(control.decide(now, force(*busy(0))), Add)
    control.added(now, [1])
    assert control.decide(now, force(*busy(0), WorkerSeen(1))) == GiveBack(1, "it has had no tasks for 0 s")
    control.given_back(now)
    overloaded(control)
    assert isinstance(control.decide(now, force(*busy(0))), Stay)
    assert isinstance(control.decide(now + LONG, force(*busy(0))), Add)


def test_a_worker_that_was_used_may_be_replaced() -> None:
    control = capacity()
    overloaded(control)
    control.decide(0.0, force(*busy(0)))
    control.added(0.0, [1])
    control.decide(0.0, force(*busy(0, 1)))
    control.decide(1.0, force(*busy(0), WorkerSeen(1)))
    control.given_back(1.0)
    overloaded(control)
    assert isinstance(control.decide(1.0, force(*busy(0))), Add)


def test_the_shortage_by_load() -> None:
    nodes = {"a": 0.5}
    assert shortage_of([WorkerSeen(0, tasks=2, load=0.89, heaviest=0.5)], nodes, 0.9) is None
    assert shortage_of([WorkerSeen(0, tasks=2, load=1.0, heaviest=0.95)], nodes, 0.9) is None, "one task alone is too heavy"
    assert shortage_of(busy(0), nodes, 0.9) == Shortage(1, "worker 0 is busy for 95% of the time")
    assert shortage_of(busy(0, 1), nodes, 0.9) == Shortage(1, "worker 0 is busy for 95% of the time, so is another")
    assert shortage_of(busy(*range(20)), nodes, 0.9) == Shortage(2, "worker 0 is busy for 95% of the time, so are 19 others")
    assert shortage_of([], {"a": 0.97, "b": 0.1}, 0.9) == Shortage(1, "node a uses 97% of its CPU")


@pytest.mark.parametrize(("moves", "grows"), [(True, False), (False, True), (True, True), (False, False)])
def test_a_shortage_that_nobody_would_make_up_for(moves: bool, grows: bool) -> None:
    """A new worker gets tasks from a scheduler, or from elasticity."""
    found = shortage_of(busy(0), {}, 0.9, moves=moves, grows=grows)
    assert found is not None and found.workers == 1
    assert found.useless == ("" if moves or grows else NOBODY_USES_IT)


def test_a_worker_for_a_scale_that_was_refused_is_not_replaced_at_once_if_it_was_of_no_use() -> None:
    control, refused = capacity(), Shortage(1, "'t' cannot have work=9")
    assert control.decide(0.0, force(*busy(0), unplaced=refused)) == Add(1, refused.reason, for_tasks=True)
    control.added(0.0, [1])
    assert control.decide(1.0, force(*busy(0), WorkerSeen(1))) == GiveBack(1, "it has had no tasks for 0 s")
    control.given_back(1.0)
    assert isinstance(control.decide(1.0, force(*busy(0), unplaced=refused)), Stay)
    assert isinstance(control.decide(LONG, force(*busy(0), unplaced=refused)), Add)


def test_limits_as_users_write_them() -> None:
    some = AutoWorkers(1, 3, idle=7.0)
    assert some.changed("2..6", {"share": 0.4}) == AutoWorkers(2, 6, idle=7.0, share=0.4)
    assert str(some) == "1..3" and str(some.changed("off", {})) == "off" and not some.changed("off", {}).on
    for text, message in (("6", "neither MIN..MAX"), ("a..b", "neither"), ("0..2", "at least 1"), ("0..0", "at most 0 workers"),
                          ("4..2", r"4\.\.2 workers .* Give 2\.\.4, or 4\.\.4")):
        with pytest.raises(BadParameter, match=message):
            some.changed(text, {})
    with pytest.raises(BadParameter, match=r"share = 0.9 is out of range: it must be from 0 to 0.8"):
        some.changed("1..3", {"share": 0.9})
    with pytest.raises(BadParameter, match="has no parameter 'pace'"):
        some.changed("1..3", {"pace": 1})


def test_settings_of_the_engine() -> None:
    assert not AutoWorkers.of({}).on
    given = AutoWorkers.of({"worker.auto.min": 2, "worker.auto.max": 5, "worker.auto.idle.secs": 1, "worker.auto.share": 0})
    assert given == AutoWorkers(2, 5, idle=1.0, share=0.0)
    with pytest.raises(TopologyError, match="must be a whole number"):
        AutoWorkers.of({"worker.auto.max": 2.5})

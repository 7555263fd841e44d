"""Measured load of tasks: time without credit, lags of spouts and the rate that their sources offer."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.control.events import Paused, Unpaused
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster.cluster_runs import errors
from support.cluster.plain_parts import Numbers, Pass, Sink, SinkBlocking
from support.load.measured_cluster import MeasuredCluster

SPOUT, THROUGH, SINK = TaskId("numbers", 0), TaskId("through", 0), TaskId("sink", 0)
SMALL = {"topology.chunk.tuples": 20, "burst": 20, "topology.channel.window": 2}


class TimedNumbers(Numbers):
    """By the cluster's clock, which the test sets."""

    time: ClassVar[Any] = None
    asked: ClassVar[list[int]] = []

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self.clock = TimedNumbers.time

    def lag(self) -> int | None:
        self.asked.append(self._next_position)
        return super().lag()


class TimedNumbersBlocking(TimedNumbers):
    blocking = True


class RaisesLag(Numbers):
    def lag(self) -> int | None:
        raise RuntimeError("the source does not answer")


class WrongLag(Numbers):
    def lag(self) -> Any:
        return "many"


def line(spout: Any, sink: Any) -> Any:
    class Line(Topology):
        numbers = spout.spec()
        through = Pass.spec(inputs=[numbers])
        end = sink.spec(name="sink", inputs={through: Grouping.GLOBAL})

    return Line


@pytest.fixture
def cluster() -> MeasuredCluster:
    made = MeasuredCluster(2)
    TimedNumbers.time = staticmethod(made.clock.now)
    TimedNumbers.asked.clear()
    return made


@pytest.mark.parametrize("guarantee", ["at-most-once", "exactly-once"])
def test_senders_of_a_slow_task_wait_for_credit_and_it_does_not(cluster: MeasuredCluster, guarantee: str) -> None:
    cluster.slow[SINK] = 10
    cluster.submit(line(Numbers, SinkBlocking), config={**SMALL, "topology.guarantee": guarantee})
    cluster.run(0.5)
    load = cluster.window("line", 1.0)
    for task in (SPOUT, THROUGH):
        assert 0.7 < load.tasks[task].blocked_seconds <= load.window_seconds, (task, load.tasks[task])
    assert load.tasks[SINK].blocked_seconds == 0.0


def test_a_spout_with_as_many_tuples_in_flight_as_it_may_have_waits_for_the_slow_task(cluster: MeasuredCluster) -> None:
    """No channel is full: only the limit of the spout holds it up."""
    cluster.slow[SINK] = 10
    cluster.submit(line(Numbers, SinkBlocking), config={**SMALL, "topology.max.spout.pending": 20,
                                                      "topology.channel.window": 100})
    cluster.run(0.5)
    load = cluster.window("line", 1.0)
    assert 0.7 < load.tasks[SPOUT].blocked_seconds <= load.window_seconds
    assert load.tasks[THROUGH].blocked_seconds == load.tasks[SINK].blocked_seconds == 0.0
    assert load.tasks[SPOUT].emitted > 0
    cluster.slow.clear()
    cluster.hanging.clear()
    cluster.tell(Paused("line"))
    cluster.run(0.1)
    assert cluster.window("line", 1.0).tasks[SPOUT].blocked_seconds == 0.0


def test_who_has_nothing_to_do_does_not_wait_for_credit(cluster: MeasuredCluster) -> None:
    """The sink hangs. The spout has sent everything that it has, and the bolt before the sink has no more input."""
    cluster.submit(line(Numbers, SinkBlocking), config={**SMALL, "limit": 4, "topology.channel.window": 1,
                                                      "topology.guarantee": "at-most-once"})
    cluster.tell(Paused("line"))
    cluster.run(0.2)
    cluster.hanging.add(SINK)
    cluster.tell(Unpaused("line"))
    cluster.run(0.5)
    load = cluster.window("line", 1.0)
    assert cluster.tasks("through")[0].blocked == 1 and cluster.tasks("through")[0].inbox.empty
    assert load.tasks[SPOUT].blocked_seconds == load.tasks[THROUGH].blocked_seconds == 0.0


def test_the_time_of_one_that_still_waits_is_counted_up_to_each_report(cluster: MeasuredCluster) -> None:
    cluster.submit(line(Numbers, SinkBlocking), config={**SMALL, "topology.guarantee": "at-most-once"})
    cluster.run(0.5)
    cluster.hanging.add(SINK)
    cluster.run(0.5)  # all channels are full
    load = cluster.window("line", 1.0)
    for task in (SPOUT, THROUGH):
        assert load.tasks[task].blocked_seconds == pytest.approx(load.window_seconds)
    cluster.tell(Paused("line"))
    cluster.step()
    paused = cluster.window("line", 1.0)
    assert paused.tasks[SPOUT].blocked_seconds == 0.0, "a paused spout has nothing to do"
    cluster.tell(Unpaused("line"))
    cluster.step()
    assert cluster.window("line", 1.0).tasks[SPOUT].blocked_seconds == pytest.approx(1.0)


@pytest.mark.parametrize("spout", [TimedNumbers, TimedNumbersBlocking])
def test_a_source_offers_its_rate_however_much_is_let_through(cluster: MeasuredCluster, spout: Any) -> None:
    cluster.submit(line(spout, SinkBlocking), config={**SMALL, "rate": 5000.0, "topology.guarantee": "at-most-once"})
    cluster.run(1.0)
    first = cluster.window("line", 1.0).tasks[SPOUT]
    assert first.offered == pytest.approx(5000, abs=20) and first.lag is not None
    cluster.hanging.add(SINK)
    cluster.run(1.0)
    stuck = cluster.window("line", 1.0).tasks[SPOUT]
    assert stuck.emitted == 0 and stuck.offered == pytest.approx(5000, rel=0.15)
    assert stuck.lag is not None and stuck.lag >= first.lag + stuck.offered
    cluster.hanging.clear()
    caught_up = cluster.window("line", 2.0).tasks[SPOUT]
    assert caught_up.emitted > caught_up.offered == pytest.approx(10_000, rel=0.15)
    assert caught_up.lag is not None and caught_up.lag < stuck.lag


def test_a_source_that_does_not_know_its_lag_offers_what_it_emits(cluster: MeasuredCluster) -> None:
    cluster.submit(line(Numbers, Sink), config={**SMALL, "topology.guarantee": "at-most-once"})
    cluster.run(0.5)
    load = cluster.window("line", 1.0)
    assert load.tasks[SPOUT].lag is None and load.tasks[SPOUT].offered == load.tasks[SPOUT].emitted > 0
    assert load.tasks[THROUGH].offered == 0 and load.tasks[THROUGH].lag is None


@pytest.mark.parametrize("spout", [TimedNumbers, TimedNumbersBlocking])
def test_a_spout_is_asked_for_its_lag_once_for_each_report(cluster: MeasuredCluster, spout: Any,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    reports = 0
    make = LocalCluster._report

    def count(self: LocalCluster) -> None:
        nonlocal reports
        reports += 1
        make(self)

    monkeypatch.setattr(LocalCluster, "_report", count)
    cluster.submit(line(spout, Sink), config={**SMALL, "rate": 20_000.0, "topology.guarantee": "at-most-once"})
    cluster.run(3.0)
    assert reports - 2 <= len(TimedNumbers.asked) <= reports and TimedNumbers.asked[-1] > 10_000


@pytest.mark.parametrize(("spout", "message"), [(RaisesLag, "does not answer"), (WrongLag, "'str'")])
def test_an_error_in_lag_is_reported_and_hurts_nothing(cluster: MeasuredCluster, spout: Any, message: str) -> None:
    cluster.submit(line(spout, Sink), config={**SMALL, "topology.guarantee": "at-most-once"})
    cluster.run(0.5)
    counted = cluster.tasks("numbers")[0].meters.errors
    load = cluster.window("line", 0.5).tasks[SPOUT]
    assert load.lag is None and load.offered == load.emitted > 0 and load.failed == 0
    cluster.tasks("numbers")[0].lag.reported()
    assert cluster.tasks("numbers")[0].meters.errors > counted
    assert any(message in text for text in errors(cluster))

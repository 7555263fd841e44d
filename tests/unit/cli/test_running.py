"""The rates that `run` shows, and the end of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from millrace.cli import running
from millrace.cli.begin import RunOptions
from millrace.cli.running import IN_FLIGHT_SECONDS, RATE_SECONDS, Rates, _stop, run_topology
from millrace.config import RESIDENT
from millrace.errors import MillraceError, NotTheAuthor
from millrace.spark.running_topology import RunningTopology
from millrace.workloads.wordcount import WordCount


def status(lines: int, count: int) -> dict[str, Any]:
    rows = [{"name": "lines", "kind": "spout", "emitted": lines, "executed": 0},
            {"name": "count", "kind": "bolt", "emitted": 0, "executed": count}]
    return {"topologies": [{"name": "words", "components": rows}]}


def test_rates_cover_the_last_seconds() -> None:
    now = 0.0
    rates = Rates(lambda: now)
    assert rates.of(status(100, 1000)) == {"words": {"lines": 0.0, "count": 0.0}}
    now = 1.0
    assert rates.of(status(110, 1200)) == {"words": {"lines": 10.0, "count": 200.0}}
    for second in range(2, 40):
        now = float(second)
        shown = rates.of(status(110 + 30 * (second - 1), 1200))
    assert shown == {"words": {"lines": pytest.approx(30.0), "count": 0.0}}


def test_batches_give_an_even_rate() -> None:
    """The rate is the same whether a refresh falls into a batch or between two."""
    now = 0.0
    rates, shown = Rates(lambda: now), []
    for look in range(100):
        now = look * 0.5
        shown.append(rates.of(status(int(now) * 1000, 0))["words"]["lines"])
    settled = shown[int(RATE_SECONDS * 2) + 1:]
    assert 800 <= min(settled) <= max(settled) <= 1200


class OvertakenEngine:
    """An engine whose master is overtaken when its topology is killed, or at once."""

    lost = unencrypted = ""

    def __init__(self, at_once: bool) -> None:
        self.reason = "another driver took over 'words'"
        self.master: Any = SimpleNamespace(
            name="test", superseded=self.reason if at_once else "", ended={}, kill=self.kill,
            wait_until=lambda condition, seconds: condition(),
            state=SimpleNamespace(topologies={"words": SimpleNamespace(status="running")}))

    def kill(self, name: str, wait: float) -> None:
        self.master.superseded = self.reason

    def submit(self, *arguments: Any) -> RunningTopology:
        return RunningTopology(self.master, "words")

    def status(self) -> dict[str, Any]:
        return {"topologies": []}

    def __enter__(self) -> OvertakenEngine:
        return self

    def __exit__(self, *error: object) -> None: ...


@pytest.mark.parametrize("at_once", [True, False], ids=["while it runs", "in its last wave"])
def test_run_fails_if_another_driver_takes_over(monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    monkeypatch.setattr(running, "start_engine", lambda *arguments: OvertakenEngine(at_once))
    options = RunOptions("millrace.workloads.wordcount:WordCount", "local[2]", None, "words", {}, {}, 0.001, None, None, 0,
                         False, {}, {}, None, {}, None)
    with pytest.raises(NotTheAuthor, match="another driver took over 'words'"):
        run_topology(options, WordCount, live=False)


class EndingEngine(OvertakenEngine):
    """An engine whose topology ends with this outcome when it is killed, or not at all."""

    def __init__(self, uncommitted: str | None) -> None:
        super().__init__(at_once=False)
        self.outcome = uncommitted

    def kill(self, name: str, wait: float) -> None:
        if self.outcome is not None:
            del self.master.state.topologies[name]
            self.master.ended[name] = SimpleNamespace(uncommitted=self.outcome, failure="")


def run_words(monkeypatch: pytest.MonkeyPatch, uncommitted: str | None) -> dict[str, Any]:
    """Run a batched topology for a moment."""
    monkeypatch.setattr(running, "start_engine", lambda *arguments: EndingEngine(uncommitted))
    monkeypatch.setattr(running, "LAST_BATCH_SECONDS", 0.0)
    options = RunOptions("millrace.workloads.wordcount:WordCount", "local[2]", None, "words", {}, {}, 0.001, None, None, 0,
                         False, {}, {}, None, {}, None, engine=running.MICROBATCH)
    return run_topology(options, WordCount, live=False)


def test_run_succeeds_if_everything_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_words(monkeypatch, "")["name"] == "words"


def test_run_fails_if_something_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MillraceError, match="words: the query ended: no such table"):
        run_words(monkeypatch, "the query ended: no such table")


def test_run_fails_if_the_topology_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MillraceError, match="words: it has not ended in time, and input after its last checkpoint may not be"):
        run_words(monkeypatch, None)


class StoppingTopology:
    """Answers `wait` as it is told; an exception is raised."""

    status = "stopping"

    def __init__(self, *answers: Any) -> None:
        self.answers, self.kills = list(answers), list[float]()

    def kill(self, wait: float) -> None:
        self.kills.append(wait)

    def wait(self, seconds: float) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return bool(answer)


def stop(running: StoppingTopology, lost: str = "") -> None:
    engine = SimpleNamespace(lost=lost, master=SimpleNamespace(superseded=""))
    _stop(engine, running, RESIDENT, Console(quiet=True))  # type: ignore[arg-type]


def test_the_end_of_a_resident_topology_is_waited_for_as_long_as_the_master_takes() -> None:
    running = StoppingTopology(*[False] * 1000, True)
    stop(running)
    assert running.answers == [] and running.kills == [IN_FLIGHT_SECONDS[RESIDENT]]


def test_a_second_interrupt_ends_it_at_once() -> None:
    running = StoppingTopology(False, KeyboardInterrupt(), True)
    stop(running)
    assert running.answers == [] and running.kills == [IN_FLIGHT_SECONDS[RESIDENT], 0.0]


def test_the_end_is_not_waited_for_if_spark_has_ended() -> None:
    running = StoppingTopology(False, True)
    stop(running, lost="Spark has ended")
    assert running.answers == [True]

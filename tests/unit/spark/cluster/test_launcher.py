"""Room for new workers, and executors that are given back, with the answers of Spark as given values."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.errors import NotEnoughSlots
from millrace.spark.cluster import launcher as module
from millrace.spark.cluster.launcher import LauncherHooks, SparkLauncher
from millrace.spark.cluster.placement import Executor


class Sparks:
    """The executors of a cluster. Jobs run until the end; `starts`: executors that a request for more of them brings."""

    def __init__(self, *executors: Executor, starts: Sequence[Executor] = (), local: bool = False) -> None:
        self.executors, self.starts, self.local = [*executors], starts, local
        self.asked: list[int] = []
        self.given_back: list[str] = []
        self.locations: list[str] = []
        self.ended = threading.Event()

    def registered(self) -> list[Executor]:
        return self.executors

    def ask_for_executors(self, total: int) -> bool:
        self.asked.append(total)
        self.executors += self.starts
        return True

    def give_back(self, executor: str, left: int) -> bool:
        self.given_back.append(executor)  # and Spark lists it on
        return True

    def seeds(self, locations: Sequence[str]) -> Any:
        self.locations += locations

    def python(self, rdd: Any, body: Any) -> Any:
        return None

    def collect(self, rdd: Any) -> list[bytes]:
        self.ended.wait()
        return [b""]


class Launched:
    """A launcher on such a cluster. `joined`: slot -> executor of the workers that the master knows."""

    def __init__(self, sparks: Sparks, master: str, needs_cores: bool = False) -> None:
        self.sparks, self.joined, self.needs_cores = sparks, dict[int, str](), needs_cores
        context: Any = SimpleNamespace(master=master, getConf=lambda: {}, setJobGroup=lambda *_, **__: None,
                                       cancelJobGroup=lambda group: sparks.ended.set())
        hooks = LauncherHooks(ended=lambda error: None, failed=lambda text: None, wanted=lambda slot: False,
                              hosts=lambda hosts: None, workers=lambda: self.joined, needs_cores=lambda: self.needs_cores)
        self.launcher = SparkLauncher(context, SimpleNamespace(cluster="test", settings={}), 0, hooks, owns_session=True)

    def add(self, count: int) -> tuple[int, ...]:
        return self.launcher.add(count)

    def joins(self, slot: int, executor: str) -> None:
        self.joined[slot] = executor

    def leaves(self, slot: int) -> bool:
        """Release a worker that has ended."""
        self.sparks.ended.set()
        return self.launcher.release(slot, self.joined.pop(slot))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[Launched] = []

    def launch(sparks: Sparks, master: str = "spark://127.0.0.1:7077", **options: Any) -> Launched:
        monkeypatch.setattr(module, "Placement", lambda context: sparks)
        made.append(Launched(sparks, master, **options))
        return made[-1]

    for name in ("ROOM_SECONDS", "IDLE_SECONDS"):
        monkeypatch.setattr(module, name, 0.0)
    yield launch
    for each in made:
        each.sparks.ended.set()
        each.launcher.stop()


@pytest.fixture(autouse=True)
def plain_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark's threads ask Spark for the properties of their parents."""
    monkeypatch.setattr(module, "InheritableThread", threading.Thread)


def executor(number: int, busy: int = 0, cores: int = 2) -> Executor:
    return Executor(str(number), "host", cores, busy)


def test_cores_of_workers_that_are_being_started_are_taken(launched: Any) -> None:
    cluster = launched(Sparks(executor(0), executor(1)))
    assert cluster.add(3) == (0, 1, 2)
    with pytest.raises(NotEnoughSlots, match=r"2 more workers .* but 1 of the 4 cores .* start more Spark workers"):
        cluster.add(2)
    assert cluster.add(1) == (3,)


def test_a_standalone_master_is_not_asked_because_that_would_limit_it(launched: Any) -> None:
    cluster = launched(Sparks(executor(0, busy=2), starts=[executor(1)]))
    with pytest.raises(NotEnoughSlots):
        cluster.add(1)
    assert cluster.sparks.asked == []


@pytest.mark.parametrize("master", ["yarn", "k8s://https://127.0.0.1:6443"])
def test_other_masters_are_asked_for_the_executors_that_are_missing(launched: Any, master: str,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM_SECONDS", 60.0)
    cluster = launched(Sparks(executor(0, busy=2), starts=[executor(1), executor(2)]), master)
    assert cluster.add(3) == (0, 1, 2)
    assert cluster.sparks.asked == [3]


def test_executors_that_are_not_enough_are_given_back(launched: Any) -> None:
    cluster = launched(Sparks(executor(0, busy=2), starts=[executor(1)]), "yarn")
    with pytest.raises(NotEnoughSlots):
        cluster.add(5)
    assert cluster.sparks.asked == [4, 1] and cluster.sparks.given_back == ["1"]


def test_an_executor_that_is_starting_is_waited_for_instead_of_asking_for_another(launched: Any,
                                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM_SECONDS", 60.0)
    sparks = Sparks(executor(0, busy=2))
    looks = iter([replace(executor(1), ready=False)] * 2)
    monkeypatch.setattr(sparks, "registered", lambda: [*sparks.executors, next(looks, executor(1))])
    assert launched(sparks, "yarn").add(1) == (0,)
    assert not sparks.asked and next(looks, None) is None


def test_on_one_machine_an_executor_that_is_starting_is_waited_for_longer_than_a_core(launched: Any,
                                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM_SECONDS", 60.0)
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)
    sparks = Sparks(executor(0, busy=2))
    looks = iter([replace(executor(1), ready=False)] * 3)
    monkeypatch.setattr(sparks, "registered", lambda: [*sparks.executors, next(looks, executor(1))])
    assert launched(sparks, "local-cluster[2,2,700]").add(1) == (0,)


def test_a_given_back_executor_is_not_counted_though_spark_lists_it(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM_SECONDS", 60.0)
    cluster = launched(Sparks(executor(0), executor(1, busy=2), starts=[executor(2)]))
    cluster.add(1)
    cluster.joins(0, "0")
    assert cluster.leaves(0) and cluster.sparks.given_back == ["0"]
    assert cluster.add(2) == (1, 2)
    assert cluster.sparks.asked == [2], "from now on a standalone master starts executors on request only"


def test_an_executor_with_another_worker_is_kept_and_not_waited_for(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 3600.0)
    cluster = launched(Sparks(executor(0), executor(1)))
    for slot in cluster.add(4):
        cluster.joins(slot, str(slot % 2))
    assert not cluster.leaves(0) and not cluster.sparks.given_back


def test_the_last_free_core_is_kept_for_queries(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 3600.0)
    cluster = launched(Sparks(executor(0), executor(1, busy=2)), needs_cores=True)
    cluster.add(1)
    cluster.joins(0, "0")
    assert not cluster.leaves(0) and not cluster.sparks.given_back


def test_a_local_master_has_no_others_to_wait_for(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 3600.0)
    cluster = launched(Sparks(Executor("driver", "host", 4), local=True), "local[4]")
    assert cluster.add(2) == (0, 1)
    with pytest.raises(NotEnoughSlots, match=r"2 of the 4 cores .* one must stay free .*larger --master"):
        cluster.add(2)
    assert cluster.add(1) == (2,)

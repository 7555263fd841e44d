"""The trial of a store by Spark's executors, with a placement that runs their tasks here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from millrace.spark.cluster import store_trial
from millrace.spark.cluster.placement import Executor
from millrace.spark.cluster.store_trial import check_store
from millrace.testing.local_cluster import MemoryStore

EXECUTORS = [Executor("1", "a", 1), Executor("2", "b", 1)]


class ExecutorsHere:
    """A placement whose tasks run one after the other. `fails`: the error of Spark's job after that."""

    def __init__(self, fails: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fails, self._ids = fails, list[str]()
        monkeypatch.setattr(store_trial, "executor_id", lambda: self._ids[-1])

    def seeds(self, locations: list[str]) -> list[str]:
        return locations

    def python(self, locations: list[str], body: Callable[[int, Iterable[bytes]], Iterator[bytes]]) -> Iterator[bytes]:
        for index, location in enumerate(locations):
            self._ids.append(location.rpartition("_")[2])
            yield from body(index, [])

    def collect(self, answers: Iterator[bytes]) -> list[bytes]:
        collected = list(answers)
        if self._fails is not None:
            raise self._fails
        return collected


@pytest.mark.parametrize("fails", [None, RuntimeError("the job was cancelled")])
def test_no_mark_is_left_even_if_the_job_fails(fails: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    marks = set[str]()
    write = store.write
    monkeypatch.setattr(store, "write", lambda name, parts: (marks.add(name), write(name, parts)))
    monkeypatch.setattr(store_trial, "open_store", lambda place: store)
    placement: Any = ExecutorsHere(fails, monkeypatch)
    if fails is None:
        check_store(placement, EXECUTORS, store, "/store")
    else:
        with pytest.raises(RuntimeError, match="the job was cancelled"):
            check_store(placement, EXECUTORS, store, "/store")
    assert len(marks) == 3, "the driver and both executors have left one"
    assert store.names("") == []

"""Loads as values, and the list of metrics."""

from __future__ import annotations

import dataclasses
import json
import pickle

import msgspec
import pytest

from millrace.model.graph import TaskId
from millrace.model.load import HeavyKey, Latency, Load, Metric, TaskLoad

A, B = TaskId("a", 0), TaskId("b", 1)
LOAD = Load(10.0, {A: TaskLoad(emitted=5, offered=8, lag=3, complete_latency_ms=Latency(1.5, 9.0, 2.25)),
                   B: TaskLoad(executed=5, busy_seconds=2.5, blocked_seconds=0.5)}, {(A, B): 5}, key_groups={"b": (3.0, 2.0)},
            heavy_keys={"b": (HeavyKey("'the'", 0, 2.5),)})


def test_a_load_survives_the_wire_pickle_and_json() -> None:
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(LOAD), type=Load)
    assert arrived == LOAD and hash(arrived) == hash(LOAD)
    assert pickle.loads(pickle.dumps(LOAD)) == LOAD
    assert Load.from_json(json.loads(json.dumps(LOAD.to_json()))) == LOAD


def test_json_names_the_tasks_as_people_do() -> None:
    data = LOAD.to_json()
    assert data["traffic"] == [["a[0]", "b[1]", 5]]
    assert data["tasks"]["a[0]"]["complete_latency_ms"] == {"p50": 1.5, "p99": 9.0, "mean": 2.25}
    assert (data["tasks"]["a[0]"]["lag"], data["tasks"]["b[1]"]["lag"]) == (3, None)
    assert data["tasks"]["a[0]"]["execute_latency_ms"] is None


def test_a_load_that_was_saved_before_there_were_lags_and_means_is_read() -> None:
    data = LOAD.to_json()
    for task in data["tasks"].values():
        for name in ("offered", "lag", "blocked_seconds"):
            del task[name]
    del data["tasks"]["a[0]"]["complete_latency_ms"]["mean"]
    assert Load.from_json(data).tasks == {
        A: TaskLoad(emitted=5, complete_latency_ms=Latency(1.5, 9.0)),
        B: TaskLoad(executed=5, busy_seconds=2.5)}


def test_capacity() -> None:
    assert LOAD.capacity(B) == 0.25
    assert LOAD.capacity(TaskId("c", 0)) == 0.0
    assert Load().capacity(A) == 0.0


def test_a_task_keeps_its_loop_busy_outside_user_code_too() -> None:
    load = Load(10.0, {A: TaskLoad(busy_seconds=2.0, routing_seconds=1.0)})
    assert (load.loop_share(A), load.capacity(A)) == (0.3, 0.2)
    assert LOAD.loop_share(B) == LOAD.capacity(B), "a record of an earlier version has only the time in user code"
    assert load.loop_share(TaskId("c", 0)) == Load().loop_share(A) == 0.0


def test_every_measured_field_is_a_metric_with_unit_and_sentence() -> None:
    missing = {field.name for field in dataclasses.fields(TaskLoad)} - set(Metric)
    assert not missing, f"add {missing} to Metric, in model/load.py, with a unit and one sentence"
    for metric in Metric:
        assert metric.unit and metric.about.endswith("."), f"{metric} needs a unit and a sentence"
        assert metric.name.lower() == metric.value, f"{metric!r}: name and value must agree"


def test_a_metric_is_its_name() -> None:
    assert Metric("backlog") is Metric.BACKLOG and f"{Metric.BACKLOG}" == "backlog"
    assert (Metric.CAPACITY.unit, Metric.TARGET_RATE.unit) == ("ratio", "tuples/s")
    with pytest.raises(ValueError, match="delay"):
        Metric("delay")

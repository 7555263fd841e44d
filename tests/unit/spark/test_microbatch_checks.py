"""Checks that the microbatch engine makes before it starts anything."""

from __future__ import annotations

import pytest
from pyspark import SparkConf

from millrace.errors import MillraceError, NotEnoughSlots, TopologyError
from millrace.spark.engine import MUST_BE_OFF, ResidentEngine, check_off
from millrace.spark.microbatch import MicrobatchEngine, check_allocation, check_batch_settings, check_slots, offsets_place


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[4,10]"])
def test_a_local_master_has_one_slot(master: str) -> None:
    check_slots(master, 1)
    with pytest.raises(NotEnoughSlots, match=r"3 slots were asked for.* has 1, .*local-cluster\[3,"):
        MicrobatchEngine(master, 3)


@pytest.mark.parametrize("master", ["local-cluster[3,1,700]", "spark://127.0.0.1:7077", "yarn"])
def test_others_may_have_as_many_as_are_asked_for(master: str) -> None:
    check_slots(master, 3)


def test_settings_with_which_spark_would_run_parts_of_a_batch_again() -> None:
    right = {"spark.stage.maxConsecutiveAttempts": "1"}
    check_batch_settings(SparkConf(loadDefaults=False).setAll(list(right.items())))
    for wrong in ({"spark.speculation": "true"}, {"spark.stage.maxConsecutiveAttempts": "4"},
                  {"spark.python.worker.reuse": "false"}, {"spark.speculation": "True"},
                  {"spark.excludeOnFailure.enabled": "true"}, {"spark.excludeOnFailure.application.enabled": "true"}):
        (key, value), = wrong.items()
        with pytest.raises(MillraceError, match=f"{key}={value}, and .* it must be made with {key}="):
            check_batch_settings(SparkConf(loadDefaults=False).setAll(list((right | wrong).items())))


def test_settings_with_which_workers_would_not_live() -> None:
    check_off(SparkConf(loadDefaults=False))
    for key, _ in MUST_BE_OFF:
        check_off(SparkConf(loadDefaults=False).set(key, "false"))
        with pytest.raises(MillraceError, match=f"{key}=true, but .* create the session with {key}=false"):
            check_off(SparkConf(loadDefaults=False).set(key, "true"))


def test_executors_must_stay_though_no_job_needs_them() -> None:
    conf = SparkConf(loadDefaults=False)
    check_allocation(conf, 2)
    conf.set("spark.dynamicAllocation.enabled", "true")
    for least in ("", "1"):
        if least:
            conf.set("spark.dynamicAllocation.minExecutors", least)
        with pytest.raises(MillraceError, match=r"all executors but .*minExecutors=2 or more"):
            check_allocation(conf, 2)
    check_allocation(conf.set("spark.dynamicAllocation.minExecutors", "2"), 2)


@pytest.mark.parametrize("engine", [MicrobatchEngine, ResidentEngine])
def test_settings_are_looked_at_before_spark_starts(engine: type[MicrobatchEngine | ResidentEngine]) -> None:
    with pytest.raises(MillraceError, match=r"checkpoint.stroe: .* did you mean checkpoint.store"):
        engine("local[2]", 1, settings={"checkpoint.stroe": "/tmp"})
    with pytest.raises(MillraceError, match=r"checkpoint.store = 7 must be a non-empty string"):
        engine("local[2]", 1, settings={"checkpoint.store": 7})


def test_a_password_is_not_shown() -> None:
    with pytest.raises(TopologyError, match="is redis://host:1/0, and Spark keeps") as refused:
        offsets_place("redis://me:secret@host:1/0", "words", "")
    assert "secret" not in str(refused.value)


def test_limits_of_workers() -> None:
    """The microbatch engine has no workers, and contradictory limits are refused before Spark starts."""
    with pytest.raises(MillraceError, match=r"worker\.auto\.max: the microbatch engine has no workers of its own"):
        MicrobatchEngine("local[2]", settings={"worker.auto.max": 3})
    with pytest.raises(MillraceError, match=r"4\.\.3 workers were requested"):
        ResidentEngine("local[2]", settings={"worker.auto.min": 4, "worker.auto.max": 3})

"""What the microbatch engine refuses before anything is started or waited for."""

from __future__ import annotations

import pytest
from pyspark import SparkConf

from millrace.errors import MillraceError, NotEnoughSlots, TopologyError
from millrace.spark.microbatch import MicrobatchEngine, check_batch_settings, check_slots, offsets_place


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
                  {"spark.python.worker.reuse": "false"}):
        (key, value), = wrong.items()
        with pytest.raises(MillraceError, match=f"{key}={value}, and .* it must be made with {key}="):
            check_batch_settings(SparkConf(loadDefaults=False).setAll(list((right | wrong).items())))


def test_a_password_is_not_shown() -> None:
    with pytest.raises(TopologyError, match="is redis://host:1/0, and Spark keeps") as refused:
        offsets_place("redis://me:secret@host:1/0", "words", "")
    assert "secret" not in str(refused.value)

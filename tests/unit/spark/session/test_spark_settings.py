"""Spark settings for resident workers, computed without Spark."""

from __future__ import annotations

import pytest

from millrace.errors import NotEnoughSlots
from millrace.spark.session.settings import session_settings


@pytest.mark.parametrize(
    ("master", "slots", "url"),
    [
        ("local", 1, "local[3,1000000]"),
        ("local[2]", 4, "local[6,1000000]"),
        ("local[16]", 4, "local[16,1000000]"),
        ("local[ 8 , 3 ]", 4, "local[8,1000000]"),
        ("local[6,1000000]", 4, "local[6,1000000]"),
        ("local-cluster[2,2,700]", 3, "local-cluster[2,2,700]"),
        ("spark://one:7077,two:7077", 3, "spark://one:7077,two:7077"),
    ],
)
def test_a_local_master_gets_room_and_retries_and_others_are_unchanged(master: str, slots: int, url: str) -> None:
    assert session_settings(master, slots)[0] == url


def test_all_cores_of_the_machine() -> None:
    url, _ = session_settings("local[*]", 500)
    assert url == "local[502,1000000]"


def test_settings_for_long_lived_tasks() -> None:
    _, settings = session_settings("spark://one:7077", 2)
    assert settings["spark.speculation"] == "false"
    assert int(settings["spark.task.maxFailures"]) > 100_000
    assert settings["spark.excludeOnFailure.enabled"] == "false"
    assert settings["spark.dynamicAllocation.enabled"] == "false"
    assert settings["spark.locality.wait"] == "3s"
    assert settings["spark.executorEnv.PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize(
    "master", ["local[2]", "local-cluster[2,2,700]", "spark://127.0.0.1:7077", "spark://localhost"]
)
def test_on_this_machine_nothing_listens_beyond_the_loopback(master: str) -> None:
    _, settings = session_settings(master, 2)
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"


@pytest.mark.parametrize("master", ["spark://one:7077", "spark://127.0.0.1:7077,one:7077", "yarn", "k8s://https://one"])
def test_elsewhere_spark_chooses_the_address(master: str) -> None:
    _, settings = session_settings(master, 2)
    assert "spark.driver.host" not in settings
    assert "log4j2" not in settings["spark.executor.defaultJavaOptions"]  # our file is not on those machines


def test_local_cluster_gives_its_executors_the_memory_it_names() -> None:
    _, settings = session_settings("local-cluster[2,2,700]", 3)
    assert settings["spark.executor.memory"] == "700m"


def test_local_cluster_without_a_spare_core_is_refused() -> None:
    with pytest.raises(NotEnoughSlots, match=r"4 workers were requested, but .* has 4 cores.* at least 5"):
        session_settings("local-cluster[2,2,700]", 4)


def test_extra_settings_win_and_java_options_are_added() -> None:
    extra = {"spark.locality.wait": "1s", "spark.driver.extraJavaOptions": "-XX:+UseG1GC -Da=b"}
    _, settings = session_settings("local[2]", 2, extra)
    assert settings["spark.locality.wait"] == "1s"
    assert settings["spark.driver.extraJavaOptions"] == "-XX:+UseG1GC -Da=b"
    assert "SerialGC" not in settings["spark.driver.defaultJavaOptions"]  # two collectors would stop the JVM
    assert "TieredStopAtLevel" in settings["spark.driver.defaultJavaOptions"]
    assert "SerialGC" in settings["spark.executor.defaultJavaOptions"]

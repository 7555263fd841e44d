"""Spark settings for resident workers, master URLs and Spark's home, all computed without Spark."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from millrace.errors import MasterUnreachable, MillraceError, NotEnoughSlots
from millrace.spark.session.environment import home_for_this_machine, spark_home
from millrace.spark.session.master_url import check_reachable, parse_master
from millrace.spark.session.settings import session_settings


@pytest.mark.parametrize(
    ("asked", "slots", "given"),
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
def test_a_local_master_gets_room_and_retries_and_the_others_stay(asked: str, slots: int, given: str) -> None:
    assert session_settings(asked, slots)[0] == given


def test_all_cores_of_the_machine() -> None:
    url, _ = session_settings("local[*]", 500)
    assert url == "local[502,1000000]"


def test_settings_for_long_lived_tasks() -> None:
    _, settings = session_settings("spark://one:7077", 2)
    assert settings["spark.speculation"] == "false"
    assert int(settings["spark.task.maxFailures"]) > 100_000
    assert settings["spark.excludeOnFailure.enabled"] == "false"
    assert settings["spark.dynamicAllocation.enabled"] == "false"
    assert settings["spark.locality.wait"] == "0s"
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
    extra = {"spark.locality.wait": "3s", "spark.driver.extraJavaOptions": "-XX:+UseG1GC -Da=b"}
    _, settings = session_settings("local[2]", 2, extra)
    assert settings["spark.locality.wait"] == "3s"
    assert settings["spark.driver.extraJavaOptions"] == "-XX:+UseG1GC -Da=b"
    assert "SerialGC" not in settings["spark.driver.defaultJavaOptions"]  # two collectors would stop the JVM
    assert "TieredStopAtLevel" in settings["spark.driver.defaultJavaOptions"]
    assert "SerialGC" in settings["spark.executor.defaultJavaOptions"]


@pytest.mark.parametrize(
    "url", ["foo", "", "local[x]", "local-cluster[2,2]", "spark://", "spark://h:x", "sc://h", "http://h"]
)
def test_what_is_no_master_is_refused_by_name(url: str) -> None:
    with pytest.raises(MillraceError, match="master"):
        parse_master(url)


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("spark://h:1", (("h", 1),)),
        ("spark://a:1,b", (("a", 1), ("b", 7077))),
        ("spark://[::1]:7077", (("::1", 7077),)),
        ("k8s://https://h", (("h", 443),)),
        ("k8s://h:6443", (("h", 6443),)),
        ("local[2]", ()),
    ],
)
def test_addresses_of_a_master(url: str, addresses: tuple[tuple[str, int], ...]) -> None:
    assert parse_master(url).addresses == addresses


def test_a_master_that_does_not_answer_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_reachable(parse_master(f"spark://127.0.0.1:{port}"))
    with pytest.raises(MasterUnreachable, match=rf"spark://127.0.0.1:{port} does not answer .*refused.*local\[N\]"):
        check_reachable(parse_master(f"spark://127.0.0.1:{port}"))


def test_one_answering_master_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_reachable(parse_master(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}"))


def test_yarn_needs_to_know_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    with pytest.raises(MasterUnreachable, match="HADOOP_CONF_DIR"):
        check_reachable(parse_master("yarn"))


def test_spark_home_of_another_release_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    package = spark_home({})
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-3.5.0.jar").touch()
    assert spark_home({"SPARK_HOME": str(tmp_path)}) == package
    assert f"SPARK_HOME={tmp_path} is ignored" in caplog.text
    core = next((package / "jars").glob("spark-core_*.jar"))
    (tmp_path / "jars" / core.name).touch()
    assert spark_home({"SPARK_HOME": str(tmp_path)}) == tmp_path


def test_a_home_of_links_has_all_but_the_zip_of_sources(tmp_path: Path) -> None:
    home, java = tmp_path / "pyspark", tmp_path / "java"
    java.mkdir()
    for name in ("jars", "bin", "python"):
        (home / name).mkdir(parents=True)
    linked = home_for_this_machine(home, java)
    assert sorted(path.name for path in linked.iterdir()) == ["bin", "jars"] and linked.parent == java
    assert home_for_this_machine(home, java) == linked
    other = tmp_path / "other"
    (other / "jars").mkdir(parents=True)
    assert home_for_this_machine(other, java) == other  # the links are of another installation

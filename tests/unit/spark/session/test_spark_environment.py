"""The Spark installation that a session uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.spark.session.environment import home_for_this_machine, spark_home


def test_spark_home_of_another_release_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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

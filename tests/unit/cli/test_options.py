"""KEY=VALUE options: their values, and the component, topology or engine that they configure."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.cli.options import Settings, group_owners, pairs, resume_choice, sorted_settings, with_resume_value
from millrace.config import ENGINE_SETTINGS, OTHER_KEYS, TOPOLOGY_SETTINGS
from millrace.errors import MillraceError


def test_the_key_says_whose_setting_it_is() -> None:
    assert sorted_settings(["rate=1000", "topology.max.fails=5", "checkpoint.store=/tmp/c", "spark.executor.memory=2g",
                            "spark.x=true", "tap.rows=10", "path=a=b", "list=[1, 2]"]) == Settings(
        topology={"rate": 1000, "topology.max.fails": 5, "tap.rows": 10, "path": "a=b", "list": [1, 2]},
        engine={"checkpoint.store": "/tmp/c"},
        spark={"spark.executor.memory": "2g", "spark.x": "true"})
    assert sorted_settings(None) == Settings()


@pytest.mark.parametrize("key", [*TOPOLOGY_SETTINGS, *sorted(OTHER_KEYS)])
def test_every_setting_of_a_topology_is_accepted(key: str) -> None:
    assert sorted_settings([f"{key}=1"]) == Settings(topology={key: 1})


@pytest.mark.parametrize("key", ENGINE_SETTINGS)
def test_every_setting_of_the_engine_is_accepted(key: str) -> None:
    assert sorted_settings([f"{key}=1"]) == Settings(engine={key: 1})


@pytest.mark.parametrize(("item", "message"), [
    ("checkpoint.stor=/tmp", "--set checkpoint.stor: there is no such setting; did you mean checkpoint.store"),
    ("chekpoint.store=/tmp", "did you mean checkpoint.store"),
    ("worker.colour=red", "--set worker.colour: there is no such setting. docs/settings.md lists all of them"),
    ("topology.gurantee=x", "did you mean topology.guarantee"),
    ("rate", "'rate' is not of the form KEY=VALUE"),
    ("=1", "'=1' is not of the form KEY=VALUE"),
    ("n=99999999999999999999", "the number is too large"),
])
def test_misspelt_settings_are_refused(item: str, message: str) -> None:
    with pytest.raises(MillraceError) as refused:
        sorted_settings([item])
    assert message in str(refused.value)


def test_numbers_of_tasks_are_whole() -> None:
    assert pairs("--par", ["count=4", "split=2"], whole=True) == {"count": 4, "split": 2}
    for item in ("count=many", "count=1.5", "count=true"):
        with pytest.raises(MillraceError, match="must be a whole number"):
            pairs("--par", [item], whole=True)


def test_key_groups_and_ranges_of_them() -> None:
    assert group_owners(["3=1"]) == {3: 1}
    assert group_owners(["0-2=3", "12=1"]) == {0: 3, 1: 3, 2: 3, 12: 1}
    assert group_owners(["5-5=2", "5=2", "4-6=2"]) == {5: 2, 4: 2, 6: 2}, "the same owner twice is no contradiction"


@pytest.mark.parametrize(("items", "group"), [(["0=3", "0=1"], 0), (["0-7=3", "3=1"], 3), (["3=3", "0-7=1"], 3),
                                              (["0-4=3", "4-7=1"], 4)])
def test_a_key_group_with_two_owners_is_refused(items: list[str], group: int) -> None:
    with pytest.raises(MillraceError) as refused:
        group_owners(items)
    assert str(refused.value) == (f"regroup {items[1]!r}: key group {group} is already given to task 3, and it can have only "
                                  "one owner. Name it once")


@pytest.mark.parametrize(("item", "message"), [
    ("3", "'3' is not of the form KEY=VALUE"),
    ("=3", "'=3' is not of the form KEY=VALUE"),
    ("3=", "the value must be a whole number"),
    ("3=one", "the value must be a whole number"),
    ("3=1.5", "the value must be a whole number"),
    ("x=1", "'x' is neither a key group, as in 12=1, nor a range, as in 0-7=1"),
    ("-1=1", "'-1' is neither a key group"),
    ("7-0=1", "'7-0' is neither a key group"),
    ("0-7-9=1", "'0-7-9' is neither a key group"),
    ("0-=x", "the value must be a whole number"),
    ("0-=1", "'0-' is neither a key group, as in 12=1, nor a range, as in 0-7=1"),
    ("-=1", "'-' is neither a key group"),
    ("0--1=1", "'0--1' is neither a key group"),
    ("0-9999999999=1", "'0-9999999999' is neither a key group"),
])
def test_other_key_groups_are_refused(item: str, message: str) -> None:
    with pytest.raises(MillraceError) as refused:
        group_owners(["0=1", item])
    assert message in str(refused.value)


def test_resume_fresh_or_neither() -> None:
    choices = [(1, 0, 0, 0), (0, 1, 0, 0), (1, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 0, 0)]
    assert [resume_choice(*map(bool, flags)) for flags in choices] == [True, "auto", "auto", "older", False, None]
    for flags in ((1, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1), (0, 1, 1, 0)):
        with pytest.raises(MillraceError, match="give only one"):
            resume_choice(*map(bool, flags))


@pytest.mark.parametrize(("given", "joined"), [
    (["run", "a:B", "--resume", "auto"], ["run", "a:B", "--resume-auto"]),
    (["run", "--resume=auto", "a:B"], ["run", "--resume-auto", "a:B"]),
    (["run", "a:B", "--resume", "older"], ["run", "a:B", "--resume-older"]),
    (["run", "--resume", "a:B"], ["run", "--resume", "a:B"]),
    (["run", "--resume=other", "a:B"], ["run", "--resume=other", "a:B"]),
    (["run", "a:B", "--name", "auto", "--resume"], ["run", "a:B", "--name", "auto", "--resume"]),
    (["auto"], ["auto"]),
])
def test_resume_has_a_value_only_if_it_is_a_known_one(given: list[str], joined: list[str]) -> None:
    assert with_resume_value(given) == joined


def test_values_from_the_environment_and_from_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STORE", "redis://:hunter2@host:6379/0")
    monkeypatch.setenv("PIN", "1234")
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    assert sorted_settings(["checkpoint.store=env:STORE", "pin=env:PIN", f"spark.authenticate.secret=@{secret}",
                            f"password=@{secret}", 'handle="@millrace"', 'text="env:PIN"']) == Settings(
        topology={"pin": "1234", "password": "hunter2", "handle": "@millrace", "text": "env:PIN"},
        engine={"checkpoint.store": "redis://:hunter2@host:6379/0"},
        spark={"spark.authenticate.secret": "hunter2"})


def test_a_missing_variable_or_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    with pytest.raises(MillraceError, match=r"--set checkpoint.store=env:NOWHERE: there is no environment variable 'NOWHERE'"):
        sorted_settings(["checkpoint.store=env:NOWHERE"])
    with pytest.raises(MillraceError, match="which cannot be read: No such file"):
        sorted_settings([f"checkpoint.store=@{tmp_path / 'nothing'}"])
    with pytest.raises(MillraceError) as refused:
        sorted_settings(["redis://:hunter2@host"])
    assert "hunter2" not in str(refused.value)

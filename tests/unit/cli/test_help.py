"""The help texts: one line per verb, every parameter explained, at most 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from millrace.cli.main import app


def verbs(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from verbs(command, (*path, name))


VERBS = dict(verbs(typer.main.get_command(app)))


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_help(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if re.search(r"\w\.\.\.$", line)], "the first sentence of a verb must fit its line"
    options = [line for line in lines if line.startswith("  --")]
    assert not [line for line in options if "<list" in line or "<str" in line], "name the value, not its Python type"


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_every_parameter_is_explained(path: tuple[str, ...]) -> None:
    command = VERBS[path]
    assert command.help
    assert all(getattr(parameter, "help", None) for parameter in command.params)

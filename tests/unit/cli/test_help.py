"""The help texts: one line per verb, every parameter explained, at most 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from millrace.bench.migration.cases import WORKLOADS
from millrace.cli.main import app
from millrace.cli.strategies_help import REBALANCE_HELP
from millrace.control.strategies.catalogue import STRATEGIES


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


def strategy_lines() -> dict[str, str]:
    """The help on each strategy, in one line."""
    lines: dict[str, str] = {}
    name = ""
    for line in REBALANCE_HELP.partition("\b\n")[2].partition("\n\n")[0].splitlines():
        name = line.split()[0] if not line.startswith(" ") else name
        lines[name] = f"{lines.get(name, '')} {line.strip()}".strip()
    return lines


def test_help_on_strategies_is_that_of_the_catalogue() -> None:
    lines = strategy_lines()
    assert lines.keys() == STRATEGIES.keys()
    for name, strategy in STRATEGIES.items():
        given = dict(re.findall(r"(\w+)=(\d+)", lines[name]))
        assert {parameter: float(value) for parameter, value in given.items()} == strategy.parameters
        needs = "needs exactly-once" if strategy.exactly_once else "needs waves" if strategy.needs_waves else ""
        assert lines[name].endswith(needs) and ("needs" in lines[name]) == bool(needs)
    shown = CliRunner().invoke(app, ["rebalance", "--help"]).output
    assert all(f"\n  {name} " in shown for name in STRATEGIES), "one below the other"


def test_help_on_the_benchmark_names_strategies_and_workloads() -> None:
    text = " ".join(CliRunner().invoke(app, ["bench", "migration", "--help"]).output.split())
    for name in (*STRATEGIES, *(workload.name.removesuffix(f"-{workload.scaling}") for workload in WORKLOADS.values())):
        assert re.search(rf"[ ']{re.escape(name)}[,;' ]", text), name

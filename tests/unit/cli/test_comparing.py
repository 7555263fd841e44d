"""`scheduler compare`: situations from a file and random ones, as a table and as data."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from millrace.cli.comparing import VARIANTS, chosen, compare
from millrace.errors import BadParameter, BadSituation, MillraceError, UnknownName
from millrace.schedulers.instances import large_situation, random_situation
from millrace.schedulers.slstream import SlStream

ONLY = ["even", "slstream", "slstream xi=1", "optimal"]


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_random_situations() -> None:
    output = console()
    result = compare(None, 6, 3, ONLY, output)
    assert json.loads(json.dumps(result)) == result, "must be plain data"
    assert (result["instances"], result["seed"]) == (6, 3)
    assert list(result["schedulers"]) == ONLY
    for row in result["schedulers"].values():
        assert {"mean_ratio", "worst_ratio", "nodes_used", "plan_ms"} <= set(row) and row["failed"] == 0
    best = result["schedulers"]["optimal"]
    assert best["mean_ratio"] == pytest.approx(1.0) and best["overloaded"] == 0
    assert best["compared"] + result["zero_optimum"] == 6 and best["zero_solved"] == result["zero_optimum"]
    assert "slstream xi=1" in printed(output) and "mean" in printed(output)


def test_equal_seeds_give_equal_figures() -> None:
    first, second = (compare(None, 3, 5, ["slstream xi=1"], console())["schedulers"]["slstream xi=1"] for _ in range(2))
    assert {**first, "plan_ms": 0} == {**second, "plan_ms": 0}


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    random_situation(np.random.default_rng(2)).save(path)
    output = console()
    result = compare(str(path), None, 1, ONLY, output)
    assert json.loads(json.dumps(result)) == result
    best = result["schedulers"]["optimal"]
    assert best["inter_node"] == pytest.approx(result["optimum"])
    assert {"inter_process", "nodes_used", "largest_load", "moved", "plan_ms", "ratio"} <= set(best)
    assert "tuples/s between" in " ".join(printed(output).split())  # wherever the line wraps


def test_a_file_too_large_for_the_optimum(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    large_situation(60, 8, np.random.default_rng(2)).save(path)
    result = compare(str(path), None, 1, ["even"], console())
    assert result["optimum"] is None and result["schedulers"]["even"]["ratio"] is None


def test_either_a_file_or_random_situations() -> None:
    for file, random in ((None, None), ("x", 3)):
        with pytest.raises(MillraceError, match="either --load FILE"):
            compare(file, random, 1, [], console())
    with pytest.raises(MillraceError, match="at least 1"):
        compare(None, 0, 1, ["even"], console())
    with pytest.raises(BadSituation, match="no-such-file"):
        compare("no-such-file", None, 1, ["even"], console())


def test_schedulers_by_name() -> None:
    assert list(chosen(["even"])) == ["even"]
    assert chosen(["slstream", "slstream xi=1"]) == {"slstream": SlStream(), "slstream xi=1": SlStream(xi=1.0)}
    assert set(VARIANTS) < set(chosen([]))
    with pytest.raises(BadParameter, match="has no parameter 'speed'"):
        chosen(["slstream speed=9"])
    with pytest.raises(UnknownName, match="fastest"):
        chosen(["fastest"])

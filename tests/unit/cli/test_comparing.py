"""`scheduler compare`: situations from a file and random ones, as a table and as data."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from millrace.cli.comparing import CORES, VARIANTS, Situations, _random_situation, chosen, compare
from millrace.errors import BadParameter, BadSituation, MillraceError, UnknownName
from millrace.master.load.history import History
from millrace.model.sample import NodeLoad, WindowSample, WorkerLoad
from millrace.schedulers.instances import large_situation, random_situation
from millrace.schedulers.slstream import SlStream

ONLY = ["even", "slstream", "slstream xi=1", "optimal capacity=1"]


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_random_situations() -> None:
    output = console()
    result = compare(Situations(random=6, seed=3, tasks=(4, 12), nodes=(2, 4)), ONLY, output)
    assert json.loads(json.dumps(result)) == result, "must be plain data"
    assert (result["instances"], result["seed"]) == (6, 3)
    assert list(result["schedulers"]) == ONLY
    for row in result["schedulers"].values():
        assert {"mean_ratio", "worst_ratio", "nodes_used", "plan_ms"} <= set(row) and row["failed"] == 0
    best = result["schedulers"]["optimal capacity=1"]
    assert best["mean_ratio"] == pytest.approx(1.0) and best["overloaded"] == 0
    assert best["compared"] + result["zero_optimum"] == 6 and best["zero_solved"] == result["zero_optimum"]
    assert "slstream xi=1" in printed(output) and "mean" in printed(output)


def test_equal_seeds_give_equal_figures() -> None:
    first, second = (compare(Situations(random=3, seed=5), ["slstream xi=1"], console())["schedulers"]["slstream xi=1"]
                     for _ in range(2))
    assert {**first, "plan_ms": 0} == {**second, "plan_ms": 0}


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    random_situation(np.random.default_rng(2)).save(path)
    output = console()
    result = compare(Situations((str(path),)), ONLY, output)
    assert json.loads(json.dumps(result)) == result
    best = result["schedulers"]["optimal capacity=1"]
    assert best["inter_node"] == pytest.approx(result["optimum"])
    assert {"inter_process", "nodes_used", "largest_load", "moved", "plan_ms", "ratio"} <= set(best)
    assert "tuples/s between" in " ".join(printed(output).split())  # wherever the line wraps


def test_a_file_too_large_for_the_optimum(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    large_situation(60, 8, np.random.default_rng(2)).save(path)
    result = compare(Situations((str(path),)), ["even"], console())
    assert result["optimum"] is None and result["schedulers"]["even"]["ratio"] is None


def test_either_a_file_or_random_situations() -> None:
    for wrong in (Situations(), Situations(("x",), random=3), Situations(history="x", random=3)):
        with pytest.raises(MillraceError, match="either --load FILE"):
            compare(wrong, [], console())
    with pytest.raises(MillraceError, match="at least 1"):
        compare(Situations(random=0), ["even"], console())
    with pytest.raises(BadSituation, match="no-such-file"):
        compare(Situations(("no-such-file",)), ["even"], console())


def test_schedulers_by_name() -> None:
    assert list(chosen(["even"])) == ["even"]
    assert chosen(["slstream", "slstream xi=1"]) == {"slstream": SlStream(), "slstream xi=1": SlStream(xi=1.0)}
    assert set(VARIANTS) < set(chosen([]))
    with pytest.raises(BadParameter, match="has no parameter 'speed'"):
        chosen(["slstream speed=9"])
    with pytest.raises(UnknownName, match="fastest"):
        chosen(["fastest"])


def test_several_files(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{seed}.json") for seed in (2, 3)]
    for seed, path in zip((2, 3), paths):
        random_situation(np.random.default_rng(seed)).save(path)
    result = compare(Situations(tuple(paths)), ["even", "optimal"], console())
    assert result["instances"] == 2 and result["files"] == paths
    assert result["schedulers"]["optimal"]["compared"] + result["zero_optimum"] == 2


def test_shapes_and_sizes() -> None:
    output = console()
    result = compare(Situations(random=2, shape="star", tasks=(40, 40), nodes=(3, 3), cores=2, pinned=1.0), ["even", "tstorm"],
                     output)
    assert result["unknown_optimum"] == 2 and result["shape"] == "star"
    assert "to the" in printed(output), "the optimum is not known, so the best of all takes its place"
    for row in result["schedulers"].values():
        assert row["failed"] == 0 and (row["best_ratio"] is None or row["best_ratio"] >= 1.0)
    with pytest.raises(BadParameter, match="no shape 'ring' of topologies; there are layered"):
        compare(Situations(random=1, shape="ring"), ["even"], console())


def test_random_situations_are_of_several_shapes_and_sizes_unless_one_is_named() -> None:
    rng, named = np.random.default_rng(1), np.random.default_rng(1)
    several = [_random_situation(Situations(), rng) for _ in range(40)]
    sizes = [sum(len(graph.tasks()) for graph in case.graphs) for case in several]
    assert min(sizes) < 8 and max(sizes) > 16, "with and without a known optimum"
    assert {node.cores for case in several for node in case.cluster.nodes} == set(CORES)
    stars = [_random_situation(Situations(shape="star", tasks=(9, 9), nodes=(3, 3), cores=2), named) for _ in range(10)]
    assert all(sum(len(graph.tasks()) for graph in case.graphs) == 9 for case in stars)
    assert {(len(case.cluster.nodes), node.cores) for case in stars for node in case.cluster.nodes} == {(3, 2)}


def test_columns_for_other_units_than_tuples(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    random_situation(np.random.default_rng(2)).save(path)
    for asked in (Situations((str(path),)), Situations(random=2)):
        plain, units = console(), console()
        rows = compare(asked, ["even", "tstorm"], plain)["schedulers"]
        assert rows["even"]["bytes"] is None and "bytes" not in printed(plain)
        rows = compare(asked, ["even", "tstorm minimise=bytes", "otd minimise=cost"], units)["schedulers"]
        assert all(row["bytes"] > 0 and row["cost"] > 0 for row in rows.values())
        assert "bytes" in printed(units) and "cost" in printed(units)


def test_windows_of_a_history(tmp_path: Path) -> None:
    case = random_situation(np.random.default_rng(2))
    history = History(f"sqlite:///{tmp_path}/history.db", "one", 3600.0, clock=lambda: 100.0)
    for at in (10.0, 20.0, 30.0):
        history.record_window(WindowSample(at, 10.0, case.load, case.plan,
                                           {slot.number: WorkerLoad(slot.node) for slot in case.cluster.slots},
                                           {node.name: NodeLoad(1.0, node.capacity_mhz) for node in case.cluster.nodes}))
    assert history.flush(30.0)
    history.close()
    result = compare(Situations(history=str(tmp_path / "history.db")), ["even", "tstorm"], console())
    assert result["instances"] == 3 and result["schedulers"]["even"]["failed"] == 0

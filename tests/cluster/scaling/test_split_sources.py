"""Sources that can be split: files, and blocking spouts; and what is refused."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.spout import ReplayableSpout, Spout
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.files import FileSpout
from millrace.errors import TopologyError
from millrace.model.graph import graph_of
from millrace.testing.local_cluster import LocalCluster
from support.scaling.scaled_runs import scale

LINES: list[str] = []
FILES, EACH = 9, 40


class Collect(Bolt):
    def process(self, tup: Tuple) -> None:
        LINES.append(tup.values[0])


class BlockingFiles(FileSpout):
    blocking: ClassVar[bool] = True


class Read(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.chunk.tuples": 5, "burst": 2}
    lines = FileSpout.spec(par=1, config={"splits": 4})
    collect = Collect.spec(inputs={lines: Grouping.GLOBAL})


class ReadBlocking(Topology):
    config: ClassVar[dict[str, Any]] = Read.config
    lines = BlockingFiles.spec(par=1, config={"splits": 4})
    collect = Collect.spec(inputs={lines: Grouping.GLOBAL})


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once", "exactly-once"])
@pytest.mark.parametrize("topology", [Read, ReadBlocking])
def test_files_are_read_once_and_in_order(tmp_path: Path, topology: Any, guarantee: str) -> None:
    LINES.clear()
    for file in range(FILES):
        (tmp_path / f"{file}.txt").write_text("".join(f"{file}-{line:03d}\n" for line in range(EACH)))
    cluster = LocalCluster(3, nodes=3)
    name = topology.__name__.lower()
    cluster.submit(topology, config={"path": str(tmp_path / "*.txt"), "topology.guarantee": guarantee})
    cluster.run_until(lambda: len(LINES) > 10)
    for par in (4, 2, 3):
        assert scale(cluster, name, {"lines": par})["outcome"] == "done"
    cluster.run_until(lambda: len(LINES) >= FILES * EACH)
    cluster.run(0.2)
    assert set(Counter(LINES).values()) == {1}
    by_file = defaultdict[str, list[str]](list)
    for line in LINES:
        by_file[line.partition("-")[0]].append(line)
    assert all(lines == sorted(lines) for lines in by_file.values())


class Thirds(ReplayableSpout):
    outputs: ClassVar[list[str]] = ["n"]
    splits = 3

    def next_tuple(self) -> None: ...

    def seek(self, position: int) -> None: ...


@pytest.mark.parametrize(("config", "par", "says"), [
    ({"splits": -1}, 1, "splits of .*spout.* is -1: give a whole number from 1 to"),
    ({"splits": "many"}, 1, "splits of .*spout.* is 'many'"),
    ({"splits": 2}, 3, "'spout' has par 3 but only 2 splits"),
    (None, 4, "'spout' has par 4 but only 3 splits"),
])
def test_numbers_that_cannot_be(config: dict[str, Any] | None, par: int, says: str) -> None:
    topology = type("Refused", (Topology,), {"__module__": __name__, "spout": Thirds.spec(par=par, config=config)})
    with pytest.raises(TopologyError, match=says):
        graph_of(topology)


def test_the_splits_of_a_dataframe_are_checked() -> None:
    for splits, says in ((-1, "splits of .* is -1"), (2, "'lines' has par 3 but only 2 splits")):
        spec = Spout.from_dataframe("support.none:frame", outputs=["n"], par=3, splits=splits)
        with pytest.raises(TopologyError, match=says):
            graph_of(type("Refused", (Topology,), {"__module__": __name__, "lines": spec}))


def test_the_class_or_the_config_sets_them() -> None:
    topology = type("Declared", (Topology,), {"__module__": __name__, "spout": Thirds.spec(par=2),
                                              "other": Thirds.spec(config={"splits": 0}, par=5)})
    assert graph_of(topology).splits == {"spout": 3}

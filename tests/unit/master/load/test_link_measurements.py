"""Costs of links on the master: the file comes before measurements, which are requested node by node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from millrace.control.assignment import WorkerAddress
from millrace.control.workers import WorkerView
from millrace.errors import BadLinks
from millrace.master.load.cluster_links import ClusterLinks
from millrace.model.cluster import Node

MS = 1e-3
PERIOD = {"cluster.links.period.secs": 10.0}


def workers(*nodes: str, tcp: bool = True) -> dict[int, WorkerView]:
    return {slot: WorkerView(WorkerAddress(slot, 1, node, "", "", f"tcp://127.0.0.{slot}:1" if tcp else ""), "e",
                             Node(node, 1, 1.0, 1)) for slot, node in enumerate(nodes)}


def test_a_node_measures_one_other_each_period() -> None:
    links = ClusterLinks(PERIOD)
    assert links.to_measure("a", 0.0) == ("", []), "no node is known yet"
    links.end_window(workers("a", "b", "c", "b"))
    assert links.to_measure("a", 0.0) == ("b", ["tcp://127.0.0.1:1", "tcp://127.0.0.3:1"])
    assert links.to_measure("a", 9.9) == ("", [])
    assert links.to_measure("b", 9.9)[0] == "c"
    assert links.to_measure("a", 10.0)[0] == "c"
    assert links.to_measure("a", 20.0)[0] == "b"


@pytest.mark.parametrize("uptime", [0.0, 700.1, 1500.1, 3000.1, 10_000.1, 1e6 + 0.1])
def test_a_node_measures_at_once_however_long_the_machine_has_been_up(uptime: float) -> None:
    links = ClusterLinks({"cluster.links.period.secs": 0.05})
    links.end_window(workers("a", "b"))
    assert links.to_measure("a", uptime)[0] == "b"


def test_nothing_is_measured_without_tcp_or_if_that_is_off() -> None:
    for links, tcp in ((ClusterLinks(PERIOD), False), (ClusterLinks({"cluster.links.period.secs": 0}), True)):
        links.end_window(workers("a", "b", tcp=tcp))
        assert links.to_measure("a", 0.0) == ("", [])


def costs(links: ClusterLinks, *nodes: str) -> Mapping[tuple[str, str], float]:
    links.end_window(workers(*nodes))
    return links.costs


def test_measurements_become_costs_at_the_end_of_the_window() -> None:
    links = ClusterLinks(PERIOD)
    links.end_window(workers("a", "b", "c"))
    links.take("a", [("b", MS, 0.0), ("c", 4 * MS, 125e6), ("a", MS, 0.0), ("gone", MS, 0.0)])
    found = costs(links, "a", "b", "c")
    assert found == {("a", "c"): 4.0}, "links of cost 1 are left out"
    assert costs(links, "a", "b", "c") is found, "the same value while nothing changes"
    assert links.to_json() == [
        {"nodes": ["a", "b"], "cost": 1.0, "given": False, "round_trip_ms": 1.0, "bandwidth_mbps": None},
        {"nodes": ["a", "c"], "cost": 4.0, "given": False, "round_trip_ms": 4.0, "bandwidth_mbps": 1000.0}]
    links.take("c", [("a", MS, 0.0)])
    assert not costs(links, "a", "b", "c")
    links.take("b", [("c", 8 * MS, 0.0)])
    assert costs(links, "a", "b", "c") == {("b", "c"): 8.0}
    assert not costs(links, "a", "b")
    assert [link["nodes"] for link in links.to_json()] == [["a", "b"]]


def test_the_file_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "links.toml"
    path.write_text('[[links]]\nbetween = ["c", "a"]\ncost = 7\n[[links]]\nbetween = ["b", "c"]\ncost = 1')
    links = ClusterLinks({"cluster.links.file": str(path)})
    assert costs(links, "a", "b", "c") == {("a", "c"): 7.0}
    links.take("a", [("b", MS, 0.0), ("c", 4 * MS, 0.0)])
    links.take("b", [("c", 9 * MS, 0.0)])
    assert costs(links, "a", "b", "c") == {("a", "c"): 7.0}
    assert [(link["given"], link["cost"]) for link in links.to_json()] == [(False, 1.0), (True, 7.0), (True, 1.0)]
    assert not costs(links, "a", "b")
    assert costs(links, "a", "b", "c", "d") == {("a", "c"): 7.0}


def test_a_file_that_cannot_be_used_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadLinks, match="cannot be read from"):
        ClusterLinks({"cluster.links.file": str(tmp_path / "none.toml")})

"""Costs of links from a file: zones, links, and errors that say what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import BadLinks
from millrace.model.link_table import LinkTable

RACKS = """
between_zones = 4.0

[zones]
rack1 = ["host-1*", "host-20"]
rack2 = ["host-3*"]
far = ["cloud/*"]

[[links]]
between = ["rack2", "rack1"]
cost = 2.5

[[links]]
between = ["host-10", "host-30"]
cost = 9
"""


def costs(table: LinkTable, *nodes: str) -> dict[tuple[str, str], float]:
    return table.costs(nodes)


def test_zones_and_links(tmp_path: Path) -> None:
    path = tmp_path / "links.toml"
    path.write_text(RACKS)
    table = LinkTable.read(path)
    assert costs(table, "host-11", "host-20", "host-31", "cloud/7") == {
        ("host-11", "host-20"): 1.0, ("host-11", "host-31"): 2.5, ("host-20", "host-31"): 2.5,
        ("cloud/7", "host-11"): 4.0, ("cloud/7", "host-20"): 4.0, ("cloud/7", "host-31"): 4.0}
    assert costs(table, "host-10", "host-30") == {("host-10", "host-30"): 9.0}, "a link of two nodes comes first"
    assert costs(table, "host-30", "host-10") == {("host-10", "host-30"): 9.0}
    assert costs(table, "host-11", "elsewhere") == {}, "nothing is said about a node without a zone"


def test_zones_without_a_cost_between_them(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    path.write_text(json.dumps({"zones": {"a": ["a"], "b": ["b", "c"]}}))
    assert costs(LinkTable.read(path), "a", "b", "c") == {("b", "c"): 1.0}


def test_a_zone_may_cost_more_within() -> None:
    table = LinkTable.of({"zones": {"slow": ["n*"]}, "links": [{"between": ["slow", "slow"], "cost": 3}]}, "here")
    assert costs(table, "n1", "n2") == {("n1", "n2"): 3.0}


@pytest.mark.parametrize(("data", "message"), [
    ([], r"here has list; it may have between_zones, zones, links"),
    ({"racks": {}}, r"the key 'racks'; it may have"),
    ({"zones": {"a": "host"}}, r"zones must name for each zone a list of nodes"),
    ({"zones": ["a"]}, r"zones must name for each zone a list of nodes"),
    ({"links": {"between": ["a", "b"]}}, r"links must be a list of tables, written \[\[links\]\]"),
    ({"links": [{"between": ["a", "b"]}]}, r"a link has two keys, between and cost"),
    ({"links": [{"between": ["a"], "cost": 1}]}, r"between two zones or two nodes, not \['a'\]"),
    ({"links": [{"between": ["a", "b"], "cost": 0}]}, r"the link between a and b costs 0; a cost is a number above 0"),
    ({"links": [{"between": ["a", "b"], "cost": "2"}]}, r"costs '2'"),
    ({"between_zones": True}, r"between_zones costs True"),
    ({"between_zones": float("nan")}, r"between_zones costs nan"),
])
def test_a_wrong_file_is_refused(data: Any, message: str) -> None:
    with pytest.raises(BadLinks, match=message):
        LinkTable.of(data, "here")


@pytest.mark.parametrize(("name", "content", "message"), [
    ("links.toml", "zones = ", r"links\.toml, with the costs of links, is not TOML"),
    ("links.json", "{", r"is not JSON"),
    ("gone.toml", None, r"cannot be read from .*gone\.toml.*Set cluster\.links\.file"),
])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(BadLinks, match=message):
        LinkTable.read(tmp_path / name)

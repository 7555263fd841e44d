"""Costs of traffic between nodes as a user gives them in a file: zones of nodes, and costs between zones or single nodes.

    between_zones = 4.0                  # nodes of different zones, unless a link says otherwise

    [zones]
    rack1 = ["host-1*", "host-20"]       # names of nodes, or patterns
    rack2 = ["host-3*"]

    [[links]]
    between = ["rack1", "rack2"]         # two zones, or two nodes
    cost = 2.5

Nodes of one zone cost 1. A pair of nodes of which the file says nothing has no cost here.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from millrace.errors import BadLinks
from millrace.model.cluster import LINK_COST, pair_of
from millrace.model.frozen import FrozenMap

KEYS = ("between_zones", "zones", "links")


@dataclass(frozen=True, slots=True)
class LinkTable:
    """`zones`: patterns of the nodes in each. `links`: cost between two zones or nodes. `between_zones`: that of all others."""

    zones: Mapping[str, tuple[str, ...]] = field(default_factory=FrozenMap)
    links: Mapping[tuple[str, str], float] = field(default_factory=FrozenMap)
    between_zones: float | None = None

    def costs(self, nodes: Iterable[str]) -> dict[tuple[str, str], float]:
        """The cost of each pair of these nodes of which the file says something. A link of the two nodes comes before that of
        their zones."""
        names = sorted(nodes)
        zone_of = {name: zone for name in names if (zone := self.zone_of(name)) is not None}
        between = {one: {other: self._between(one, other) for other in self.zones} for one in self.zones}
        zoned = list(zone_of.items())  # in the order of their names
        costs = {(one, other): cost for position, (one, zone) in enumerate(zoned) for other, other_zone in zoned[position + 1:]
                 if (cost := between[zone][other_zone]) is not None}
        present = set(names)
        return costs | {pair: cost for pair, cost in self.links.items() if present.issuperset(pair) and pair[0] != pair[1]}

    def zone_of(self, node: str) -> str | None:
        """The first zone with a pattern that matches the node."""
        return next((zone for zone, patterns in self.zones.items()
                     if any(fnmatchcase(node, pattern) for pattern in patterns)), None)

    def _between(self, one: str, other: str) -> float | None:
        return self.links.get(pair_of(one, other), LINK_COST if one == other else self.between_zones)

    @classmethod
    def read(cls, path: str | Path) -> LinkTable:
        """Reads a TOML file, or a JSON file of the same structure if its name ends in .json."""
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise BadLinks(f"the costs of links cannot be read from {path}: {error}. Set cluster.links.file to a TOML or JSON "
                           "file, or leave it out") from error
        try:
            data = json.loads(text) if str(path).endswith(".json") else tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            kind = "JSON" if str(path).endswith(".json") else "TOML"
            raise BadLinks(f"{path}, with the costs of links, is not {kind}: {error}") from error
        return cls.of(data, str(path))

    @classmethod
    def of(cls, data: Any, where: str) -> LinkTable:
        """Checks what a file contains. `where`: its name, for errors."""
        if not isinstance(data, dict) or (unknown := [key for key in data if key not in KEYS]):
            found = f"the key {unknown[0]!r}" if isinstance(data, dict) else type(data).__name__
            raise BadLinks(f"{where} has {found}; it may have {', '.join(KEYS)}")
        zones, links, between = data.get("zones", {}), data.get("links", []), data.get("between_zones")
        if not isinstance(zones, dict) or not all(_are_names(patterns) for patterns in zones.values()):
            raise BadLinks(f"{where}: zones must name for each zone a list of nodes, for example rack1 = [\"host-1*\"]")
        if not isinstance(links, list):
            raise BadLinks(f"{where}: links must be a list of tables, written [[links]] in TOML")
        return cls(FrozenMap({zone: tuple(patterns) for zone, patterns in zones.items()}),
                   FrozenMap(_link(link, where) for link in links),
                   None if between is None else _cost(between, "between_zones", where))


def _link(link: Any, where: str) -> tuple[tuple[str, str], float]:
    if not isinstance(link, dict) or set(link) != {"between", "cost"}:
        raise BadLinks(f"{where}: a link has two keys, between and cost, and this one is {link!r:.100}")
    names = link["between"]
    if not _are_names(names) or len(names) != 2:
        raise BadLinks(f"{where}: a link is between two zones or two nodes, not {names!r:.100}")
    return pair_of(*names), _cost(link["cost"], f"the link between {names[0]} and {names[1]}", where)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _cost(value: Any, what: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 and math.isfinite(value)):
        raise BadLinks(f"{where}: {what} costs {value!r}; a cost is a number above 0, and 1 is usual")
    return float(value)

"""The input of a scheduler as one value that can be saved to a file, so that a decision can be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from millrace.errors import BadSituation, MillraceError
from millrace.model.cluster import Cluster
from millrace.model.frozen import FrozenMap
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.redaction import redacted

FORMAT = "millrace-situation-1"


@dataclass(frozen=True, slots=True)
class Situation:
    """Topologies, cluster, and by topology name the load and the plan in force."""

    graphs: tuple[TopologyGraph, ...]
    cluster: Cluster
    load: Mapping[str, Load] = field(default_factory=FrozenMap)
    plan: Mapping[str, Plan] = field(default_factory=FrozenMap)

    def __post_init__(self) -> None:
        object.__setattr__(self, "graphs", tuple(self.graphs))
        object.__setattr__(self, "load", FrozenMap(self.load))
        object.__setattr__(self, "plan", FrozenMap(self.plan))

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "graphs": [redacted(msgspec.to_builtins(graph)) for graph in self.graphs],  # their configs may have URLs
            "cluster": self.cluster.to_json(),
            "load": {name: load.to_json() for name, load in self.load.items()},
            "plan": {name: plan.to_json() for name, plan in self.plan.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Situation:
        """Reads the output of `to_json`; raises `BadSituation` for anything else."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            actual = data.get("format") if isinstance(data, Mapping) else type(data).__name__
            raise BadSituation(f"expected a situation in format {FORMAT!r}, found {actual!r}: write one with "
                               "`millrace load --save FILE`")
        try:
            return cls(
                graphs=tuple(msgspec.convert(graph, TopologyGraph) for graph in data["graphs"]),
                cluster=Cluster.from_json(data["cluster"]),
                load={name: _load(load) for name, load in data["load"].items()},
                plan={name: Plan.from_json(plan) for name, plan in data["plan"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, MillraceError) as error:
            raise BadSituation(f"a situation cannot be read: {type(error).__name__}: {error}. Write a new one with "
                               "`millrace load --save FILE`") from error

    def save(self, path: str | Path) -> None:
        try:
            Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(self.to_json()), indent=1))
        except OSError as error:
            raise MillraceError(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def read(cls, path: str | Path) -> Situation:
        try:
            data = msgspec.json.decode(Path(path).read_bytes())
        except OSError as error:
            raise BadSituation(f"cannot read {path}: {error.strerror}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadSituation(f"{path} is not JSON: {error}. Write one with `millrace load --save FILE`") from error
        return cls.from_json(data)


def _load(data: Mapping[str, Any]) -> Load:
    load = Load.from_json(data)
    for (source, target), tuples in load.traffic.items():
        if not isinstance(tuples, int | float):
            raise ValueError(f"the traffic from {source} to {target} is {tuples!r}, which is not a number")
    return load

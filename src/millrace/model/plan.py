"""A plan: the slot of every task of one topology and the owners of its key groups. Immutable and versioned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millrace.config import KEY_GROUP_COUNT
from millrace.errors import TopologyError
from millrace.model.frozen import FrozenMap
from millrace.model.graph import TaskId

KEY_GROUPS: int = KEY_GROUP_COUNT.default


class KeyGroupMove(NamedTuple):
    """A key group of a component that moves from one task to another."""

    component: str
    key_group: int
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """The changes from one plan to another, in sorted order."""

    started: tuple[TaskId, ...]
    stopped: tuple[TaskId, ...]
    moved: tuple[TaskId, ...]
    key_groups: tuple[KeyGroupMove, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.started or self.stopped or self.moved or self.key_groups)


@dataclass(frozen=True, slots=True)
class Plan:
    """Task -> slot number, and for each keyed component the task index that owns each key group."""

    version: int
    placement: Mapping[TaskId, int]
    key_groups: Mapping[str, tuple[int, ...]] = field(default_factory=FrozenMap)

    def __post_init__(self) -> None:
        object.__setattr__(self, "placement", FrozenMap(self.placement))
        object.__setattr__(self, "key_groups", FrozenMap({name: tuple(owners)
                                                          for name, owners in self.key_groups.items()}))

    @property
    def parallelism(self) -> dict[str, int]:
        """Tasks of each component."""
        return dict(Counter(task.component for task in self.placement))

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON: the placement by the tasks' names."""
        return {"version": self.version, "placement": {str(task): slot for task, slot in self.placement.items()},
                "key_groups": {name: list(owners) for name, owners in self.key_groups.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Reads the output of `to_json`."""
        return cls(int(data["version"]), {TaskId.parse(task): int(slot) for task, slot in data["placement"].items()},
                   {name: tuple(map(int, owners)) for name, owners in data["key_groups"].items()})

    @staticmethod
    def diff(old: Plan, new: Plan) -> PlanDifference:
        """The changes from `old` to `new`. Versions are not compared."""
        before, after = old.placement, new.placement
        for name, owners in new.key_groups.items():
            if len(old.key_groups.get(name, owners)) != len(owners):
                raise ValueError(f"{name!r} has {len(old.key_groups[name])} key groups in one plan and {len(owners)} "
                                 "in the other: their number is fixed while a topology runs")
        return PlanDifference(
            started=tuple(task for task in after if task not in before),
            stopped=tuple(task for task in before if task not in after),
            moved=tuple(task for task in after if task in before and before[task] != after[task]),
            key_groups=tuple(KeyGroupMove(name, group, was, now)
                             for name, owners in new.key_groups.items() if name in old.key_groups
                             for group, (was, now) in enumerate(zip(old.key_groups[name], owners, strict=True))
                             if was != now),
        )


def initial_key_groups(groups: int, par: int) -> tuple[int, ...]:
    """The initial owner of each key group: contiguous ranges, as even as possible."""
    _check_key_groups(groups, par)
    return tuple(group * par // groups for group in range(groups))


def rescaled_key_groups(old: Sequence[int], par: int) -> tuple[int, ...]:
    """The owners after a change to `par` tasks: as even as possible, with the fewest key groups moved."""
    _check_key_groups(len(old), par)
    counts = Counter(owner for owner in old if owner < par)
    least, larger = divmod(len(old), par)
    # The shares that are one larger go to the tasks that own most already, because they keep most.
    by_size = sorted(range(par), key=lambda task: (-counts[task], task))
    room = {task: least + (rank < larger) for rank, task in enumerate(by_size)}
    new = []
    for owner in old:
        keeps = owner < par and room[owner] > 0
        if keeps:
            room[owner] -= 1
        new.append(owner if keeps else -1)
    takers = iter([task for task in range(par) for _ in range(room[task])])
    return tuple(next(takers) if owner < 0 else owner for owner in new)


def fewest_group_moves(old: Sequence[int], par: int) -> int:
    """The least number of key groups that change owner if `par` tasks are to own them as evenly as possible."""
    _check_key_groups(len(old), par)
    kept = Counter(owner for owner in old if owner < par)
    least, larger = divmod(len(old), par)
    shares = [least + (rank < larger) for rank in range(par)]
    by_size = sorted((kept[task] for task in range(par)), reverse=True)
    return len(old) - sum(map(min, by_size, shares))


def _check_key_groups(groups: int, par: int) -> None:
    if par < 1:
        raise TopologyError(f"key groups cannot be distributed over {par} tasks: par must be at least 1")
    if groups < par:
        raise TopologyError(f"{groups} key groups are too few for {par} tasks: lower par, or raise "
                            f"{KEY_GROUP_COUNT.key} to at least {par}")

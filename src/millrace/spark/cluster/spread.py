"""Decides on which executors the workers start, and for how long to wait for more executors before that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.spark.cluster.placement import Executor


def spread(slots: int, executors: Sequence[Executor], cpus: int = 1) -> list[Executor | None]:
    """The executor of each slot: on the host with the fewest workers, there on the executor with the fewest. None, which is
    anywhere, once no executor has a free core. `cpus`: cores of a task."""
    room = {executor.id: max(0, executor.cores // cpus - executor.busy) for executor in executors}
    on_host: Counter[str] = Counter()
    on_executor: Counter[str] = Counter()
    places: list[Executor | None] = []
    for _ in range(slots):
        open_ones = [executor for executor in executors if on_executor[executor.id] < room[executor.id]]
        place = min(open_ones, key=lambda executor: (on_host[executor.host], on_executor[executor.id]), default=None)
        if place is not None:
            on_host[place.host] += 1
            on_executor[place.id] += 1
        places.append(place)
    return places


@dataclass(frozen=True, slots=True)
class Expected:
    """The executors that Spark will start, as far as its settings say; 0: they do not."""

    executors: int = 0
    cores: int = 0

    @classmethod
    def of(cls, conf: Mapping[str, str], local_executors: int = 0) -> Expected:
        """`local_executors`: those of a local-cluster master."""
        if conf.get("spark.dynamicAllocation.enabled", "false").strip().lower() == "true":
            # Others come when tasks wait for them.
            return cls(max(1, *(int(conf.get(f"spark.dynamicAllocation.{key}Executors", "0")) for key in ("initial", "min"))))
        return cls(local_executors or int(conf.get("spark.executor.instances", "0")), int(conf.get("spark.cores.max", "0")))


def all_registered(executors: Sequence[Executor], slots: int, cpus: int, expected: Expected, now: float,
                   settle_seconds: float) -> bool:
    """True if no other executor is worth waiting for: all that are expected have come or, if that is not known, there is room
    for all workers and no executor has come for `settle_seconds`. `now`: seconds since the epoch."""
    if expected.executors:
        return len(executors) >= expected.executors
    if expected.cores and sum(executor.cores for executor in executors) >= expected.cores:
        return True
    room = sum(max(0, executor.cores // cpus - executor.busy) for executor in executors)
    return room >= slots and now - max(executor.added for executor in executors) >= settle_seconds

"""Decides on which executors the workers start, and for how long to wait for more executors before that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.spark.cluster.placement import Executor


def spread(slots: int, executors: Sequence[Executor], cpus: int = 1,
           workers: Mapping[str, int] | None = None) -> list[Executor | None]:
    """The executor of each new slot: on the host with the fewest workers, there on the executor with the fewest. None, which is
    anywhere, once no executor has a free core. `cpus`: cores of a task. `workers`: by executor, those that run already; they
    are among its `busy` tasks."""
    room = {executor.id: free_on(executor, cpus) for executor in executors}
    on_executor = Counter(workers or {})
    on_host: Counter[str] = Counter()
    for executor in executors:
        on_host[executor.host] += on_executor[executor.id]
    placed: Counter[str] = Counter()
    places: list[Executor | None] = []
    for _ in range(slots):
        open_ones = [executor for executor in executors if placed[executor.id] < room[executor.id]]
        place = min(open_ones, key=lambda executor: (on_host[executor.host], on_executor[executor.id]), default=None)
        if place is not None:
            on_host[place.host] += 1
            on_executor[place.id] += 1
            placed[place.id] += 1
        places.append(place)
    return places


def free_on(executor: Executor, cpus: int = 1) -> int:
    """Tasks that the executor can run beside those that it runs. One that is not ready runs none yet: Spark would wait only
    for `spark.locality.wait`, and then start the task on another."""
    return max(0, executor.cores // cpus - executor.busy) if executor.ready else 0


def missing_executors(workers: int, executors: Sequence[Executor], cpus: int = 1) -> int:
    """Executors, of the size of the largest, that are missing for so many workers."""
    missing = workers - sum(free_on(executor, cpus) for executor in executors)
    each = max((executor.cores // cpus for executor in executors), default=1) or 1
    return max(0, -(-missing // each))


def is_spare(executor: str, executors: Sequence[Executor], workers: Mapping[str, int], others_need_cores: bool,
             cpus: int = 1) -> bool:
    """True if the executor can be given back: it runs nothing, and is not the last. `others_need_cores`: something besides
    workers runs on the cluster, for which a core of another executor must be free then. `workers`: by executor."""
    it = next((each for each in executors if each.id == executor), None)
    others = [each for each in executors if each.id != executor]
    if it is None or it.busy or workers.get(executor, 0) or not others:
        return False
    return not others_need_cores or sum(free_on(each, cpus) for each in others) > 0


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
    """True if no other executor is worth waiting for: all that have come are ready, and all that are expected have come or, if
    that is not known, there is room for all workers and no executor has come for `settle_seconds`. `now`: seconds since the
    epoch."""
    if not all(executor.ready for executor in executors):
        return False
    if expected.executors:
        return len(executors) >= expected.executors
    if expected.cores and sum(executor.cores for executor in executors) >= expected.cores:
        return True
    room = sum(free_on(executor, cpus) for executor in executors)
    return room >= slots and now - max(executor.added for executor in executors) >= settle_seconds

"""CPU that processes other than workers use on each machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from millrace.master.load.monitor import WorkerMeters

PAST = 0.5  # weight of the earlier windows


class OtherProcesses:
    """Smooths what others use over the windows. A machine is forgotten when it has no workers."""

    def __init__(self) -> None:
        self._last: dict[int, WorkerMeters] = {}
        self._cores: dict[str, float] = {}

    def end_window(self, workers: Mapping[int, WorkerMeters], machines: Mapping[int, str]) -> dict[str, float]:
        """Cores in use by other processes, by machine. `machines`: of the workers. Each worker's use is taken by its own clock,
        since their reports do not come at the same moment."""
        ours: defaultdict[str, float] = defaultdict(float)
        in_all: defaultdict[str, float] = defaultdict(float)
        unknown: set[str] = set()  # machines with a worker that has joined in the window
        for slot, machine in machines.items():
            now, before = workers.get(slot), self._last.get(slot)
            if now is None or before is None or before.generation != now.generation or now.at <= before.at:
                unknown.add(machine)
                continue
            seconds = now.at - before.at
            ours[machine] += (now.cpu_seconds - before.cpu_seconds) / seconds
            in_all[machine] = max(in_all[machine], (now.machine_cpu_seconds - before.machine_cpu_seconds) / seconds)
        self._last = dict(workers)
        self._cores = {machine: self._smoothed(machine, in_all[machine] - ours[machine], machine in unknown)
                       for machine in set(machines.values()) if machine in self._cores or machine not in unknown}
        return dict(self._cores)

    def _smoothed(self, machine: str, cores: float, unknown: bool) -> float:
        before = self._cores.get(machine)
        if before is None:
            return max(cores, 0.0)
        return before if unknown else PAST * before + (1 - PAST) * max(cores, 0.0)

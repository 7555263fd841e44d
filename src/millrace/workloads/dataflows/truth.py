"""The truth of a dataflow, computed from its edges and the positions of its source, and the sink's records compared with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from millrace.workloads.audit import AuditResult, compare_records
from millrace.workloads.dataflows.shapes import Dataflow
from millrace.workloads.dataflows.tasks import EVENT_KEYS, TRAIL_MARK, event_keys, trail_crc


def audit_events(directory: str | Path, dataflow: Dataflow, expected: Mapping[int, int]) -> AuditResult:
    """Checks all part files in `directory`: each event must have arrived once by each path. Every number counts arrivals.
    `expected`: the number of positions that each task of the source, by index, has sent."""
    trails = ["".join(TRAIL_MARK + task for task in trail) for trail in dataflow.trails()]
    crcs = np.sort(np.array([trail_crc(trail) for trail in trails], "<u4"))

    def places(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        trail = np.minimum(np.searchsorted(crcs, records["crc"]), len(crcs) - 1)
        return np.isin(records["task"], list(expected)) & (crcs[trail] == records["crc"]), trail

    return compare_records(directory, expected, len(crcs), places)


def true_events(dataflow: Dataflow, expected: Mapping[int, int]) -> dict[str, int]:
    """The number of events that each task, with all its instances, must have counted."""
    return {task: dataflow.arrivals(task) * sum(expected.values()) for task in dataflow.tasks}


def true_key_counts(dataflow: Dataflow, expected: Mapping[int, int], keys: int = EVENT_KEYS) -> dict[str, Counter[str]]:
    """The events of each key that each task of a keyed dataflow, with all its instances, must have counted."""
    names, sources = event_keys(keys), len(expected)
    of_key = Counter(names[(position * sources + task) % keys] for task, sent in expected.items() for position in range(sent))
    return {task: Counter({key: n * dataflow.arrivals(task) for key, n in of_key.items()}) for task in dataflow.tasks}

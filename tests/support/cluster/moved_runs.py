"""Helpers for the tests of moves: the counts of flaws, and the comparison of a run without faults with the truth."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from millrace.control.migrations import Flow
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import expected_counts, expected_rows
from support.cluster.wave_runs import LIMIT, counts, tasks


def at_rest(cluster: LocalCluster, name: str = "exact") -> bool:
    return cluster.master.topologies[name].handover.at_rest


def flaws(cluster: LocalCluster) -> dict[str, int]:
    """The counts, if any, of chunks lost and repeated, and of tuples replayed and failed: of all tasks of the plan, those that
    leave, and those that have ended. Failures of the last show as replays of their spouts. What a worker has counted ends with
    it, unless it is in the record of a migration."""
    found: Counter[str] = Counter()
    for worker in cluster.workers.values():
        found["stale"] += worker.counters["stale"]
        for run in worker.topologies.values():
            found.update(run.meters.flow(task.meters for task in run.everyone())._asdict())
            found["failed"] += sum(task.meters.failed for task in run.everyone())
    for record in cluster.migrations.past():
        found.update({f"{name} in a record": record[name] or 0 for name in Flow._fields})
    return {name: count for name, count in found.items() if count}


def until_processed(cluster: LocalCluster) -> None:
    """Run until the spouts have sent everything, and all of it is processed. Not for exactly-once."""
    cluster.run_until(lambda: all(task.component.exhausted and not task.component.unacked_tuples
                                  for task in tasks(cluster, "numbers")))
    cluster.run(0.5)


def assert_once_in_order(cluster: LocalCluster, limit: int = LIMIT, ways: int = 1) -> None:
    """Every row was counted and written once on each of its ways, and in order; one way in `AtLeast` and `AtMost`."""
    assert counts(cluster) == expected_counts(limit, ways)
    assert Counter((key, number) for key, number, _ in parts.WRITTEN) == expected_rows(limit, ways)
    _assert_received_in_order({task.number for task in tasks(cluster, "numbers")})
    for index, rows in parts.WRITTEN_BY_TASK.items():
        latest: dict[str, int] = {}
        for key, _, count in rows:
            assert latest.get(key, 0) < count, f"ledger[{index}] got count {count} of {key} after {latest[key]}"
            latest[key] = count


def assert_at_most_once_in_order(cluster: LocalCluster, ways: int = 1) -> None:
    """No row was processed or written twice on one of its ways, and those that arrived are in order; rows of senders that read
    from no spout are only counted. After a loss of a worker without spouts."""
    assert max(Counter((key, number) for key, number, _ in parts.WRITTEN).values()) == ways
    spouts = {task.number for task in tasks(cluster, "numbers")}
    from_spouts, passed, received = _received(spouts)
    for (sender, receiver), numbers in from_spouts.items():
        assert all(one < other for one, other in pairwise(numbers)), f"task {receiver} got rows of spout {sender} out of order"
    readers = {receiver for receiver, _ in passed}
    for line, numbers in received.items():
        if line[0] not in readers:
            continue
        sent = iter(passed[line])
        assert all(number in sent for number in numbers), f"rows of {line} arrived twice, or in the wrong order: {numbers}"


def _received(spouts: set[int]) -> tuple[dict[tuple[int, int], list[int]], dict[tuple[int, str], list[int]],
                                         dict[tuple[int, str], list[int]]]:
    """The numbers that came from each spout to each task; those of a key that each task passed on; and those that came from
    it."""
    from_spouts = defaultdict[tuple[int, int], list[int]](list)
    passed, received = defaultdict[tuple[int, str], list[int]](list), defaultdict[tuple[int, str], list[int]](list)
    for receiver, sender, key, number in parts.RECEIVED:
        if sender in spouts:
            from_spouts[sender, receiver].append(number)
            passed[receiver, key].append(number)
        else:
            received[sender, key].append(number)
    return from_spouts, passed, received


def _assert_received_in_order(spouts: set[int]) -> None:
    """A bolt gets the rows of a spout in the order of their numbers. The tally gets the rows of a key and a sender in the order
    in which that sender got them, whichever of its tasks owns the key. Rows of senders that read from no spout are only
    counted."""
    from_spouts, passed, received = _received(spouts)
    for (sender, receiver), numbers in from_spouts.items():
        wrong = [pair for pair in pairwise(numbers) if pair[0] >= pair[1]]
        assert not wrong, f"task {receiver} got rows of spout {sender} in the wrong order: {wrong[:5]}"
    readers = {receiver for receiver, _ in passed}
    assert {line: numbers for line, numbers in received.items() if line[0] in readers} == passed

"""Bolts that take their time, and the audit of the elastic topologies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from millrace.connectors.load import LOAD_FIELDS, keys_of, pattern_of
from millrace.connectors.patterns import step
from millrace.connectors.shifting_keys import ShiftingKeys
from millrace.errors import TopologyError
from millrace.model.graph import graph_of
from millrace.testing.components import rows, start, tuples, values
from millrace.testing.reference import run_reference
from millrace.workloads.audit import RECORD
from millrace.workloads.elastic import ElasticLoad, LoadAudit, LoadSink, OrderedElasticLoad, audit_load, true_keys
from millrace.workloads.services import CountService, HarmonicBolt, ServiceBolt, harmonic_number

FIELDS = " ".join(LOAD_FIELDS)
TUPLES = tuples(FIELDS, [(0, 0, 7, 0.0), (0, 1, 3, 0.1), (0, 2, 7, 0.2)])
PATTERN, KEYS = step(10, 30, 1), ShiftingKeys(8, 1.0, 2.0)


def test_the_harmonic_bolt_computes_and_passes_on():
    assert harmonic_number(4) == pytest.approx(25 / 12)
    bolt = start(HarmonicBolt, {"terms": 3})
    for tup in TUPLES:
        bolt.process(tup)
    assert values(bolt) == [tuple(tup.values) for tup in TUPLES]


def waits_of(config: dict, calls: int = 1, cls: type[ServiceBolt] = ServiceBolt, **more) -> list[float]:
    waited: list[float] = []
    bolt = start(cls, config, wait=waited.append, **more)
    for _ in range(calls):
        bolt.call_service()
    return waited


def test_a_service_takes_its_time_and_passes_on():
    assert waits_of({"service_seconds": 0.2, "service_times": "constant"}, 2) == [0.2, 0.2]
    varying = waits_of({"service_seconds": 0.2}, 20_000)
    assert np.mean(varying) == pytest.approx(0.2, rel=0.03) and np.std(varying) == pytest.approx(0.2, rel=0.05)
    assert varying[:5] == waits_of({"service_seconds": 0.2}, 5) != waits_of({"service_seconds": 0.2}, 5, task_index=1)
    assert waits_of({"service_seconds": 0}) == []
    assert ServiceBolt.blocking and CountService.blocking


def test_a_count_service_waits_and_numbers_the_tuples_of_a_key():
    assert waits_of({"count_seconds": 0.3, "service_seconds": 9, "service_times": "constant"}, cls=CountService) == [0.3]
    bolt = start(CountService, {"count_seconds": 0})
    for tup in TUPLES:
        bolt.process(tup)
    assert [row[4] for row in values(bolt)] == [1, 1, 2]
    assert bolt.counts == {7: 2, 3: 1}


def test_unknown_service_times_are_refused():
    with pytest.raises(TopologyError, match="constant, exponential"):
        start(ServiceBolt, {"service_times": "normal"})


def records(count: int, keys: list[int] | None = None) -> np.ndarray:
    """The records of a faultless run with one source task."""
    truth = true_keys(PATTERN, KEYS, count) if keys is None else keys
    made, seen = np.zeros(count, RECORD), dict.fromkeys(range(KEYS.keys), 0)
    for number, key in enumerate(truth):
        seen[int(key)] += 1
        made[number] = (0, number, key, seen[int(key)])
    return made


def audited(path: Path, *parts: np.ndarray, sent: int = 100, ordered: bool = True) -> LoadAudit:
    for wave, part in enumerate(parts, 9):  # wave 9 sorts before wave 10
        part.tofile(path / f"part-0-w{wave}-1-x{LoadSink.suffix}")
    return audit_load(path, {0: sent}, PATTERN, KEYS, ordered)


def test_a_faultless_run_is_exact(tmp_path: Path):
    whole = records(100)
    result = audited(tmp_path, whole[:60], whole[60:])
    assert result.exact and result.rows.tuples_in == result.rows.tuples_out == 100


def test_a_lost_tuple_is_found(tmp_path: Path):
    result = audited(tmp_path, np.delete(records(100), 40))
    assert (result.rows.lost, result.rows.repeated, result.wrong_counts, result.disordered) == (1, 0, 1, 0)
    assert not result.exact


def test_a_repeated_tuple_is_found(tmp_path: Path):
    whole = records(100)
    result = audited(tmp_path, np.insert(whole, 40, whole[39]))
    assert (result.rows.lost, result.rows.repeated, result.wrong_counts) == (0, 1, 1)


def test_two_tuples_of_a_key_in_the_wrong_order_are_found(tmp_path: Path):
    whole = records(100)
    first, second = np.flatnonzero(whole["index"] == whole["index"][20])[:2]
    whole[[first, second]] = whole[[second, first]]
    result = audited(tmp_path, whole)
    assert result.rows.exact and not result.wrong_counts and (result.disordered, result.overtaken) == (1, 1)


def test_tuples_that_overtake_each_other_before_the_count_are_found_in_an_ordered_topology_only(tmp_path: Path):
    whole = records(100)
    first, second = np.flatnonzero(whole["index"] == whole["index"][20])[:2]
    whole["position"][[first, second]] = whole["position"][[second, first]]
    assert audited(tmp_path, whole).overtaken == 1
    assert audited(tmp_path, whole, ordered=False).exact


def test_wrong_keys_and_counts_are_found(tmp_path: Path):
    whole = records(100)
    whole["index"][5] = (whole["index"][5] + 1) % KEYS.keys
    whole["task"][7] = 3
    result = audited(tmp_path, whole)
    assert result.rows.wrong == 2 and result.rows.lost == 2 and result.wrong_counts
    assert audit_load(tmp_path / "none", {0: 0}, PATTERN, KEYS).exact


def test_the_sink_writes_what_the_audit_reads(tmp_path: Path):
    sink = start(LoadSink, {"path": str(tmp_path)})
    sink.process_rows(rows(f"{FIELDS} count", [(0, 4, 7, 0.5, 2), (1, 2**40, 65_535, 0.6, 2**32 - 1)]))
    sink.close()
    [path] = tmp_path.glob("part-*")
    assert np.fromfile(path, RECORD).tolist() == [(0, 4, 7, 2), (1, 2**40, 65_535, 2**32 - 1)]


@pytest.mark.parametrize("topology", [ElasticLoad, OrderedElasticLoad])
@pytest.mark.parametrize("sources", [1, 3])
def test_a_reference_run_is_exact(topology, sources, tmp_path: Path):
    config = {"pattern": "burst", "rate": 10, "peak": 100, "period": 1, "length": 0.5, "keys": 16, "zipf": 1.0, "shift": 0.7,
              "begin": 0, "limit": 300, "service_seconds": 0, "count_seconds": 0, "path": str(tmp_path)}
    result = run_reference(topology, config=config, par={"load": sources})
    assert not result.errors
    spout = graph_of(topology, config=config).spouts[0]
    sent = {task.index: position for task, position in result.positions.items()}
    pattern, keys = (of(start(LoadSink, {"path": str(tmp_path)}), {**config, **spout.config}) for of in (pattern_of, keys_of))
    assert sum(sent.values()) == 300 and audit_load(tmp_path, sent, pattern, keys, topology is OrderedElasticLoad).exact

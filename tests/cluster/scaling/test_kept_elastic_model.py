"""The elastic model that a user chose is kept with the checkpoints: a resumed topology is scaled by it again."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.errors import BadParameter
from millrace.model.graph import batched, graph_of
from millrace.testing.local_cluster import MemoryStore
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import Exact
from support.cluster.wave_runs import until_wave
from support.load.elastic_cluster import ElasticCluster, load_of_line
from support.scaling.scaled_runs import Counting, par_of, scaled

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
NAME, SERVICE = "kept", 0.01
VALUES = {"c_max": 20, "utilization": 0.5, "cool_down": 7.0, "settle_windows": 1}


class Kept(Topology):
    config: ClassVar[dict[str, Any]] = Exact.config
    numbers = parts.Numbers.spec(par=1)
    tally = Counting.spec(inputs={numbers: Grouping.fields("key")}, par=2)


def begin(store: MemoryStore | None = None, resume: bool | None = None) -> ElasticCluster:
    cluster = ElasticCluster(3, nodes=3, store=store)
    parts.Numbers.clock = parts.Numbers.wall_clock = staticmethod(cluster.clock.now)
    cluster.submit(Kept, resume, config={"limit": 10**9, "rate": 100.0})
    cluster.run_until(lambda: cluster.master.topologies[NAME].status == "running")
    return cluster


def setting(cluster: ElasticCluster) -> dict[str, Any]:
    shown = cluster.elastic.settings(NAME)["topologies"][NAME]
    return {key: shown[key] for key in ("model", "limits", "parameters", "policy")}


def window(cluster: ElasticCluster, rate: float) -> None:
    cluster.window({NAME: load_of_line(cluster.master.topologies[NAME].graph, rate, SERVICE)})
    cluster.run_until(lambda: scaled(cluster, NAME))


def test_a_resumed_topology_is_scaled_by_the_same_model() -> None:
    first = begin()
    first.elastic.choose(NAME, "ds2", VALUES)
    window(first, 300.0)
    assert par_of(first, NAME)["tally"] == 7, first.said
    until_wave(first, 1, NAME)
    second = begin(first.store, resume=True)
    assert par_of(second, NAME)["tally"] == 7
    assert setting(second) == setting(first) and setting(second)["limits"] == {"c_max": 20}
    assert f"{NAME}: scaled by ds2 (c_max=20) again, as in the run that it resumes" in second.said
    window(second, 480.0)
    assert par_of(second, NAME)["tally"] == 11, second.said
    assert second.decisions[1].model == "ds2"
    until_wave(second, 1, NAME)
    third = begin(second.store, resume=True)
    assert setting(third) == setting(first)


def test_a_model_that_was_given_up_stays_given_up() -> None:
    first = begin()
    first.elastic.choose(NAME, "ds2", VALUES)
    until_wave(first, 1, NAME)
    second = begin(first.store, resume=True)
    second.elastic.off(NAME)
    until_wave(second, 1, NAME)
    third = begin(second.store, resume=True)
    assert setting(third)["model"] == "off" and third.elastic.models() == {}
    assert not [text for text in third.said if "scaled by" in text]


def test_a_fresh_start_has_no_model() -> None:
    first = begin()
    first.elastic.choose(NAME, "ds2", VALUES)
    until_wave(first, 1, NAME)
    assert setting(begin(first.store, resume=False))["model"] == "off"


def test_a_choice_that_was_refused_is_not_kept() -> None:
    first = begin()
    first.elastic.choose(NAME, "ds2", VALUES)
    with pytest.raises(BadParameter, match="at least 2 tasks together"):
        first.elastic.choose(NAME, "erstream", {"c_max": 1})
    until_wave(first, 1, NAME)
    assert setting(begin(first.store, resume=True)) == setting(first)


def test_a_model_that_cannot_be_used_any_more_is_reported_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new driver lacks the library for forecasts; the run after it has it again."""
    first = begin()
    first.elastic.choose(NAME, "predictive", {"t_max_ms": 50})
    first.answer_call()
    until_wave(first, 1, NAME)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "statsmodels.tsa.holtwinters", None)
        second = begin(first.store, resume=True)
        second.answer_call()
    assert second.elastic.models() == {}
    assert any("was scaled by predictive" in text and "and is not now" in text and "pip" in text for text in second.said)
    until_wave(second, 1, NAME)
    third = begin(second.store, resume=True)
    third.answer_call()
    assert third.elastic.models() == {NAME: "predictive"}
    assert setting(third)["limits"] == {"t_max_ms": 50.0}


def test_in_batches_it_is_reported_and_not_used() -> None:
    first = begin()
    first.elastic.choose(NAME, "ds2", VALUES)
    until_wave(first, 1, NAME)
    setting_kept = first.master.topologies[NAME].elastic
    other = ElasticCluster(1)
    other.submit(batched(graph_of(Kept)))
    other.master.topologies[NAME].elastic = setting_kept
    other.elastic.resume(NAME)
    assert other.elastic.models() == {}
    assert any("was scaled by ds2" in text and "runs in batches" in text for text in other.said)

"""`bench state` runs, restores the saved state, and reports skipped sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from millrace.bench import redis_server, state, wave_cost
from millrace.testing.components import start
from millrace.workloads.wordcount import vocabulary


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(state, "keep", lambda name, result, quick: tmp_path / name)
    monkeypatch.setattr(wave_cost, "WARM_UP_SECONDS", 0.5)
    for name, value in {"R": 2, "C": 1, "RUNS": 1, "SIZES": (1, 2), "INSTANCES": (1, 2), "INSTANCE_MB": 1}.items():
        monkeypatch.setattr(state, name, value)


def test_all_sources_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cost of waves, which takes a Spark of its own."""
    monkeypatch.setattr(state, "measure_wave_cost", lambda seconds, rounds, console: {"wave_cost": 0.25})
    result = state.run_state_bench(live=False, quick=True)
    assert result["encode_mb_s"] > 0 and result["decode_mb_s"] > 0 and result["wave_cost"] == 0.25
    assert list(result["restore_s"]) == [1, 2] and list(result["restore_instances_s"]) == [1, 2]
    for times in [*result["restore_s"].values(), *result["restore_instances_s"].values()]:
        assert times["fragments"] > 0 and times["directory"] > 0
        assert (times["redis"] is None) == ("redis" in result["skipped"])


@pytest.mark.slow
def test_the_cost_of_waves_is_measured() -> None:
    result = wave_cost.measure_wave_cost(2.0, 1, Console(stderr=True))
    assert set(result["words_per_s"]) == {"without_waves", "wave_each_second"} and min(result["words_per_s"].values()) > 0
    assert result["wave_cost"] < 1


def test_every_key_comes_before_any_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all of them change between two waves."""
    monkeypatch.setattr(wave_cost, "KEYS", 40)
    spouts = [start(wave_cost.ManyLines, task_index=index, parallelism=2) for index in range(2)]
    lines = [spout.generate(position)[0] for spout in spouts for position in range(2)]
    assert sorted(" ".join(lines).split()) == sorted(vocabulary(40)) and spouts[0].generate(2) == spouts[0].generate(0)


def test_without_redis_there_is_a_hint_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(redis_server.shutil, "which", lambda name: None)
    with redis_server.redis_server(tmp_path) as (client, hint):
        assert client is None and "apt-get install redis-server" in hint


def test_a_state_that_comes_back_changed_is_an_error(tmp_path: Path) -> None:
    files = state.FileSource(tmp_path)
    files.save([b"state"])
    (tmp_path / "state-0").write_bytes(b"stale")
    with pytest.raises(state.MillraceError, match="another checksum"):
        files.restore()

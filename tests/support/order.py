"""The order of test files: the longest first, so that the processes of the main run finish at about the same time.

Files that share a Spark are near each other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
LONGEST = (
    "spark/test_encryption_between_hosts.py", "spark/test_reader_process.py", "spark/test_spark_types.py",
    "spark/test_lost_offsets.py", "spark/test_spread_workers.py", "conformance/test_engines.py", "spark/test_cli.py",
    "process/test_scheduling.py", "spark/test_microbatch.py", "spark/test_batched_dataframes.py",
    "property/test_scheduler_rules.py", "spark/test_samples.py", "conformance/test_two_phase_sinks.py",
    "spark/test_engines_bench.py", "spark/test_batch_trouble.py", "process/test_agents.py", "spark/test_dataframes.py",
    "spark/test_sources.py", "spark/test_local.py", "spark/test_state.py",
    "process/test_zookeeper_plans.py", "process/checkpoints/test_checkpoint_faults.py", "process/test_worker_death.py",
    "process/test_scheduler_process.py", "process/checkpoints/test_exactly_once.py", "process/test_master_gone.py",
    "spark/test_batch_neighbours.py", "spark/test_standalone.py", "spark/test_replanning.py", "spark/test_local_cluster.py",
    "cluster/test_waves.py", "cluster/batches/test_batch_faults.py", "process/test_malformed_frames.py",
    "process/checkpoints/test_state_bench.py",
    "process/test_scheduler_cli.py", "cluster/test_worker_loss.py", "process/test_intruders.py",
    "process/test_presumed_dead.py", "cluster/mishaps/test_failing_stores_and_sinks.py", "cluster/test_resumed_runs.py",
    "cluster/test_taps.py", "process/test_tcp.py",
    "cluster/batches/test_batch_broken_off.py", "process/checkpoints/test_stored_exactly_once.py",
    "property/test_slstream.py",
)
_RANKS = {TESTS / name: rank for rank, name in enumerate(LONGEST)}


def sort_longest_first(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _RANKS.get(item.path, len(_RANKS)))

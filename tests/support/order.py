"""The order of test files: the longest first, so that the processes of the main run finish at about the same time.

Files that share a Spark are near each other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
LONGEST = (
    "spark/test_cli.py", "spark/test_samples.py", "spark/test_dataframes.py", "spark/test_sources.py", "spark/test_local.py",
    "process/test_agents.py", "process/test_checkpoint_faults.py", "process/test_scheduling.py", "process/test_worker_death.py",
    "spark/test_microbatch.py", "spark/test_batch_trouble.py", "spark/test_batched_dataframes.py", "spark/test_state.py",
    "cluster/test_waves.py", "conformance/test_engines.py", "process/test_exactly_once.py", "spark/test_engines_bench.py",
    "conformance/test_two_phase_sinks.py", "spark/test_batch_neighbours.py", "spark/test_local_cluster.py",
    "property/test_scheduler_rules.py", "spark/test_standalone.py", "process/test_stored_exactly_once.py",
    "process/test_state_bench.py", "process/test_zookeeper_plans.py", "cluster/test_batch_broken_off.py",
    "property/test_keyed_state.py", "property/test_slstream.py", "property/test_handover.py", "spark/test_replanning.py",
    "process/test_presumed_dead.py", "process/test_master_gone.py", "process/test_scheduler_process.py", "process/test_tcp.py",
    "process/test_intruders.py", "conformance/test_coordination.py",
)
_RANKS = {TESTS / name: rank for rank, name in enumerate(LONGEST)}


def sort_longest_first(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _RANKS.get(item.path, len(_RANKS)))

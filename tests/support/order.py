"""The order of test files: the longest first, so that the processes of the main run finish at about the same time.

Files that share a Spark are near each other. Those that compute are among those that wait for processes: these leave a core
idle.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
LONGEST = (
    "spark/test_encryption_between_hosts.py", "spark/test_reader_process.py", "spark/test_spark_types.py",
    "spark/test_lost_offsets.py", "spark/measured/test_measured_elastic.py", "spark/test_spread_workers.py",
    "conformance/test_engines.py", "spark/test_cli.py",
    "process/scheduling/test_scheduling.py", "spark/test_microbatch.py", "spark/measured/test_measured_migration.py",
    "spark/test_batched_dataframes.py",
    "property/test_scheduler_rules.py", "spark/test_samples.py", "conformance/test_two_phase_sinks.py",
    "spark/test_batch_trouble.py", "process/test_agents.py", "spark/test_standalone.py",
    "process/scheduling/test_scheduler_cli.py",
    "spark/test_state.py", "process/migrations/test_strategies_under_load.py",
    "cluster/migrations/test_requests_meanwhile.py", "cluster/migrations/test_workers_gone.py",
    "cluster/handover/test_faults_during_moves.py", "spark/test_dataframes.py", "spark/test_sources.py",
    "spark/test_local.py", "process/test_master_gone.py", "cluster/handover/test_migration_records.py",
    "process/test_worker_death.py", "cluster/handover/test_random_moves.py", "process/checkpoints/test_exactly_once.py",
    "process/scheduling/test_scheduler_process.py", "spark/measured/test_measured_hand_over.py",
    "cluster/mishaps/test_overtaking_waves.py",
    "process/test_zookeeper_plans.py", "process/checkpoints/test_checkpoint_faults.py", "spark/test_workers.py",
    "process/migrations/test_workers_that_leave.py", "cluster/handover/test_moves_in_succession.py",
    "process/test_handover_under_load.py", "spark/measured/test_engines_bench.py", "spark/test_batch_neighbours.py",
    "process/migrations/test_gap_at_sinks.py", "services/test_secured_zookeeper.py", "process/checkpoints/test_earlier_runs.py",
    "process/test_presumed_dead.py", "process/test_intruders.py", "process/test_tcp.py", "process/test_held_interpreter.py",
    "cluster/test_slow_sinks.py", "cluster/handover/test_leaving_workers.py", "cluster/handover/test_group_moves.py",
    "services/test_postgres.py", "process/test_malformed_frames.py", "process/test_slow_sink.py", "spark/test_replanning.py",
    "spark/test_local_cluster.py", "property/test_partitioners.py", "process/checkpoints/test_stored_exactly_once.py",
    "process/test_cut_cable.py", "unit/test_suite.py", "conformance/test_coordination.py", "process/test_cli_input.py",
    "cluster/test_waves.py", "process/checkpoints/test_state_bench.py", "process/test_tap_reader_resumed.py",
    "cluster/batches/test_batch_faults.py", "cluster/test_worker_loss.py", "property/test_takeover_interleavings.py",
    "process/checkpoints/test_fragment_holders.py", "cluster/mishaps/test_failing_stores_and_sinks.py",
    "process/checkpoints/test_shared_store.py", "process/checkpoints/test_overtaken_driver.py",
    "cluster/test_commits_during_takeover.py",
)
_RANKS = {TESTS / name: rank for rank, name in enumerate(LONGEST)}


def sort_longest_first(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _RANKS.get(item.path, len(_RANKS)))

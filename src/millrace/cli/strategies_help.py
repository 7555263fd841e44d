"""The help on strategies of migration: what each does, its parameters with their defaults in seconds, and what it needs."""

from __future__ import annotations

REBALANCE_HELP = """Give a running topology another plan, by a strategy.

For example: millrace rebalance --to plan.json --strategy dcr

Strategies, with the parameters for --set, in seconds, and what they need:

\b
handover  the default: tasks are handed over while the stream runs
rollback  a wave is committed, places change, all tasks go back to it;
          needs waves
storm     spouts wait for message_timeout=30, then all workers of the
          topology restart
storm*    workers that give or take a task restart
dsm       as storm*; tasks restore the last wave when next asked to,
          every init_resend=30; needs waves
dcr       spouts wait, a wave drains the topology, then as dsm with
          init_resend=1; needs waves
ccr       as dcr, but the wave saves what is in flight; init_resend=1;
          needs exactly-once
tstorm    new tasks start beside the old; spouts wait spout_delay=10,
          workers without tasks restart after shutdown_delay=20
nstorm    tasks end and start when their workers read the plan, every
          supervisor_cycle=10 and worker_cycle=3
nstorm+   as nstorm, and old tasks first process their queues, for
          drain=2 at most; supervisor_cycle=3, worker_cycle=1
layered   layer by layer and each in two halves, with state from
          fragments on other workers

Strategies that restart workers need them for this topology alone. Put storm* in quotes: shells expand it."""

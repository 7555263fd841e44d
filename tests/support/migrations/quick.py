"""Parameters with which the strategies of migration take little time."""

from __future__ import annotations

QUICK: dict[str, dict[str, float]] = {
    "dsm": {"init_resend": 0.5}, "storm": {"message_timeout": 0.5}, "tstorm": {"spout_delay": 0.2, "shutdown_delay": 0.4},
    "nstorm": {"supervisor_cycle": 0.5, "worker_cycle": 0.2}, "nstorm+": {"supervisor_cycle": 0.3, "worker_cycle": 0.1}}

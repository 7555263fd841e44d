"""The sink's files and the stored counts, compared with what the spouts have sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millrace.bench.faults.soak import NAME
from millrace.bench.stored_counts import stored_counts
from millrace.config import EXACTLY_ONCE
from millrace.runtime.checkpoints.store import CheckpointStore
from millrace.workloads.audit import audit, true_counts


def compared(output: Path, store: CheckpointStore, expected: dict[int, int]) -> dict[str, Any]:
    """`expected`: lines that each spout task has sent."""
    audited, truth = audit(output, expected), true_counts(expected)
    counts = stored_counts(store, NAME)
    words = counts.keys() | truth.keys()
    return {"tuples_in": audited.tuples_in, "tuples_out": audited.tuples_out, "lost": audited.lost,
            "repeated": audited.repeated, "wrong": audited.wrong, "beyond": audited.beyond,
            "torn_bytes": audited.torn_bytes, "words": len(truth),
            "counts_wrong": sum(counts[word] != truth[word] for word in words),
            "counts_less": sum(counts[word] < truth[word] for word in words)}


def broken_promise(result: dict[str, Any]) -> str:
    """Results that the guarantee forbids; empty if it was kept."""
    if result["stuck"]:
        return str(result["stuck"])
    forbidden = ["lost", "wrong", "counts_less"]
    if result["guarantee"] == EXACTLY_ONCE:
        forbidden += ["repeated", "beyond", "torn_bytes", "counts_wrong"]
    return ", ".join(f"{name} {result[name]}" for name in forbidden if result[name])

"""What an earlier run of a topology has left behind: nobody loses it by leaving out a flag."""

from __future__ import annotations

from datetime import datetime

from millrace.errors import TopologyError
from millrace.state.checkpoint import Manifest


def check_choice(resume: bool | None, found: Manifest | None, store: str) -> None:
    """`TopologyError` if there is something to go on from, and nobody has said whether to. The manifest of an epoch that began
    at the beginning, before its first wave, is nothing to go on from."""
    if resume is None and found is not None and found.wave > 0:
        raise not_said(f"{store} has checkpoints of {found.topology!r}, the last of {_which(found)}{when(found.at)}")


def not_said(there: str) -> TopologyError:
    """`there`: what is there, and where. It is deleted by nobody who does not say so."""
    return TopologyError(f"{there}. Say what is to become of that: --resume (resume=True) goes on from there, --fresh "
                         "(resume=False) begins anew and deletes it once the new run has committed something of its own")


def when(at: float) -> str:
    """As a part of a sentence; nothing if it is not known."""
    return f", made {datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}" if at else ""


def _which(manifest: Manifest) -> str:
    if not manifest.of_batches:
        return f"wave {manifest.wave}"
    base = int(manifest.offsets.rpartition("-")[2])  # the wave after which its batches are counted
    return f"batch {manifest.wave - base - 1} (wave {manifest.wave})"

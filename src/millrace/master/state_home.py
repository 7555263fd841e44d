"""Default directory for data that outlives a master."""

from __future__ import annotations

import os
from pathlib import Path


def state_home() -> Path:
    """Millrace's directory in the user's state home: $XDG_STATE_HOME or ~/.local/state."""
    configured = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (configured if configured.is_absolute() else Path.home() / ".local" / "state") / "millrace"

"""Where what must outlive a master is kept if nothing else is said."""

from __future__ import annotations

import os
from pathlib import Path


def state_home() -> Path:
    """A directory of the user's own, where such things are kept: $XDG_STATE_HOME or ~/.local/state."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".local" / "state") / "millrace"

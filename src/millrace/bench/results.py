"""Raw results of every run, so that a figure in the docs can be traced to its run."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from millrace.cli.testing import project_root


def keep(name: str, result: dict[str, Any]) -> Path:
    """Write the result with when and where it was measured; returns the file."""
    directory = project_root() / "bench-results"
    directory.mkdir(exist_ok=True)
    path = directory / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    where = {"python": platform.python_version(), "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
    path.write_text(json.dumps({"at": time.time(), "machine": where, **result}, indent=1))
    return path

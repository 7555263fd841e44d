"""Raw results of every run, so that a figure in the docs can be traced to its run."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from millrace.checkout import project_root

RESULTS = Path("bench-results")  # in the checkout; not tracked


def keep(name: str, result: dict[str, Any], quick: bool = False) -> Path:
    """Write the result with the time and the machine of the run; returns the file. A quick run has its own name, because its
    figures mean nothing and no page may show them."""
    directory = project_root() / RESULTS
    directory.mkdir(exist_ok=True)
    path = directory / f"{name}{'-quick' if quick else ''}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
    path.write_text(json.dumps({"at": time.time(), "machine": machine, **result}, indent=1))
    return path

"""The rows that topologies have written to files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def rows_in(directory: Path) -> list[dict[str, Any]]:
    """The visible rows of a `JsonLinesSink`, file by file. Staged rows are left out."""
    return [json.loads(line) for path in sorted(directory.glob("part-*.jsonl")) for line in path.read_text().splitlines()]

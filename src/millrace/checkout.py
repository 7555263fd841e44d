"""The checkout that this package runs from."""

from __future__ import annotations

from pathlib import Path

from millrace.errors import MillraceError


def project_root() -> Path:
    """The checkout's directory; tests, docs and results of benchmarks are not part of an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "tests").is_dir():
        raise MillraceError("tests and benchmarks are only in a checkout of the project: clone it and run ./millrace there")
    return root

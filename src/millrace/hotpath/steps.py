"""Chooses the steps of the hot path: compiled if the installation could build them, else in Python.

`MILLRACE_PURE_PYTHON=1` in the environment of a worker chooses those in Python, to compare the two.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING

from millrace.hotpath import plain


def _chosen() -> ModuleType:
    if os.environ.get("MILLRACE_PURE_PYTHON"):
        return plain
    try:
        from millrace.hotpath import compiled
    except ImportError:  # no compiler where it was installed, or Spark has shipped the package as a zip file
        return plain
    return compiled


_steps = _chosen()
COMPILED = _steps is not plain

if TYPE_CHECKING:
    from millrace.hotpath.plain import QuickDict, RowDecoder, Tuple, buckets, fast_emit, name_rows, plain_rows, tuples
else:
    fast_emit, plain_rows, buckets = _steps.fast_emit, _steps.plain_rows, _steps.buckets
    Tuple, tuples, name_rows = _steps.Tuple, _steps.tuples, _steps.name_rows
    QuickDict, RowDecoder = _steps.QuickDict, _steps.RowDecoder

__all__ = ["COMPILED", "QuickDict", "RowDecoder", "Tuple", "buckets", "fast_emit", "name_rows", "plain_rows", "tuples"]

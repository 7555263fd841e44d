"""Chooses the steps of the hot path: compiled if the installation could build them, else in Python.

`MILLRACE_PURE_PYTHON=1` in the environment of a worker chooses those in Python, to compare the two.
"""

from __future__ import annotations

import os
from types import ModuleType

from millrace.runtime.hotpath import plain


def _chosen() -> ModuleType:
    if os.environ.get("MILLRACE_PURE_PYTHON"):
        return plain
    try:
        from millrace.runtime.hotpath import compiled
    except ImportError:  # no compiler where it was installed, or Spark has shipped the package as a zip file
        return plain
    return compiled


_steps = _chosen()
COMPILED = _steps is not plain
fast_emit, buckets = _steps.fast_emit, _steps.buckets

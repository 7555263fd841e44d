"""Chooses the steps of the hot path: compiled if the installation could build them, else in Python.

`MILLRACE_PURE_PYTHON=1` in the environment of a worker chooses those in Python, to compare the two.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from millrace.hotpath import plain


def _chosen() -> ModuleType:
    if os.environ.get("MILLRACE_PURE_PYTHON"):
        return plain
    try:
        from millrace.hotpath import compiled
    except ImportError:  # no compiler where it was installed, or Spark has shipped the package as a zip file
        return _shipped() or plain
    return compiled


def _shipped() -> ModuleType | None:
    """The compiled module from a file of its own on the path: Python imports none from a zip file. A file for another Python or
    machine has another suffix."""
    places = [Path(entry) / f"compiled{suffix}" for entry in sys.path if entry for suffix in EXTENSION_SUFFIXES]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        return None
    spec = importlib.util.spec_from_file_location("millrace.hotpath.compiled", found)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError:  # it needs a library that is not here
        return None
    return module


def compiled_file() -> Path | None:
    """The file of the compiled module in use, to ship beside the package."""
    return Path(_steps.__file__) if COMPILED and _steps.__file__ else None


if TYPE_CHECKING:
    _steps = plain
else:
    _steps = _chosen()
COMPILED = _steps is not plain

fast_emit, plain_rows, buckets = _steps.fast_emit, _steps.plain_rows, _steps.buckets
tuples_of, name_rows = _steps.tuples_of, _steps.name_rows
Tuple = _steps.Tuple
QuickDict = _steps.QuickDict
RowDecoder = _steps.RowDecoder

__all__ = ["COMPILED", "QuickDict", "RowDecoder", "Tuple", "buckets", "compiled_file", "fast_emit", "name_rows", "plain_rows",
           "tuples_of"]

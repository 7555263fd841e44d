"""Keeps PySpark from importing pandas, for a third of a second, when it first calls the JVM.

PySpark asks its converters of numpy values about every argument of a call, and their question imports its test tools, which
import pandas. Arguments of other types need not be asked about.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

NAMES = ("NumpyScalarConverter", "NumpyArrayConverter")


def is_of_numpy(value: object) -> bool:
    """True if the value's class, or one that it is derived from, is numpy's."""
    return any(base.__module__.partition(".")[0] == "numpy" for base in type(value).__mro__)


def ask_only_about_numpy() -> None:
    """Let PySpark's numpy converters look at numpy's values only."""
    from pyspark.sql import types

    for name in NAMES:
        converter: Any = getattr(types, name, None)
        if converter is not None and not hasattr(converter.can_convert, "__wrapped__"):
            converter.can_convert = _restricted(converter.can_convert)


def _restricted(can_convert: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    @functools.wraps(can_convert)
    def restricted(self: Any, value: Any) -> bool:
        return is_of_numpy(value) and can_convert(self, value)

    return restricted

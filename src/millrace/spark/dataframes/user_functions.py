"""Errors raised by user functions that the engine calls in the driver."""

from __future__ import annotations

import traceback
from pathlib import Path

import py4j
import pyspark

import millrace
from millrace.spark.session.errors import first_words

_LIBRARIES = tuple(str(Path(str(file)).parent) for file in (py4j.__file__, pyspark.__file__, millrace.__file__))


def raised(error: BaseException) -> str:
    """The error's type and message, and the last line of code that is neither Spark's nor Millrace's."""
    calls = [call for call in traceback.extract_tb(error.__traceback__) if not call.filename.startswith(_LIBRARIES)]
    place = f" ({calls[-1].filename}:{calls[-1].lineno}, in {calls[-1].name})" if calls else ""
    name, text = type(error).__name__, first_words(error)
    return (text if text.startswith(name) else f"{name}: {text}") + place

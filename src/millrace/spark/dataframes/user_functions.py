"""What functions of the user's raise that the engine calls in the driver."""

from __future__ import annotations

import traceback
from pathlib import Path

import py4j
import pyspark

import millrace
from millrace.spark.session.errors import first_words

_NOT_THEIRS = tuple(str(Path(str(file)).parent) for file in (py4j.__file__, pyspark.__file__, millrace.__file__))


def raised(error: BaseException) -> str:
    """The type, what it says, and the last line of code that is neither Spark's nor ours."""
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_THEIRS)]
    place = f" ({theirs[-1].filename}:{theirs[-1].lineno}, in {theirs[-1].name})" if theirs else ""
    name, text = type(error).__name__, first_words(error)
    return (text if text.startswith(name) else f"{name}: {text}") + place

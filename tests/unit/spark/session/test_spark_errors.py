"""Errors of Spark and of user functions, cut down to one line."""

from __future__ import annotations

import pytest

from millrace.spark.dataframes.user_functions import raised
from millrace.spark.session.errors import first_line, first_words

CALL = "An error occurred while calling o292.collectToPython.\n"
JOB = (": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent "
       "failure: Lost task 0.0 in stage 0.0 (TID 0) (localhost executor driver): java.lang.IllegalStateException: Value at "
       "index is null\n\tat org.apache.arrow.vector.BigIntVector.get(BigIntVector.java:100)\n")


@pytest.mark.parametrize(("text", "line"), [
    (CALL + JOB, "java.lang.IllegalStateException: Value at index is null"),
    (CALL + JOB + "Caused by: java.io.IOException: outer\n\t... 1 more\nCaused by: java.io.EOFException: inner\n\t... 2 more",
     "java.io.EOFException: inner"),
    (CALL + ": java.io.IOException: no such path\n\tat java.base/x", "java.io.IOException: no such path"),
    (CALL, CALL.strip()),
    ("\n  [TABLE_NOT_FOUND] no table\nmore", "[TABLE_NOT_FOUND] no table"),
    ("", "ValueError"),
])
def test_an_error_in_one_line(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line


def test_an_error_of_a_python_process_is_shown_by_its_own_last_line() -> None:
    text = CALL + ": org.apache.spark.SparkException: Job aborted\nTraceback (most recent call last):\n  File \"x.py\"\n" \
                  "KeyError: 'word'\n\tat org.apache.spark.api.python.x\nCaused by: org.apache.spark.Exception: y"
    assert first_words(ValueError(text)) == "KeyError: 'word'"


def test_the_type_is_named_once() -> None:
    assert raised(ValueError("wrong\nmore")) == "ValueError: wrong"
    assert raised(ValueError()) == "ValueError"


def test_an_error_of_a_user_function_has_its_location() -> None:
    def theirs() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError) as caught:
        theirs()
    assert raised(caught.value).startswith("LookupError: nothing there (")
    assert "test_spark_errors.py:" in raised(caught.value) and raised(caught.value).endswith(", in theirs)")

"""Errors of Spark and of user functions, cut down to one line."""

from __future__ import annotations

from io import BytesIO

import pytest
from pyspark.util import handle_worker_exception

from millrace.errors import CheckpointMissing
from millrace.spark.dataframes.user_functions import raised
from millrace.spark.session.errors import first_line, first_words, mark_missing_state, reports_missing_state

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


def sent_by_a_process(error: Exception) -> Exception:
    """The error as the driver gets it when this one is raised, and marked, in a Python process."""
    text = BytesIO()
    try:
        raise error
    except Exception as raised_there:
        mark_missing_state(raised_there)
        handle_worker_exception(raised_there, text)
    return ValueError(CALL + ": org.apache.spark.SparkException: Job aborted\n" + text.getvalue()[8:].decode() + "\n\tat org.x")


def wrapped(cause: Exception) -> Exception:
    error = RuntimeError("the state could not be restored")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("settings", [{}, {"SPARK_SIMPLIFIED_TRACEBACK": "1"}, {"SPARK_HIDE_TRACEBACK": "1"}])
@pytest.mark.parametrize(("error", "line"), [
    (CheckpointMissing("no blob"), "millrace.errors.CheckpointMissing: no blob"),
    (CheckpointMissing("no blob " + 400 * "x"), "millrace.errors.CheckpointMissing: no blob " + 257 * "x"),
    (wrapped(CheckpointMissing("no blob")), "RuntimeError: the state could not be restored")])
def test_missing_state_is_known_by_a_mark_and_not_by_the_text(settings: dict[str, str], error: Exception, line: str,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    arrived = sent_by_a_process(error)
    assert reports_missing_state(arrived) and first_words(arrived) == line


@pytest.mark.parametrize("error", [
    ValueError("CheckpointMissing: not of Millrace"), ValueError("see: millrace: a part of the state is missing"),
    wrapped(ValueError("CheckpointMissing"))])
def test_a_text_that_names_missing_state_is_not_the_mark(error: Exception) -> None:
    assert not reports_missing_state(sent_by_a_process(error))

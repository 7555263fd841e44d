"""Errors of user code: always one line, kept until the next report."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.api.tuple import Tuple
from millrace.errors import EncodingError, StateNotKept
from millrace.model.graph import TaskId
from millrace.runtime.tasks.user_errors import ERRORS_KEPT, ErrorLog, as_exceptions, describe, error_of, is_about_the_data
from millrace.runtime.wire import messages as wire

TASK: Any = SimpleNamespace(name=TaskId("count", 2), topology=SimpleNamespace(graph=SimpleNamespace(name="words")))


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(("error", "words"), [
    (ValueError("seven"), "ValueError: seven"), (Mute(), "Mute, whose __str__ raises RuntimeError"),
    (ValueError("\ud800"), "ValueError: \\ud800")])
def test_every_error_has_a_line_that_can_be_sent(error: Exception, words: str) -> None:
    assert describe(error) == words
    wire.encode(describe(error))


def test_a_call_that_raises_nothing_has_no_error() -> None:
    assert error_of(lambda: None) is None


@pytest.mark.parametrize(("error", "expected"), [
    (KeyError("x"), True), (ZeroDivisionError(), True), (AttributeError(), True), (EncodingError("no such type"), True),
    (OSError("disk full"), False), (RuntimeError("server away"), False), (StateNotKept("declare it"), False)])
def test_an_outage_is_not_blamed_on_the_data(error: Exception, expected: bool) -> None:
    assert is_about_the_data(error) is expected


def test_a_report_takes_the_errors_since_the_last_one() -> None:
    log = ErrorLog(Counter())
    log.add(TASK, ValueError("seven"), ["a line\n", "another"], Tuple.of("1", "split", "default", 1, ("a", 1)))
    expected = [{"topology": "words", "task": str(TASK.name), "error": "ValueError: seven", "traceback": "a line\nanother",
                 "tuple": "split/default ('a', 1)"}]
    assert list(log) == expected
    assert (log.take(), log.take()) == (expected, [])


def test_only_the_last_ones_are_kept() -> None:
    log = ErrorLog(Counter())
    for n in range(ERRORS_KEPT + 5):
        log.add(TASK, ValueError(n), [], None)
    assert [entry["error"] for entry in log] == [f"ValueError: {n}" for n in range(5, ERRORS_KEPT + 5)]


def test_a_failed_start_is_fatal_and_counted_as_dead_letters_are() -> None:
    counters = Counter[str]()
    log = ErrorLog(counters)
    log.start_failed(TASK, OSError("no server"))
    log.dead_letter(TASK, ("count", 2, "default", [1], "ValueError: seven"))
    (entry,) = log.take()
    assert entry["fatal"] and entry["error"] == "OSError: no server" and "no server" in entry["traceback"]
    assert counters == {"start_failed": 1, "dead_letters": 1}


def test_values_too_large_to_show_and_long_traces_can_be_sent() -> None:
    log = ErrorLog(Counter())
    log.add(TASK, ValueError(), ["x" * 5000, "\ud800"], Tuple.of("1", "split", "default", 1, (10**5000,)))
    (entry,) = log.take()
    assert entry["tuple"] == "split/default values that are too large to show"
    assert entry["traceback"].endswith("x\\ud800")
    wire.encode(entry)


def test_a_long_text_is_cut() -> None:
    text = describe(ValueError("x" * 1_000_000))
    assert text.startswith("ValueError: xxx") and text.endswith("... (1000012 characters)") and len(text) < 3000


class Silent(BaseException):
    def __str__(self) -> str:
        raise SystemExit


def test_a_text_that_raises_what_is_no_exception() -> None:
    assert describe(Silent()) == "Silent, whose __str__ raises SystemExit"


@pytest.fixture
def ignored_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ignored_interrupts")
@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_user_code_raises_in_a_worker_is_its_error(kind: type[BaseException]) -> None:
    error = kind("no")

    def fail() -> None:
        raise error

    assert error_of(fail) is error
    with pytest.raises(Exception, match="no"), as_exceptions():
        fail()


def test_a_ctrl_c_is_no_error_of_user_code() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            error_of(interrupt)
        with pytest.raises(KeyboardInterrupt), as_exceptions():
            interrupt()
    finally:
        signal.signal(signal.SIGINT, before)

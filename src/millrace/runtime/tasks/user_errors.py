"""Errors of user code: which exceptions are caught, their one-line text, and the log that the next report includes."""

from __future__ import annotations

import logging
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millrace.api.tuple import Tuple
from millrace.errors import EncodingError, MillraceError, UserCodeFailed, is_interrupt
from millrace.redaction import redact

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task

log = logging.getLogger("millrace.worker")
USER_ERRORS = BaseException  # user code may raise anything without ending the worker: CancelledError, SystemExit, a Rust panic
ERRORS_KEPT = 20
LONGEST_TEXT = 2000  # characters of an error's text: it may quote the whole tuple


def describe(error: BaseException) -> str:
    """The error's type and message, in valid UTF-8 and not too long, even if its own `__str__` raises."""
    try:
        text = f"{type(error).__name__}: {error}"
    except USER_ERRORS as worse:
        spare_interrupts(worse)
        text = f"{type(error).__name__}, whose __str__ raises {type(worse).__name__}"
    text = redact(text)  # before it is cut: half a URL is not recognized
    if len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]}... ({len(text)} characters)"
    return text.encode("utf-8", "backslashreplace").decode()


def spare_interrupts(error: BaseException) -> None:
    """Raise the error again if it is a Ctrl-C of this process and not an error of user code."""
    if is_interrupt(error):
        raise error


def error_of(call: Callable[[], None]) -> BaseException | None:
    """Make the call; return the exception that user code raised, if any."""
    try:
        call()
    except USER_ERRORS as error:
        spare_interrupts(error)
        return error
    return None


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Turn what user code raises into an `Exception`: code in between handles those only, and a generator would take a
    GeneratorExit for its own end."""
    try:
        yield
    except Exception:
        raise
    except USER_ERRORS as error:
        spare_interrupts(error)
        raise UserCodeFailed(f"user code raised {describe(error)}") from error


def is_about_the_data(error: BaseException) -> bool:
    """True if an error is caused by the data: one of Python's built-in errors about values. Errors of servers, disks and
    libraries count as outages, and Millrace's own as wrong settings; both need an operator."""
    if isinstance(error, MillraceError):
        return isinstance(error, EncodingError)
    return isinstance(error, TypeError | ValueError | LookupError | ArithmeticError | AttributeError | AssertionError)


class ErrorLog:
    """The last errors of a worker's tasks, as plain dicts for the next report."""

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters
        self._kept: deque[dict[str, Any]] = deque(maxlen=ERRORS_KEPT)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._kept)

    def take(self) -> list[dict[str, Any]]:
        """Return and clear the errors since the last call."""
        kept = list(self._kept)
        self._kept.clear()
        return kept

    def add(self, task: Task, error: BaseException, trace: list[str], tup: Tuple | None) -> None:
        entry = {"topology": task.topology.graph.name, "task": str(task.name),
                 "error": describe(error), "traceback": _tail(trace)}
        if tup is not None:
            entry["tuple"] = f"{tup.component}/{tup.stream} {_excerpt(tup.values)}"
        self._kept.append(entry)
        log.debug("error in %s: %s", task.name, entry["error"])

    def start_failed(self, task: Task, error: BaseException) -> None:
        """Record that a component failed to start; the task will retry."""
        self._counters["start_failed"] += 1
        self._kept.append({"topology": task.topology.graph.name, "task": str(task.name), "fatal": True,
                           "error": describe(error), "traceback": _tail(traceback.format_exception(error))})
        log.error("%s of %s could not start: %s", task.name, task.topology.graph.name, describe(error))

    def dead_letter(self, task: Task, letter: Sequence[Any]) -> None:
        """Count a dead letter; the letter itself goes down its stream."""
        self._counters["dead_letters"] += 1
        log.info("dead letter from %s: %s", task.name, _excerpt(letter[3:]))


def _excerpt(values: Any) -> str:
    try:
        return f"{values!r:.300}"
    except ValueError:  # an integer with more digits than Python converts to a string
        return "values that are too large to show"


def _tail(trace: list[str]) -> str:
    return redact("".join(trace))[-4000:].encode("utf-8", "backslashreplace").decode()

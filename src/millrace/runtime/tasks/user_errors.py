"""What user code raises: which of it is caught, how it is told in a line, and what of it waits for the next report."""

from __future__ import annotations

import logging
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from millrace.api.tuple import Tuple
from millrace.errors import EncodingError, MillraceError

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task

log = logging.getLogger("millrace.worker")
USER_ERRORS = (Exception, SystemExit)  # what user code may raise without taking the worker down
ERRORS_KEPT = 20


def describe(error: BaseException) -> str:
    """The error in one line that can be sent anywhere, whatever its author did."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception as worse:
        text = f"{type(error).__name__}, whose own text raises {type(worse).__name__}"
    return text.encode("utf-8", "backslashreplace").decode()


def error_of(call: Callable[[], None]) -> BaseException | None:
    """What user code raised."""
    try:
        call()
    except USER_ERRORS as error:
        return error
    return None


def is_about_the_data(error: BaseException) -> bool:
    """Python's own complaints about values are; an error of a server, a disk or a library is taken for an outage, and one of
    ours for a wrong setting: both are for people to put right."""
    if isinstance(error, MillraceError):
        return isinstance(error, EncodingError)
    return isinstance(error, TypeError | ValueError | LookupError | ArithmeticError | AttributeError | AssertionError)


class ErrorLog:
    """The last errors of a worker's tasks. A report takes them along, as dicts that can be sent."""

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters
        self._kept: deque[dict[str, Any]] = deque(maxlen=ERRORS_KEPT)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._kept)

    def take(self) -> list[dict[str, Any]]:
        """Those since the last time."""
        kept = list(self._kept)
        self._kept.clear()
        return kept

    def add(self, task: Task, error: BaseException, trace: list[str], tup: Tuple | None) -> None:
        entry = {"topology": task.topology.graph.name, "task": str(task.name),
                 "error": describe(error), "traceback": _tail(trace)}
        if tup is not None:
            entry["tuple"] = f"{tup.component}/{tup.stream} {_shown(tup.values)}"
        self._kept.append(entry)
        log.debug("error in %s: %s", task.name, entry["error"])

    def start_failed(self, task: Task, error: BaseException) -> None:
        """Its component could not be made or initialized; the task will try again."""
        self._counters["start_failed"] += 1
        self._kept.append({"topology": task.topology.graph.name, "task": str(task.name), "fatal": True,
                           "error": describe(error), "traceback": _tail(traceback.format_exception(error))})
        log.error("%s of %s could not start: %s", task.name, task.topology.graph.name, describe(error))

    def dead_letter(self, task: Task, letter: Sequence[Any]) -> None:
        """Only counted: the letter itself goes down its stream."""
        self._counters["dead_letters"] += 1
        log.info("dead letter from %s: %s", task.name, _shown(letter[3:]))


def _shown(values: Any) -> str:
    try:
        return f"{values!r:.300}"
    except ValueError:  # an integer of more digits than Python turns into text
        return "values that are too large to show"


def _tail(trace: list[str]) -> str:
    return "".join(trace)[-4000:].encode("utf-8", "backslashreplace").decode()

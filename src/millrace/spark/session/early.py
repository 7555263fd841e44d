"""Starts Spark while the command still imports the engine: each takes about a second, and a machine has more than one core."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from millrace.spark.session.master_url import parse_master
from millrace.spark.session.session import make_context

if TYPE_CHECKING:
    from pyspark import SparkContext

Arguments = tuple[str, str, int, tuple[tuple[str, str], ...]]
_begun: dict[Arguments, EarlyStart] = {}


class EarlyStart(threading.Thread):
    """Makes a context. Not a daemon thread: a process that ends meanwhile must not leave half a JVM behind."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(name="millrace early start of Spark")
        self._arguments = arguments
        self._context: SparkContext | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        master, name, slots, extra = self._arguments
        try:
            self._context = make_context(master, name, slots, dict(extra))
        except BaseException as error:  # raised where the context is wanted
            self._error = error

    def context(self) -> SparkContext:
        """Wait for the context. Raises what `make_context` has raised."""
        self.join()
        if self._error is not None:
            raise self._error
        assert self._context is not None
        return self._context


def begin(master: str, app_name: str, slots: int, extra: Mapping[str, str] | None = None) -> None:
    """Begin to start the Spark that `early_or_new` is going to be asked for with the same arguments. Does nothing for a cluster
    of several machines, which others use: it should not see applications whose topology turns out to be misspelt."""
    if parse_master(master).on_this_machine:
        import pyspark  # noqa: F401 - by this thread: the other would have to share the interpreter before Java has begun

        arguments = _arguments(master, app_name, slots, extra)
        _begun[arguments] = EarlyStart(arguments)
        _begun[arguments].start()


def early_or_new(master: str, app_name: str, slots: int, extra: Mapping[str, str] | None = None) -> SparkContext:
    """The context that was begun with these arguments, once it is there; else a new one."""
    begun = _begun.pop(_arguments(master, app_name, slots, extra), None)
    return begun.context() if begun is not None else make_context(master, app_name, slots, dict(extra or {}))


def _arguments(master: str, app_name: str, slots: int, extra: Mapping[str, str] | None) -> Arguments:
    return master, app_name, slots, tuple(sorted((extra or {}).items()))

"""Creates and stops the Spark session that an engine runs in."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.errors import MasterUnreachable, MillraceError
from millrace.redaction import is_secret
from millrace.spark.session import start_up
from millrace.spark.session.converters import ask_only_about_numpy
from millrace.spark.session.encryption import SECRET
from millrace.spark.session.environment import prepare_environment
from millrace.spark.session.java import archive_option
from millrace.spark.session.master_url import MasterUrl, check_reachable, parse_master
from millrace.spark.session.settings import batch_settings, session_settings

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def make_context(master: str, app_name: str, slots: int, extra: dict[str, str] | None = None) -> SparkContext:
    """Start Spark with room for `slots` resident workers; `session_of` adds what DataFrames need, which takes another second.
    Call it from the main thread to keep your Ctrl-C handler.

    Raises JavaNotFound, MasterUnreachable, NotEnoughSlots, or MillraceError if Spark does not start or already runs in this
    process: Spark would return the existing context with its own settings, under which dead workers are not restarted or
    never start at all.
    """
    url, settings = session_settings(master, slots, extra)
    return _make(master, url, app_name, settings)


def default_name() -> str:
    """The name of a cluster that was not given one."""
    return f"millrace-{os.getpid()}"


def application(cluster: str) -> str:
    """The name of an engine's application in Spark."""
    return f"millrace {cluster}"


def make_session(master: str, app_name: str, slots: int, extra: dict[str, str] | None = None) -> SparkSession:
    """Start Spark as `make_context` does, and return its session."""
    return session_of(make_context(master, app_name, slots, extra))


def make_batch_session(master: str, app_name: str, extra: dict[str, str] | None = None) -> SparkSession:
    """Create a session for the microbatch engine; otherwise as `make_session`."""
    url, settings = batch_settings(master, extra)
    return session_of(_make(master, url, app_name, settings))


def session_of(context: SparkContext) -> SparkSession:
    """The session of a context that Millrace has made, with Millrace's formats."""
    from pyspark.sql import SparkSession

    from millrace.spark.sources import register

    spark = SparkSession.builder.getOrCreate()  # the user may have made it meanwhile
    assert spark.sparkContext is context  # a process has at most one
    register(spark)
    return spark


def _make(master: str, url: str, app_name: str, settings: dict[str, str]) -> SparkContext:
    parsed = parse_master(master)
    check_reachable(parsed)
    java_home = prepare_environment(parsed)
    if java_home is not None:
        _add_archive(settings, parsed, java_home)
    _refuse_second_session()
    return _start(parsed, url, app_name, settings)


def _add_archive(settings: dict[str, str], master: MasterUrl, java_home: Path) -> None:
    """Let JVMs on this machine map the class archive that archive.py made, if there is one."""
    option = archive_option(java_home)
    for side in ("driver", "executor") if master.on_this_machine else ("driver",):
        key = f"spark.{side}.defaultJavaOptions"
        settings[key] = f"{settings[key]} {option}".strip()


def _refuse_second_session() -> None:
    from pyspark import SparkContext

    running = SparkContext._active_spark_context
    if running is not None:
        raise MillraceError(
            f"A Spark session already runs in this process (master {running.master}, application {running.appName!r}), and "
            "its settings cannot be changed. Stop it first, or let the engine use it: "
            "MicrobatchEngine(spark=...) or ResidentEngine(spark=...)."
        )


def _start(master: MasterUrl, url: str, app_name: str, settings: dict[str, str]) -> SparkContext:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException

    settings = {**settings, "spark.master": url, "spark.app.name": app_name}
    ask_only_about_numpy()
    try:
        _start_jvm(without_secrets(settings))
        start_up.reached("java")
        with _own_interrupt_handler():
            context = SparkContext(conf=SparkConf().setAll([*settings.items()]))
        _silence_accumulator_server(context)
        start_up.reached("spark")
        return context
    except (PySparkException, Py4JError, OSError) as error:
        if SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()  # a half-made context would block the next attempt
        raise _not_started(master, error, SECRET in settings) from error


def without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings for the JVM's command line, which every user of the host can read. All settings are passed later, over a
    socket of this process."""
    return {key: value for key, value in settings.items() if not is_secret(key, value)}


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Start PySpark's JVM with SIGINT and SIGTERM blocked: a JVM abandoned half-way through its start would never end."""
    from pyspark import SparkConf, SparkContext

    earlier_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll([*settings.items()]))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier_mask)


@contextlib.contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Keep the caller's Ctrl-C handler. SparkContext installs one that cancels every job at once, which would kill the
    workers before the driver could ask them to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _silence_accumulator_server(context: SparkContext) -> None:
    """Keep PySpark's accumulator server from printing a stack trace when the JVM dies: the engine reports that in a line."""
    server: Any = context._accumulatorServer
    server.handle_error = lambda request, address: log.info("the JVM at %s has ended", address)


def _not_started(master: MasterUrl, error: Exception, with_secret: bool) -> MillraceError:
    if master.kind == "spark" and "stopped SparkContext" in str(error):
        return MasterUnreachable(
            f"Something listens at {master.url}, but it did not accept the application within a minute. Check that it is a "
            f"Spark master of release {version('pyspark')}, and that the port is the master's (usually 7077; 8080 is its "
            "web page)."
            + (f" Its master and workers must have the same {SECRET} and the settings for encryption, in spark-defaults.conf: "
               "docs/DEPLOYMENT.md#security." if with_secret else
               f" If it has spark.authenticate=true, pass its secret with --set {SECRET}=env:NAME.")
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = "\n".join([line for line in lines if not line.startswith("An error occurred while calling")][:4])
    return MillraceError(
        f"Spark did not start on {master.url}: {reason or type(error).__name__}\n"
        "Set MILLRACE_SPARK_LOG=info in the environment to see Spark's own log."
    )


def stop_spark(context: SparkContext) -> bool:
    """Stop Spark, with its session if it has one. Returns False if Spark had already ended; PySpark's record of its JVM is
    cleared then, so that the next start makes another one."""
    from pyspark.sql import SparkSession

    from millrace.spark.session.errors import SPARK_ERRORS, first_line, is_gone

    gone, session = is_gone(context), SparkSession._instantiatedSession
    try:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # PySpark warns that the JVM may be gone
            (session if session is not None and session.sparkContext is context else context).stop()
    except SPARK_ERRORS as error:
        log.info("Spark could not be stopped: %s", first_line(error))
        _forget_jvm(context)
        return False
    return not gone


def _forget_jvm(context: SparkContext) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context.stop()  # the Python side of it; this does not call the JVM again
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None

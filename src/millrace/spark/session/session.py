"""Make the Spark session that Millrace's workers run in.

Workers are Spark tasks that live as long as the topology. Spark's defaults are for tasks that last seconds: it would
give up on one after four deaths, start a second copy of a slow one, or leave no core for its own small jobs. The
settings here are for the long-lived kind; `session_settings` computes them without Spark, so that tests can read them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from millrace.errors import MasterUnreachable, MillraceError, NotEnoughSlots
from millrace.spark.session.java import HOME_NAME, archive_option, ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARE_CORES = 2  # for Spark's own small jobs: with every core held by a worker they wait for ever, without an error
MANY_FAILURES = 1_000_000  # Spark counts over the whole life of a task, and ours live for days
CONNECT_SECONDS = 12.0
HASH_SEED = "0"
LOOPBACK = "127.0.0.1"
# Executors on which tasks have failed get no more of them, for an hour. All that is run here is run again where it failed.
EXCLUDING = ("spark.excludeOnFailure.enabled", "spark.excludeOnFailure.application.enabled",
             "spark.excludeOnFailure.taskAndStage.enabled")

# C1 and the serial collector start fastest and use the fewest threads; the JVMs here mostly host Python. The JVM's own
# log is off: it goes to stdout, which belongs to the user's command, and complains about a class archive that is stale.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
# Batches pass through the JVMs, and DataFrames are read there: the compiler and the collector made for that pay.
BATCH_JAVA_OPTIONS = "-XX:+UseParallelGC -Xlog:disable"

# Of another Spark, or of Spark Connect: left in the environment they send this session somewhere else.
MISLEADING_VARIABLES = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE", "MASTER")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MasterUrl:
    """A Spark master URL, taken apart. `kind` is local, local-cluster, spark, k8s or yarn."""

    url: str
    kind: str
    cores: int = 0
    executor_memory_mb: int = 0
    addresses: tuple[tuple[str, int], ...] = ()

    @property
    def on_this_machine(self) -> bool:
        """Driver and executors share this machine and its files: nothing has to listen beyond the loopback."""
        return self.kind in ("local", "local-cluster")

    @property
    def on_loopback(self) -> bool:
        hosts = {host for host, _ in self.addresses}
        return self.on_this_machine or (bool(hosts) and hosts <= {LOOPBACK, "localhost"})


def parse_master(url: str) -> MasterUrl:
    """Take a master URL apart, so that a wrong one is refused here and not by a stack trace ten seconds later."""
    text = url.strip()
    if local := re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?", text):
        cores = {None: 1, "*": os.cpu_count() or 1}.get(local.group(1)) or int(local.group(1))
        return MasterUrl(text, "local", cores=cores)
    if cluster := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]", text):
        executors, cores, memory = (int(part) for part in cluster.groups())
        return MasterUrl(text, "local-cluster", cores=executors * cores, executor_memory_mb=memory)
    if text.startswith("spark://"):
        parts = text.removeprefix("spark://").split(",")
        return MasterUrl(text, "spark", addresses=tuple(_address(part, 7077, url) for part in parts))
    if text.startswith("k8s://"):
        rest = text.removeprefix("k8s://")
        default = 80 if rest.startswith("http://") else 443
        return MasterUrl(text, "k8s", addresses=(_address(rest.split("://")[-1], default, url),))
    if text == "yarn":
        return MasterUrl(text, "yarn")
    raise MillraceError(
        f"{url!r} is not a Spark master. It can be local[N], local-cluster[EXECUTORS,CORES,MEGABYTES], "
        "spark://HOST:PORT, k8s://https://HOST:PORT or yarn."
    )


def _address(text: str, default_port: int, url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or default_port
    except ValueError as error:
        raise MillraceError(f"The Spark master {url!r} has no usable address: {error}.") from error
    if not host:
        raise MillraceError(f"The Spark master {url!r} names no host; it should look like spark://HOST:PORT.")
    return host, port


def session_settings(master: str, slots: int, extra: Mapping[str, str] | None = None,
                     java: str = JAVA_OPTIONS) -> tuple[str, dict[str, str]]:
    """The master URL to give to Spark and its settings, for `slots` long-lived workers. `extra` wins over all of it;
    options for the JVM are put together with ours instead of replacing them."""
    parsed = parse_master(master)
    settings = {
        "spark.speculation": "false",
        "spark.task.maxFailures": str(MANY_FAILURES),
        "spark.excludeOnFailure.enabled": "false",
        "spark.dynamicAllocation.enabled": "false",
        "spark.locality.wait": "0s",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executorEnv.PYTHONHASHSEED": HASH_SEED,
        "spark.api.mode": "classic",
    }
    if parsed.on_loopback:
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if parsed.kind == "local-cluster":
        _check_local_cluster(parsed, slots)
        settings["spark.executor.memory"] = f"{parsed.executor_memory_mb}m"
    extra = dict(extra or {})
    for side in ("driver", "executor"):
        ours = java if side == "executor" and not parsed.on_this_machine else f"{java} {_log_option()}"
        settings[f"spark.{side}.defaultJavaOptions"] = _without_collector_clash(
            ours, extra.get(f"spark.{side}.extraJavaOptions", "")
        )
    return _master_with_room(parsed, slots), settings | extra


def batch_settings(master: str, extra: Mapping[str, str] | None = None) -> tuple[str, dict[str, str]]:
    """The same for jobs that are run batch by batch: all cores are theirs, partitions go where the plan says, and what fails is
    run again as a whole and not by Spark."""
    parsed = parse_master(master)
    _, settings = session_settings(master, 0, extra, BATCH_JAVA_OPTIONS)
    settings |= {
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.locality.wait": "10s",  # an executor that is gone is not waited for
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    }
    if parsed.on_this_machine:
        settings["spark.shuffle.compress"] = "false"  # it costs more than the bytes that it saves
        settings["spark.sql.shuffle.partitions"] = str(parsed.cores)  # a write function may group; 200 are for clusters
    url = f"local[{parsed.cores}]" if parsed.kind == "local" else parsed.url
    return url, settings | dict(extra or {})


def _master_with_room(master: MasterUrl, slots: int) -> str:
    """`local[N]` never runs a failed task again, `local[N,F]` does; and it needs a thread for every worker, however few
    cores the machine has, as a worker holds its thread for good."""
    if master.kind != "local":
        return master.url
    return f"local[{max(master.cores, slots + SPARE_CORES)},{MANY_FAILURES}]"


def _check_local_cluster(master: MasterUrl, slots: int) -> None:
    if master.cores < slots + 1:
        raise NotEnoughSlots(
            f"{slots} workers were asked for, and {master.url} has {master.cores} cores. Each worker holds one for "
            f"good, and Spark's own jobs need one more: take at least {slots + 1} (executors x cores)."
        )


def _log_option() -> str:
    return f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def _without_collector_clash(ours: str, theirs: str) -> str:
    """The JVM takes the last of most options, but two collectors stop it: when the user names one, ours goes."""
    if re.search(r"-XX:\+Use\w*GC\b", theirs):
        return " ".join(option for option in ours.split() if not re.fullmatch(r"-XX:\+Use\w*GC", option))
    return ours


def check_reachable(master: MasterUrl, timeout: float = CONNECT_SECONDS) -> None:
    """Knock at the master before Spark does: Spark would take a minute to give up, and say so in a stack trace."""
    if master.kind == "yarn" and not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
        raise MasterUnreachable(
            "The master is yarn, and neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set: where is YARN? "
            "Set one of them to the directory with yarn-site.xml."
        )
    failures = []
    for host, port in master.addresses:
        try:
            socket.create_connection((host, port), timeout=timeout / len(master.addresses)).close()
            return
        except OSError as error:
            failures.append(f"{host}:{port}: {error}")
    if failures:
        raise MasterUnreachable(
            f"The Spark master {master.url} does not answer ({'; '.join(failures)}). "
            "Check that it runs and that host and port are right, or use local[N] to run on this machine."
        )


def spark_home(environ: Mapping[str, str]) -> Path:
    """Spark's own files: SPARK_HOME when it is the release that the pyspark package talks to, else the package's.

    A SPARK_HOME that points nowhere or to another release would fail in ways that do not name it.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MillraceError(f"pyspark is not installed here. Install it: {sys.executable} -m pip install pyspark")
    given = environ.get("SPARK_HOME", "")
    if given and any(Path(given, "jars").glob(f"spark-core_*-{version('pyspark')}.jar")):
        return Path(given)
    if given:
        log.warning("SPARK_HOME=%s is passed over: it is not Spark %s, as pyspark is", given, version("pyspark"))
    return Path(spec.origin).parent


def home_for_this_machine(home: Path, java_home: Path) -> Path:
    """Spark's files without its zip of PySpark, as a directory of links beside the Java that is used. Python processes that
    Spark starts look into that zip first, and it has sources only: each would compile them anew, for more than a second.
    Without it they find the installed package, which is the same."""
    place = java_home / f"{HOME_NAME}-{version('pyspark')}"
    try:
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=java_home) as scratch:
                made = Path(scratch, "home")
                made.mkdir()
                for path in home.iterdir():
                    if path.name != "python":
                        (made / path.name).symlink_to(path)
                with contextlib.suppress(FileExistsError):  # another process was faster
                    made.rename(place)
    except OSError as error:
        log.info("Python processes will start slower: %s", error)
        return home
    return place if (place / "jars").resolve() == (home / "jars").resolve() else home


def _prepare_environment(master: MasterUrl) -> Path | None:
    """Set the variables that PySpark and its children read; the JAVA_HOME to use, or None when spark-submit has already
    started the JVM. They stay set: what Spark starts again later reads them too."""
    for name in MISLEADING_VARIABLES:
        if os.environ.pop(name, None):
            log.warning("%s is left out of account: it would send the session elsewhere than to %s", name, master.url)
    java_home = None if "PYSPARK_GATEWAY_PORT" in os.environ else ensure_java()
    if java_home is not None:
        home = spark_home(os.environ)
        if master.on_this_machine and home == spark_home({}):
            home = home_for_this_machine(home, java_home)
        os.environ |= {"JAVA_HOME": str(java_home), "SPARK_HOME": str(home)}
    os.environ |= {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONHASHSEED": HASH_SEED}
    if master.on_this_machine:
        os.environ.pop("SPARK_LOCAL_HOSTNAME", None)
        os.environ |= {"SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable}
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the other machines may keep theirs elsewhere
    return java_home


@contextlib.contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Keep the caller's Ctrl-C. SparkContext installs a handler that cancels every job at once, which would kill the
    workers before the driver could ask them to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Ctrl-C has to wait while PySpark starts its JVM: one that is left alone half-way would never end."""
    from pyspark import SparkConf, SparkContext

    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll([*settings.items()]))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def make_session(master: str, app_name: str, slots: int, extra: dict[str, str] | None = None) -> SparkSession:
    """A session with room for `slots` long-lived workers. Call it from the main thread to keep your own Ctrl-C handler.

    Raises JavaNotFound, MasterUnreachable, NotEnoughSlots, or MillraceError when Spark does not start or already runs
    in this process: an existing session would be handed back with its own settings, under which workers that die are
    not started again or never start at all.
    """
    url, settings = session_settings(master, slots, extra)
    return _make(master, url, app_name, settings)


def make_batch_session(master: str, app_name: str, extra: dict[str, str] | None = None) -> SparkSession:
    """A session for the microbatch engine; otherwise as `make_session`."""
    url, settings = batch_settings(master, extra)
    return _make(master, url, app_name, settings)


def _make(master: str, url: str, app_name: str, settings: dict[str, str]) -> SparkSession:
    parsed = parse_master(master)
    check_reachable(parsed)
    java_home = _prepare_environment(parsed)
    if java_home is not None:
        _add_archive(settings, parsed, java_home)
    _refuse_second_session()
    return _start(parsed, url, app_name, settings)


def _refuse_second_session() -> None:
    from pyspark import SparkContext

    running = SparkContext._active_spark_context
    if running is not None:
        raise MillraceError(
            f"A Spark session already runs in this process (master {running.master}, application {running.appName!r}). "
            "Stop it first, since its settings cannot be changed any more; or let the engine use it: "
            "MicrobatchEngine(spark=...) or ResidentEngine(spark=...)."
        )


def _start(master: MasterUrl, url: str, app_name: str, settings: dict[str, str]) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from millrace.spark.sources import register

    builder = SparkSession.builder.master(url).appName(app_name).config(map={**settings})
    try:
        _start_jvm({**settings, "spark.master": url, "spark.app.name": app_name})
        with _own_interrupt_handler():
            spark = builder.getOrCreate()
        _keep_quiet_at_the_end(spark)
        register(spark)
        return spark
    except (PySparkException, Py4JError, OSError) as error:
        if SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()  # half a context would stand in the way of the next try
        raise _not_started(master, error) from error


def _keep_quiet_at_the_end(spark: SparkSession) -> None:
    """PySpark's server for accumulators prints a stack trace when the JVM dies, of which the engine tells in one line."""
    server: Any = spark.sparkContext._accumulatorServer
    server.handle_error = lambda request, address: log.info("the JVM at %s has ended", address)


def stop_session(spark: SparkSession) -> bool:
    """Whether Spark was there to be stopped. If its JVM is gone, what PySpark knows of it is forgotten: the next session gets
    another one."""
    from millrace.spark.session.errors import SPARK_ERRORS, first_line
    from millrace.spark.session.gone import is_gone

    gone = is_gone(spark)
    try:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # PySpark's own, that the JVM may be gone
            spark.stop()
    except SPARK_ERRORS as error:
        log.info("Spark could not be stopped: %s", first_line(error))
        _forget_jvm(spark)
        return False
    return not gone


def _forget_jvm(spark: SparkSession) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    spark.sparkContext.stop()  # the rest of it: the JVM is not asked any more
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _not_started(master: MasterUrl, error: Exception) -> MillraceError:
    if master.kind == "spark" and "stopped SparkContext" in str(error):
        return MasterUnreachable(
            f"Something listens at {master.url}, but it did not take the application within a minute. Check that it is "
            f"a Spark master of release {version('pyspark')} and the port its own (mostly 7077; 8080 is its web page)."
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = "\n".join([line for line in lines if not line.startswith("An error occurred while calling")][:4])
    return MillraceError(
        f"Spark did not start on {master.url}: {reason or type(error).__name__}\n"
        "Set MILLRACE_SPARK_LOG=info in the environment to see Spark's own log."
    )


def _add_archive(settings: dict[str, str], master: MasterUrl, java_home: Path) -> None:
    """Let the JVMs on this machine map the classes that archive.py has prepared, where it has."""
    option = archive_option(java_home)
    for side in ("driver", "executor") if master.on_this_machine else ("driver",):
        key = f"spark.{side}.defaultJavaOptions"
        settings[key] = f"{settings[key]} {option}".strip()

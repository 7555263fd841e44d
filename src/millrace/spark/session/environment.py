"""The environment variables that PySpark and its child processes read, and the Spark installation to use."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from millrace.errors import MillraceError
from millrace.spark.session.java import HOME_NAME, ensure_java
from millrace.spark.session.master_url import LOOPBACK, MasterUrl
from millrace.spark.session.settings import HASH_SEED

# Variables for another Spark or for Spark Connect, which would send this session elsewhere.
MISLEADING_VARIABLES = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE", "MASTER")

log = logging.getLogger(__name__)


def prepare_environment(master: MasterUrl) -> Path | None:
    """Set the variables that PySpark and its children read, for the life of this process: Spark rereads them whenever it
    starts a process. Returns the JAVA_HOME to use, or None if spark-submit has already started the JVM."""
    for name in MISLEADING_VARIABLES:
        if os.environ.pop(name, None):
            log.warning("%s is ignored: it would send the session elsewhere than to %s", name, master.url)
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
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # other machines may have Python elsewhere
    return java_home


def spark_home(environ: Mapping[str, str]) -> Path:
    """The directory of Spark's own files: SPARK_HOME if it is the release of the pyspark package, else the package itself.

    A SPARK_HOME that points nowhere, or to another release, would fail with errors that do not name it.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MillraceError(f"pyspark is not installed here. Install it: {sys.executable} -m pip install pyspark")
    home = environ.get("SPARK_HOME", "")
    if home and any(Path(home, "jars").glob(f"spark-core_*-{version('pyspark')}.jar")):
        return Path(home)
    if home:
        log.warning("SPARK_HOME=%s is ignored: it is not Spark %s, the release of pyspark", home, version("pyspark"))
    return Path(spec.origin).parent


def home_for_this_machine(home: Path, java_home: Path) -> Path:
    """Spark's files without its zip of PySpark, as a directory of links beside the Java in use.

    Spark's Python processes search that zip first. It holds sources only, which each process would compile again, for more
    than a second. Without the zip they import the installed package, which is the same code.
    """
    place = java_home / f"{HOME_NAME}-{version('pyspark')}"
    try:
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=java_home) as scratch:
                links = Path(scratch, "home")
                links.mkdir()
                for path in home.iterdir():
                    if path.name != "python":
                        (links / path.name).symlink_to(path)
                with contextlib.suppress(FileExistsError):  # another process was faster
                    links.rename(place)
    except OSError as error:
        log.info("Python processes will start more slowly: %s", error)
        return home
    return place if (place / "jars").resolve() == (home / "jars").resolve() else home

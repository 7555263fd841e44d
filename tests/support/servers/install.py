"""Installs the servers that tests need, once, before pytest starts: `python -m support.servers.install` in tests/.

Prints one line for each server that is missing. Always exits with 0: tests of a missing server are skipped and counted,
or fail if the run requires servers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.servers.catalog import SERVERS, Server

LOCK = Path("/run/lock/millrace-test-servers")
POLICY = Path("/usr/sbin/policy-rc.d")
APT_SECONDS = 600


def install_missing(servers: Sequence[Server] = SERVERS) -> None:
    missing = [server for server in servers if server.find() is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        for server in missing:
            _report(f"{server.name} is not installed, and only root on Debian can install it: apt-get install {server.package}")
        return
    try:
        with _lock():
            missing = [server for server in missing if server.find() is None]  # another run may have installed it meanwhile
            if missing:
                with _services_stay_off():
                    _install(missing)
    except OSError as error:
        _report(f"{', '.join(server.name for server in missing)} could not be installed: {error}")


def _install(missing: Sequence[Server]) -> None:
    _apt_get(["update"])  # if it fails, the package lists may still suffice
    for server in missing:
        _report(f"installing {server.name} for the tests (apt-get install {server.package}; --no-install prevents this)")
        failure = _apt_get(["install", "--yes", "--no-install-recommends", server.package])
        if failure:
            _report(f"{server.name} could not be installed: {failure}")
        elif server.find() is None:
            _report(f"{server.name} was installed, and its program is not where Debian's package puts it")


def _apt_get(arguments: list[str]) -> str:
    """Returns the reason of a failure, or an empty text."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1", "LC_ALL": "C"}
    command = ["apt-get", "-qq", "-o", f"DPkg::Lock::Timeout={APT_SECONDS}", *arguments]
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=APT_SECONDS, umask=0o022, check=False)
    except subprocess.TimeoutExpired:
        return f"apt-get did not end within {APT_SECONDS} s"
    return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[-500:]


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """One installation at a time on this machine; a second run waits for the first."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _report("waiting for another run that installs servers")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _services_stay_off() -> Iterator[None]:
    """Debian starts a service when it installs it, unless this script forbids it. An existing script is left alone."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def _report(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    install_missing()
    sys.exit(0)

"""Real servers for tests: the Debian package they come in, and a port for them."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

POLICY = Path("/usr/sbin/policy-rc.d")
APT_SECONDS = 240


@functools.cache
def install_debian_package(package: str) -> str:
    """Installs a package if that can be done here. Returns why not, or an empty text."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"{package} is not installed, and only root on Debian can install it: apt-get install {package}"
    with _services_stay_off():
        for command in (["update"], ["install", "--yes", "--no-install-recommends", package]):
            failure = _apt_get(command)
            if failure and command[0] == "install":  # an update that fails may still have left what is needed
                return f"apt-get install {package} failed: {failure}"
    return ""


def _apt_get(arguments: list[str]) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    try:
        done = subprocess.run(["apt-get", "-qq", *arguments], env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=APT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no end after {APT_SECONDS} s"
    return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[-500:]


@contextlib.contextmanager
def _services_stay_off() -> Iterator[None]:
    """Debian starts a service when it installs it, unless this script says no. One that is there is left as it is."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

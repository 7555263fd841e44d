"""A file system that is soon full."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

from support.servers.needed import not_tested


def mount_small_disk(directory: Path, options: str) -> None:
    """Mount a tmpfs with these options on the directory; `umount` is the caller's. Skips the test if that is not possible."""
    program = shutil.which("mount")
    if os.geteuid() != 0 or program is None:
        _cannot_be_mounted("only root can, with the program mount")
    mount = subprocess.run([program, "-t", "tmpfs", "-o", options, "millrace-test", str(directory)], capture_output=True,
                           text=True, check=False)
    if mount.returncode != 0:
        _cannot_be_mounted(mount.stderr.strip())


def _cannot_be_mounted(reason: str) -> NoReturn:
    not_tested("full disks", "the right to mount a file system", f"a small disk cannot be mounted here: {reason}")

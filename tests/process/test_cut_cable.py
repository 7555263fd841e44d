"""The cable between two hosts is cut under load: the sink and the state have every word once.

The hosts are network namespaces, so this needs root.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from support.network.hosts import two_hosts

LIMIT_SECONDS = 400  # for a driver on a busy machine


@pytest.mark.parametrize("cut", ["unnoticed", pytest.param("noticed", marks=pytest.mark.slow)])
def test_nothing_is_lost_or_repeated(cut: str, tmp_path: Path) -> None:
    with two_hosts("a cut between two hosts") as (near, far):
        request = {"near": asdict(near), "far": asdict(far), "directory": str(tmp_path), "cut": cut}
        done = subprocess.run(near.command(sys.executable, "-m", "support.network.cut_driver"), text=True,
                              input=json.dumps(request), capture_output=True, timeout=LIMIT_SECONDS, check=False,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
    assert done.returncode == 0, done.stderr[-4000:]

"""Skips tests whose server is not installed, and counts them for the end of the run.

With MILLRACE_TEST_SERVERS=required (`./millrace test --require-servers`) they fail instead.
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Iterable

import pytest

from support.servers.catalog import SERVERS, Server

PROPERTY = "missing server"  # of a test's report, so that it crosses from xdist's workers to the process that prints
REQUIRED = "MILLRACE_TEST_SERVERS"


class ServerMissing(pytest.skip.Exception):
    """Skips a test because its server is not installed."""

    def __init__(self, server: Server, reason: str) -> None:
        super().__init__(reason)
        self.server = server


def locate(server: Server) -> str:
    """The server's program. Skips the test, or fails it if servers are required, when it is not installed."""
    place = server.find()
    if importlib.util.find_spec(server.module) is None:
        reason = f"the Python package {server.module} is not installed; ./millrace installs it"
    elif place is None:
        reason = server.advice()
    else:
        return place
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{reason}. This run requires its servers ({REQUIRED}=required).", pytrace=False)
    raise ServerMissing(server, reason)


def not_tested(reports: Iterable[pytest.TestReport]) -> str:
    """One line on the claims that were not tested and the number of tests; empty if all were."""
    names = Counter(value for report in reports for name, value in report.user_properties if name == PROPERTY)
    parts = [f"{server.claims} ({names[server.name]} tests need {server.name})" for server in SERVERS if names[server.name]]
    return f"NOT TESTED, {sum(names.values())} tests skipped: {'; '.join(parts)}." if parts else ""

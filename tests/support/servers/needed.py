"""Skips tests that need a server or a right that this machine does not give, and counts them for the end of the run.

With MILLRACE_TEST_SERVERS=required (`./millrace test --require-servers`) tests without their server fail instead. A missing
right is only reported: a container may refuse it to root too.
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

import pytest

from support.servers.catalog import Server

PROPERTY = "not tested"  # of a test's report, so that it crosses from xdist's workers to the process that prints
REQUIRED = "MILLRACE_TEST_SERVERS"


class NotTested(pytest.skip.Exception):
    """Skips a test that needs something that is missing here. `claim`: what therefore remains unproven."""

    def __init__(self, claim: str, need: str, reason: str) -> None:
        super().__init__(reason)
        self.claim, self.need = claim, need


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
    raise NotTested(server.claims, server.name, reason)


def not_tested(claim: str, need: str, reason: str) -> NoReturn:
    """Skip the test, and name the claim and the need at the end of the run."""
    raise NotTested(claim, need, reason)


def summary(reports: Iterable[pytest.TestReport]) -> str:
    """One line on the claims that were not tested and the number of tests; empty if all were."""
    counts = Counter(tuple(value) for report in reports for name, value in report.user_properties if name == PROPERTY)
    parts = [f"{claim} ({count} {'test needs' if count == 1 else 'tests need'} {need})"
             for (claim, need), count in sorted(counts.items())]
    tests = "test" if counts.total() == 1 else "tests"
    return f"NOT TESTED, {counts.total()} {tests} skipped: {'; '.join(parts)}." if parts else ""

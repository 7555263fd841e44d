"""Marks tests that run on a real Spark. Files with SHARES_SPARK use one session; every other file starts its own Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.processes.shared_spark import shared_session, stop_shared_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(autouse=True, scope="session")
def _stopped_at_the_end() -> Iterator[None]:
    yield
    stop_shared_session()


@pytest.fixture(autouse=True, scope="module")
def _one_spark_at_a_time(request: pytest.FixtureRequest) -> None:
    if not getattr(request.module, "SHARES_SPARK", False):
        stop_shared_session()


@pytest.fixture(scope="module")
def shared_spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    assert request.module.SHARES_SPARK
    session = shared_session()
    yield session
    assert not session.streams.active, "a test left a query running"

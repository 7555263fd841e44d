"""Passwords do not appear in what people see: messages, events, reprs, errors and saved files."""

from __future__ import annotations

import pickle
from typing import ClassVar

import pytest

from millrace.api.topology import Topology
from millrace.cli.options import sorted_settings
from millrace.control.events import Say
from millrace.errors import MillraceError, TopologyError, UnknownName
from millrace.master.service import Master
from millrace.model.cluster import Cluster
from millrace.model.graph import graph_of
from millrace.model.situation import Situation
from millrace.redaction import is_secret, redact, redacted, shown_place
from millrace.runtime.tasks.user_errors import describe
from millrace.spark.sources.state import StateOptions
from millrace.workloads.wordcount import Lines

PASSWORD = "hunter2"


@pytest.mark.parametrize(("text", "shown"), [
    ("redis://:hunter2@host:6379/0", "redis://:***@host:6379/0"),
    ("redis://hunter2@host", "redis://***@host"),
    ("no answer (rediss://me:hunter2@host/0?ssl_ca_certs=/ca.pem).", "no answer (rediss://me:***@host/0?ssl_ca_certs=/ca.pem)."),
    ("'postgresql+psycopg://me:hunter2@host/db' and s3://key:hunter2@bucket/x",
     "'postgresql+psycopg://me:***@host/db' and s3://key:***@bucket/x"),
    ("postgresql://me:hunter2/@hunter2@host/db", "postgresql://me:***@host/db"),  # not percent-encoded
    ("postgresql://host/db?user=me&password=hunter2&sslmode=require",
     "postgresql://host/db?user=me&password=***&sslmode=require"),
    ("zookeeper://me:hunter2@one:2181,two:2181", "zookeeper://me:***@one:2181,two:2181"),
    *[(text, text) for text in ("spark://host:7077", "hdfs:///millrace or /a/path", "ask me@example.org")],
])
def test_user_and_password_of_urls_are_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown


def test_the_place_of_a_store_has_neither_user_nor_query() -> None:
    assert shown_place("rediss://me:hunter2@host:6380/0?ssl_ca_certs=/ca.pem") == "rediss://host:6380/0"
    assert shown_place("/a/path?odd") == "/a/path?odd"
    assert shown_place("redis://[not an address") == "redis://[not an address"


def test_plain_values_are_redacted_inside() -> None:
    assert redacted({"url": "redis://:hunter2@host", "list": ["redis://:hunter2@host", 1], "n": None}) == {
        "url": "redis://:***@host", "list": ["redis://:***@host", 1], "n": None}


@pytest.mark.parametrize(("key", "value", "secret"), [
    ("spark.authenticate.secret", "hunter2", True),
    ("spark.hadoop.fs.s3a.access.key", "hunter2", True),
    ("spark.ssl.rpc.keyStorePassword", "hunter2", True),
    ("spark.sql.catalog.x.url", "jdbc:postgresql://me:hunter2@host/db", True),
    ("spark.executor.memory", "2g", False),
    ("spark.authenticate", "true", False),
])
def test_secrets_among_sparks_settings(key: str, value: str, secret: bool) -> None:
    assert is_secret(key, value) is secret


@pytest.mark.parametrize("kind", [MillraceError, TopologyError, UnknownName])
def test_errors_hide_passwords(kind: type[MillraceError]) -> None:
    error = kind(f"cannot use 'redis://:{PASSWORD}@host'")
    for shown in (str(error), repr(error), describe(error), str(pickle.loads(pickle.dumps(error)))):
        assert PASSWORD not in shown and "redis://:***@host" in shown


def test_errors_of_libraries_hide_passwords() -> None:
    assert describe(ValueError(f"bad url redis://:{PASSWORD}@host")) == "ValueError: bad url redis://:***@host"


class _Guarded(Topology):
    lines = Lines.spec(config={"url": f"redis://:{PASSWORD}@host"})
    config: ClassVar[dict[str, object]] = {"sink.url": f"redis://:{PASSWORD}@host"}


def test_a_saved_situation_and_reprs_have_no_password() -> None:
    graph = graph_of(_Guarded)
    saved = str(Situation((graph,), Cluster((), ())).to_json())
    assert "redis://:***@host" in saved and PASSWORD not in saved
    settings = sorted_settings([f"checkpoint.store=redis://:{PASSWORD}@host", f"url=redis://:{PASSWORD}@host",
                                f"spark.authenticate.secret={PASSWORD}"])
    options = StateOptions("t", "c", "s", f"redis://:{PASSWORD}@host")
    for value in (graph, graph.components, settings, options):
        assert PASSWORD not in repr(value)


def test_events_and_the_workers_setup_have_no_password() -> None:
    master = Master("redacted", settings={"history.url": "none", "checkpoint.store": f"redis://:{PASSWORD}@host"})
    try:
        heard: list[str] = []
        master.events.listeners.append(lambda message: heard.append(message.text))
        master.say(Say(f"redis://:{PASSWORD}@host does not answer"))
        assert [event["text"] for event in master.events] == heard == ["redis://:***@host does not answer"]
        assert PASSWORD not in repr(master.setup()) and PASSWORD in str(master.setup().settings)
    finally:
        master.stop()

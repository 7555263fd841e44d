"""Spark master URLs: parsing, and the check that the master answers."""

from __future__ import annotations

import socket

import pytest

from millrace.errors import MasterUnreachable, MillraceError
from millrace.spark.session.master_url import check_reachable, parse_master


@pytest.mark.parametrize(
    "url", ["foo", "", "local[x]", "local-cluster[2,2]", "spark://", "spark://h:x", "sc://h", "http://h"]
)
def test_an_invalid_master_is_refused_by_name(url: str) -> None:
    with pytest.raises(MillraceError, match="master"):
        parse_master(url)


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("spark://h:1", (("h", 1),)),
        ("spark://a:1,b", (("a", 1), ("b", 7077))),
        ("spark://[::1]:7077", (("::1", 7077),)),
        ("k8s://https://h", (("h", 443),)),
        ("k8s://h:6443", (("h", 6443),)),
        ("local[2]", ()),
    ],
)
def test_addresses_of_a_master(url: str, addresses: tuple[tuple[str, int], ...]) -> None:
    assert parse_master(url).addresses == addresses


def test_a_master_that_does_not_answer_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_reachable(parse_master(f"spark://127.0.0.1:{port}"))
    with pytest.raises(MasterUnreachable, match=rf"spark://127.0.0.1:{port} does not answer .*refused.*local\[N\]"):
        check_reachable(parse_master(f"spark://127.0.0.1:{port}"))


def test_one_answering_master_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_reachable(parse_master(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}"))


def test_yarn_needs_to_know_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    with pytest.raises(MasterUnreachable, match="HADOOP_CONF_DIR"):
        check_reachable(parse_master("yarn"))

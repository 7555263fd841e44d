"""Spark's settings for encryption between hosts, and the check of sessions."""

from __future__ import annotations

import pytest

from millrace.cli.main import app
from millrace.errors import NotEncrypted
from millrace.spark.session.encryption import ENCRYPTED, check_encryption, check_stores
from millrace.spark.session.master_url import parse_master
from millrace.spark.session.session import without_secrets
from millrace.spark.session.settings import batch_settings, session_settings

SECRET = {"spark.authenticate.secret": "hunter2"}
STANDALONE = parse_master("spark://one:7077")


@pytest.mark.parametrize(("master", "extra"), [("yarn", {}), ("k8s://https://one", {}), ("spark://one:7077", SECRET)])
def test_sessions_off_the_loopback_are_encrypted(master: str, extra: dict[str, str]) -> None:
    for _, settings in (session_settings(master, 2, extra), batch_settings(master, extra)):
        assert {key: settings.get(key) for key in ("spark.authenticate", "spark.network.crypto.enabled",
                                                   "spark.io.encryption.enabled")} == {
            "spark.authenticate": "true", "spark.network.crypto.enabled": "true", "spark.io.encryption.enabled": "true"}
        assert check_encryption(settings, parse_master(master), required=True) == []


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,700]", "spark://127.0.0.1:7077"])
def test_on_one_host_nothing_is_needed(master: str) -> None:
    _, settings = session_settings(master, 1)
    assert not ENCRYPTED.keys() & settings.keys()
    assert check_encryption(settings, parse_master(master), required=True) == []


def test_a_standalone_cluster_without_its_secret_is_reported_and_refused_if_encryption_is_required() -> None:
    _, settings = session_settings("spark://one:7077", 2)
    assert not ENCRYPTED.keys() & settings.keys()  # with them, and without the secret, Spark would not start
    [text] = check_encryption(settings, STANDALONE, required=False)
    assert "no spark.authenticate=true and no spark.network.crypto.enabled=true" in text
    assert "--set spark.authenticate.secret=env:NAME" in text
    with pytest.raises(NotEncrypted, match="encryption is required, and not everything is encrypted"):
        check_encryption(settings, STANDALONE, required=True)


def test_users_can_override_the_settings() -> None:
    _, settings = session_settings("yarn", 2, {"spark.io.encryption.enabled": "false"})
    [text] = check_encryption(settings, parse_master("yarn"), required=False)
    assert text.startswith("Spark writes shuffle data to local disks unencrypted: the session has no "
                           "spark.io.encryption.enabled=true.")
    assert "between hosts" not in text and "network.crypto" not in text


@pytest.mark.parametrize("key", ["spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption"])
def test_sparks_other_ciphers_are_accepted(key: str) -> None:
    conf = {"spark.authenticate": "true", "spark.io.encryption.enabled": "true", key: "true"}
    assert check_encryption(conf, STANDALONE, required=True) == []


@pytest.mark.parametrize(("key", "url", "refused"), [
    ("checkpoint.store", "redis://:hunter2@one:6379/0", True),
    ("checkpoint.store", "rediss://:hunter2@one:6379/0", False),
    ("checkpoint.store", "redis://127.0.0.1:6379/0", False),
    ("checkpoint.store", "redis://[::1]:6379/0", False),
    ("checkpoint.store", "/a/directory", False),
    ("checkpoint.store", "s3://key:hunter2@bucket/path?region=eu-north-1", False),
    ("checkpoint.store", "s3://key:hunter2@bucket/path?endpoint_override=one:9000&scheme=https", False),
    ("checkpoint.store", "s3://key:hunter2@bucket/path?scheme=http", True),
    ("checkpoint.store", "s3a://bucket?endpoint_override=one:9000&scheme=http", True),
    ("checkpoint.store", "s3://bucket?endpoint_override=http%3A%2F%2Fone%3A9000", True),
    ("checkpoint.store", "s3://bucket?scheme=http&endpoint_override=127.0.0.1%3A9000", False),
    ("checkpoint.store", "s3://bucket?endpoint_override=http://localhost:9000", False),
    ("checkpoint.store", "gs://bucket/path", False),
    ("checkpoint.store", "gs://anonymous@bucket?scheme=http&endpoint_override=one:4443", True),
    ("checkpoint.store", "abfs://container@account.dfs.core.windows.net/path", False),
    ("checkpoint.store", "abfs://account/container?enable_tls=false&blob_storage_authority=.one:10000", True),
    ("checkpoint.store", "abfs://account/container?enable_tls=false&blob_storage_authority=127.0.0.1:10000", False),
    ("checkpoint.store", "hdfs://one:8020/path", True),
    ("checkpoint.store", "hdfs:///path", True),
    ("checkpoint.store", "viewfs://one/path", True),
    ("checkpoint.store", "hdfs://localhost:8020/path", False),
    ("coordination.store", "zookeeper://127.0.0.1:2181,one:2181", True),
    ("coordination.store", "zookeeper://me:hunter2@localhost:2181,127.0.0.1:2182", False),
    ("coordination.store", "embedded", False),
])
def test_required_encryption_includes_the_stores(key: str, url: str, refused: bool) -> None:
    if not refused:
        check_stores({key: url})
        return
    with pytest.raises(NotEncrypted, match=rf"{key} is .*, without TLS") as error:
        check_stores({key: url})
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("engine", ["resident", "microbatch"])
def test_the_command_line_refuses_unencrypted_stores_before_spark_starts(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["millrace", "run", "millrace.workloads.wordcount:WordCount", "--engine", engine,
                                     "--require-encryption", "--set", "checkpoint.store=redis://one:6379/0"])
    with pytest.raises(NotEncrypted, match=r"checkpoint.store is redis://one:6379/0, without TLS: use rediss://"):
        app(standalone_mode=False)


def test_secrets_are_not_on_the_command_line_of_the_jvm() -> None:
    settings = {"spark.driver.memory": "1g", "spark.authenticate": "true", **SECRET,
                "spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.x": "redis://:hunter2@host"}
    assert without_secrets(settings) == {"spark.driver.memory": "1g", "spark.authenticate": "true"}

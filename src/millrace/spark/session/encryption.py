"""Encryption between hosts: the settings that make Spark encrypt, and the check that nothing is sent unencrypted.

The workers' CURVE keys travel with the Spark job, so connections between workers are as secret as Spark's own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from millrace.config import CHECKPOINTS, COORDINATION
from millrace.errors import NotEncrypted
from millrace.redaction import shown_place
from millrace.runtime.plans.zookeeper_access import SCHEME as ZOOKEEPER
from millrace.runtime.plans.zookeeper_access import TLS_SCHEME as ZOOKEEPER_WITH_TLS
from millrace.spark.session.master_url import MasterUrl

SECRET = "spark.authenticate.secret"
AUTHENTICATE, CRYPTO, ON_DISK = "spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"
# Spark's own processes of a standalone cluster need the same, since both ends of a connection must agree.
ENCRYPTED = {
    AUTHENTICATE: "true",
    CRYPTO: "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",  # Spark's default does not notice changed bytes
    "spark.network.crypto.saslFallback": "false",  # else a peer could ask for an unencrypted connection
    ON_DISK: "true",
}
OTHER_CIPHERS = ("spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption")  # Spark's other ways to encrypt
HADOOP = ("hdfs", "viewfs")
SERVERS = ("endpoint_override", "blob_storage_authority", "dfs_storage_authority")  # in URLs of object stores, for Arrow
SEE = "docs/DEPLOYMENT.md#security"


def encryption_settings(master: MasterUrl, extra: Mapping[str, str]) -> dict[str, str]:
    """Settings of a session that Millrace makes. None on one host, nor on a standalone cluster whose secret was not given: YARN
    and Kubernetes make a secret for each application, a standalone cluster has one that all must know."""
    needs_secret = master.kind == "spark"
    return {} if master.on_loopback or (needs_secret and not extra.get(SECRET)) else dict(ENCRYPTED)


def check_encryption(conf: Mapping[str, str], master: MasterUrl, required: bool) -> list[str]:
    """Messages about what a running session does not encrypt; `conf`: its settings. Raises `NotEncrypted` instead if encryption
    is `required`."""
    unencrypted = _unencrypted_in_spark(conf, master)
    if required:
        _refuse(unencrypted)
    return unencrypted


def check_stores(settings: Mapping[str, Any]) -> None:
    """Raise `NotEncrypted` for stores on other hosts without TLS. Only if encryption is required: many are on a private
    network."""
    _refuse(_unencrypted_stores(settings))


def _refuse(unencrypted: list[str]) -> None:
    if unencrypted:
        raise NotEncrypted("encryption is required, and not everything is encrypted. " + " ".join(unencrypted))


def _unencrypted_in_spark(conf: Mapping[str, str], master: MasterUrl) -> list[str]:
    def is_on(key: str) -> bool:
        return str(conf.get(key, "false")).strip().lower() == "true"

    between_hosts = [key for key in (AUTHENTICATE, CRYPTO) if not is_on(key)
                     and not (key == CRYPTO and any(map(is_on, OTHER_CIPHERS)))]
    problems = []
    if between_hosts:
        problems.append("Spark's connections between hosts are not protected, and they carry the workers' keys: the session "
                        f"has no {' and no '.join(f'{key}=true' for key in between_hosts)}.")
    if not is_on(ON_DISK):
        problems.append(f"Spark writes shuffle data to local disks unencrypted: the session has no {ON_DISK}=true.")
    if master.on_loopback or not problems:
        return []
    text = " ".join(problems)
    if between_hosts and master.kind == "spark":
        text += (f" Give this standalone cluster a secret, in the spark-defaults.conf of its master and workers together with "
                 f"{' '.join(f'{key}={value}' for key, value in ENCRYPTED.items())}, and pass it here with "
                 f"--set {SECRET}=env:NAME or --set {SECRET}=@FILE, in Python with spark_settings={{...}}")
    else:
        text += " Create the session with encryption, or let Millrace create it"
    return [f"{text} ({SEE})."]


def _unencrypted_stores(settings: Mapping[str, Any]) -> list[str]:
    problems = []
    checkpoints, plans = str(CHECKPOINTS.of(settings) or ""), str(COORDINATION.of(settings))
    if remedy := _remedy(checkpoints):
        problems.append(f"{CHECKPOINTS.key} is {shown_place(checkpoints)}, without TLS: {remedy} ({SEE}).")
    if plans.startswith(ZOOKEEPER) and not _on_loopback(plans):
        problems.append(f"{COORDINATION.key} is {shown_place(plans)}, without TLS: use {ZOOKEEPER_WITH_TLS} ({SEE}).")
    return problems


def _remedy(store: str) -> str:
    """The way to encrypt the connections to a checkpoint store; empty if they are encrypted or stay on this host."""
    scheme, query = store.partition("://")[0], parse_qsl(store.partition("?")[2])
    if scheme == "redis":
        return "" if _on_loopback(store) else "use rediss://"
    if scheme in HADOOP:
        return "" if _on_loopback(store) else ("only Hadoop's own configuration can encrypt it, and that is not checked. Use "
                                               "another kind of store")
    if not any(_is_plain(key, value) for key, value in query):
        return ""
    servers = [value for key, value in query if key in SERVERS]
    if servers and all(_on_loopback(server if "://" in server else f"http://{server}") for server in servers):
        return ""
    return "remove scheme=http, http:// in endpoint_override and enable_tls=false from its URL"


def _is_plain(key: str, value: str) -> bool:
    """True for an option of an object store's URL that turns TLS off."""
    return ((key == "scheme" and value == "http") or (key == "endpoint_override" and value.startswith("http://"))
            or (key == "enable_tls" and value.lower() in ("false", "0")))


def _on_loopback(url: str) -> bool:
    hosts = [part.rpartition(":")[0] or part for part in shown_place(url).partition("://")[2].partition("/")[0].split(",")]
    return all(host == "localhost" or _is_loopback(host.strip("[]")) for host in hosts)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

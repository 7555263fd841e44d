"""Access to ZooKeeper: hosts, user and password, and TLS, as the URL of the coordination store gives them.

    zookeeper://host:port,host:port
    zookeeper://user:password@host:port             nodes are made for this user alone
    zookeepers://user:password@host:port?ca=FILE    TLS; ca: certificates to trust; cert, key: this client's own, if asked for
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

from millrace.config import EMBEDDED
from millrace.errors import MillraceError

SCHEME, TLS_SCHEME = "zookeeper://", "zookeepers://"
_TLS_OPTIONS = {"ca": "ca", "cert": "certfile", "key": "keyfile"}  # of the URL: of kazoo


@dataclass(frozen=True, slots=True)
class ZooKeeperAccess:
    """`hosts`: host:port with more of them after commas. Without a user everyone may read and change what is stored."""

    hosts: str
    user: str = ""
    password: str = field(default="", repr=False)
    tls: Mapping[str, str] | None = None  # kazoo's names of files; None: no TLS

    @classmethod
    def parse(cls, url: str) -> ZooKeeperAccess:
        scheme = next((scheme for scheme in (SCHEME, TLS_SCHEME) if url.startswith(scheme)), "")
        place, _, query = url.removeprefix(scheme).partition("?")
        login, at, hosts = place.rpartition("@")
        user, colon, password = login.partition(":")
        if not scheme or not hosts.strip(", ") or "/" in hosts or (at and not (user and colon and password)):
            raise MillraceError(f"{url!r} names no coordination store: use '{EMBEDDED}', or '{SCHEME}host:port' with more "
                                f"hosts after commas, or '{TLS_SCHEME}user:password@host:port?ca=FILE'")
        options = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
        if unknown := sorted(options.keys() - _TLS_OPTIONS.keys()) or (sorted(options) if scheme == SCHEME else []):
            raise MillraceError(f"{url!r} names no coordination store: after '?', and only with {TLS_SCHEME}, there may be "
                                f"{', '.join(_TLS_OPTIONS)}, not {', '.join(unknown)}")
        tls = {_TLS_OPTIONS[name]: value for name, value in options.items()} if scheme == TLS_SCHEME else None
        return cls(hosts, unquote(user), unquote(password), tls)

    def client_options(self) -> dict[str, Any]:
        """Arguments of kazoo's client."""
        options: dict[str, Any] = {"hosts": self.hosts}
        if self.tls is not None:
            options |= {"use_ssl": True, "verify_certs": True, "check_hostname": True, **self.tls}
        if self.user:
            options |= {"auth_data": [("digest", f"{self.user}:{self.password}")], "default_acl": self.own_acl()}
        return options

    def own_acl(self) -> list[Any] | None:
        """The access control list of Millrace's nodes: for this user alone. None without a user: for everyone."""
        from kazoo.security import make_digest_acl

        return [make_digest_acl(self.user, self.password, all=True)] if self.user else None

    def shared_acl(self) -> list[Any] | None:
        """The list of the node above all clusters: other users may add theirs, and remove none."""
        from kazoo.security import make_acl

        own = self.own_acl()
        return [*own, make_acl("world", "anyone", read=True, create=True)] if own else None

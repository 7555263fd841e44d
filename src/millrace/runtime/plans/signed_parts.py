"""Signatures of the parts of plans. A plan names code to import, so a worker must not follow one that others have written.

A part is signed with a key that only processes of this run have: it is derived from the secret CURVE key, which travels with
the Spark job. The signature covers the cluster, the stamp and the node too, so that a part cannot be used in another place.
"""

from __future__ import annotations

import hashlib
import hmac

from millrace.control.assignment import Stamp
from millrace.errors import ForeignPlan

_PURPOSE = b"millrace: signatures of plans"  # the same secret has other uses
_SIZE = hashlib.sha256().digest_size


class PartSigner:
    """Signs and checks the parts of one cluster's plans with the secret of the run."""

    def __init__(self, secret: bytes, cluster: str) -> None:
        self._key = hmac.digest(secret, _PURPOSE, "sha256")
        self._cluster = cluster

    def sign(self, stamp: Stamp, node: str, part: bytes) -> bytes:
        """The part with its signature in front."""
        return self._signature(stamp, node, part) + part

    def check(self, stamp: Stamp, node: str, signed: bytes) -> bytes:
        """The part of a signed one. Raises `ForeignPlan` if the signature is not of this run."""
        signature, part = signed[:_SIZE], signed[_SIZE:]
        if not hmac.compare_digest(signature, self._signature(stamp, node, part)):
            raise ForeignPlan(f"plan {stamp} of node {node!r} in the coordination store is refused: this run has not signed "
                              "it. Another run uses the same store under the same name, or someone else writes to it. Give "
                              "the store a user and password, and every run its own --cluster", stamp.author)
        return part

    def _signature(self, stamp: Stamp, node: str, part: bytes) -> bytes:
        whole = hmac.new(self._key, digestmod="sha256")
        for piece in (self._cluster.encode(errors="surrogatepass"), str(stamp).encode(), node.encode(errors="surrogatepass"),
                      part):
            whole.update(len(piece).to_bytes(8, "big") + piece)
        return whole.digest()

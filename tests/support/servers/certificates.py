"""Self-signed certificates for the servers of tests, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.servers.needed import not_tested


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files: an authority, and a certificate that it has signed for 127.0.0.1, with its key."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(directory: Path, claim: str) -> Certificates:
    """Skips the test, naming the claim, without openssl."""
    openssl = shutil.which("openssl")
    if openssl is None:
        not_tested(claim, "openssl", "openssl is not installed: apt-get install openssl")
    made = Certificates(directory / "authority.pem", directory / "server.pem", directory / "server.key")
    new_key = ["-newkey", "rsa:2048", "-nodes", "-days", "2"]
    _run(openssl, "req", "-x509", *new_key, "-subj", "/CN=authority of a test", "-keyout", str(directory / "authority.key"),
         "-out", str(made.authority))
    _run(openssl, "req", "-x509", *new_key, "-subj", "/CN=server of a test", "-keyout", str(made.key),
         "-out", str(made.certificate), "-CA", str(made.authority), "-CAkey", str(directory / "authority.key"),
         "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE")
    return made


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

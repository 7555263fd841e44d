"""Two network namespaces joined by a cable (a veth pair). Neither has any other way out."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from support.servers.needed import not_tested

CLONE_NEWNET = 0x40000000  # of setns(2): the namespace is one of networks


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace, its end of the cable, and its address there."""

    namespace: str
    interface: str
    address: str

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs a program there."""
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def enter(self) -> None:
        """Move this thread there, with the threads and sockets that it makes from now on."""
        with open(f"/run/netns/{self.namespace}") as file:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {self.namespace}")

    @contextlib.contextmanager
    def unplugged(self) -> Iterator[None]:
        """The cable is pulled out here; the other host is not told, and what it sends is lost."""
        self._set_link("down")
        try:
            yield
        finally:
            self._set_link("up")

    def _set_link(self, state: str) -> None:
        done = _ip("-netns", self.namespace, "link", "set", self.interface, state)
        assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def two_hosts(claim: str) -> Iterator[tuple[Host, Host]]:
    """Removed at the end, even after a failure. Skips the test, naming the claim, if namespaces cannot be made here."""
    number = os.getpid()
    hosts = [Host(f"millrace-test-{number}-{side}", f"mr{side}{number}"[:15], f"10.213.0.{index}")
             for index, side in enumerate("ab", 1)]
    if os.geteuid() != 0 or shutil.which("ip") is None:
        _cannot_be_made(claim, "only root can, with the program ip")
    with contextlib.ExitStack() as stack:
        for host in hosts:
            made = _ip("netns", "add", host.namespace)
            if made.returncode != 0:
                _cannot_be_made(claim, made.stderr.strip())
            stack.callback(_ip, "netns", "delete", host.namespace)  # its end of the cable goes with it
        near, far = hosts
        cable = _ip("link", "add", near.interface, "netns", near.namespace, "type", "veth", "peer", "name", far.interface,
                    "netns", far.namespace)
        if cable.returncode != 0:
            _cannot_be_made(claim, cable.stderr.strip())
        for host in hosts:
            for arguments in (("address", "add", f"{host.address}/24", "dev", host.interface),
                              ("link", "set", host.interface, "up"), ("link", "set", "lo", "up")):
                done = _ip("-netns", host.namespace, *arguments)
                assert done.returncode == 0, done.stderr
        yield near, far


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


def _cannot_be_made(claim: str, reason: str) -> None:
    not_tested(claim, "the right to make network namespaces", f"network namespaces cannot be made here: {reason}")

"""Listens on a network interface, as anyone on the cable can, and puts TCP connections together again.

As a program (`sniffer.py INTERFACE FILE`, inside the namespace) it writes all frames to the file until its stdin is closed,
and then prints the number of frames that the kernel dropped.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from support.network.hosts import Host

ALL_PROTOCOLS = 0x0003
BUFFER = 128 << 20
PACKET, PACKET_STATISTICS = 263, 6  # SOL_PACKET and its option
RECEIVE_BUFFER_FORCE = 33  # SO_RCVBUFFORCE: beyond the limit for users
_LENGTH = struct.Struct(">I")


class Capture:
    """Everything that crossed the cable; complete when the `with` of `sniffed` has ended."""

    def __init__(self, file: Path) -> None:
        self.file, self.dropped = file, 0

    def connections(self) -> list[bytes]:
        """The bytes of every TCP connection, each direction by itself, in the order in which they were sent."""
        flows: dict[bytes, dict[int, bytes]] = {}
        for frame in self._frames():
            if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
                continue
            start = 14 + (frame[14] & 0x0F) * 4
            tcp = frame[start : 14 + int.from_bytes(frame[16:18], "big")]
            payload = tcp[(tcp[12] >> 4) * 4 :]
            if payload:
                flow = frame[26:34] + tcp[:4]
                flows.setdefault(flow, {}).setdefault(int.from_bytes(tcp[4:8], "big"), payload)
        return [_joined(segments) for segments in flows.values()]

    def _frames(self) -> Iterator[bytes]:
        data, at = self.file.read_bytes(), 0
        while at < len(data):
            [length] = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size + length
            yield data[at - length : at]


def _joined(segments: dict[int, bytes]) -> bytes:
    """The segments in order of their numbers, which may wrap around; what was sent again is left out."""
    first = _first(sorted(segments))
    whole = bytearray()
    for offset, payload in sorted(((number - first) % 2**32, payload) for number, payload in segments.items()):
        if offset + len(payload) > len(whole):
            whole += payload[max(0, len(whole) - offset) :]
    return bytes(whole)


def _first(numbers: list[int]) -> int:
    """The number after the largest gap on the circle of numbers."""
    gaps = [((number - before) % 2**32, number) for before, number in zip([numbers[-1], *numbers], numbers, strict=False)]
    return max(gaps)[1]


@contextlib.contextmanager
def sniffed(host: Host, file: Path) -> Iterator[Capture]:
    """Listen at this end of the cable."""
    capture = Capture(file)
    program = host.command(sys.executable, "-m", "support.network.sniffer", host.interface, str(file))
    with subprocess.Popen(program, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            assert process.stdout.readline() == b"listening\n"
            yield capture
            process.stdin.close()
            capture.dropped = int(process.stdout.readline())
        finally:
            process.kill()


def _listen(interface: str, file: Path) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS)) as cable, file.open("wb") as output:
        cable.setsockopt(socket.SOL_SOCKET, RECEIVE_BUFFER_FORCE, BUFFER)
        cable.bind((interface, ALL_PROTOCOLS))
        cable.setblocking(False)
        print("listening", flush=True)
        with selectors.DefaultSelector() as selector:
            selector.register(cable, selectors.EVENT_READ)
            selector.register(sys.stdin, selectors.EVENT_READ)
            while sys.stdin not in {key.fileobj for key, _ in selector.select()}:
                _take(cable, output)
        _take(cable, output)  # what came before the end
        _, dropped = struct.unpack("II", cable.getsockopt(PACKET, PACKET_STATISTICS, 8))
    print(dropped, flush=True)


def _take(cable: socket.socket, output: BinaryIO) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            frame = cable.recv(1 << 17)
            output.write(_LENGTH.pack(len(frame)) + frame)


if __name__ == "__main__":
    _listen(sys.argv[1], Path(sys.argv[2]))

"""Counts the instructions of this process, which unlike its time are the same in every run; CPU time where the kernel does not
tell them."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time
from types import TracebackType

INSTRUCTIONS, CPU_NANOSECONDS = "instructions", "ns of CPU"
_CALLS = {"x86_64": 298, "aarch64": 241}  # numbers of the system call perf_event_open
_ATTRIBUTES = 112  # bytes of struct perf_event_attr, version 5
_COUNT_INSTRUCTIONS = 1
_USER_CODE_ONLY = 1 << 5 | 1 << 6  # neither the kernel nor a hypervisor


class WorkMeter:
    """The work of the calling thread so far, in its `unit`."""

    def __init__(self) -> None:
        self._file = _opened()
        self.unit = INSTRUCTIONS if self._file is not None else CPU_NANOSECONDS

    def read(self) -> int:
        if self._file is None:
            return time.thread_time_ns()
        count: int = struct.unpack("Q", os.read(self._file, 8))[0]
        return count

    def __enter__(self) -> WorkMeter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            os.close(self._file)


def _opened() -> int | None:
    """The file of a counter that counts; None if the system has none, or if it may not be used."""
    number = _CALLS.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return None
    attributes = ctypes.create_string_buffer(_ATTRIBUTES)
    struct.pack_into("II", attributes, 0, 0, _ATTRIBUTES)  # type: hardware
    struct.pack_into("Q", attributes, 8, _COUNT_INSTRUCTIONS)
    struct.pack_into("Q", attributes, 40, _USER_CODE_ONLY)
    file = ctypes.CDLL(None, use_errno=True).syscall(number, attributes, 0, -1, -1, 0)
    if file < 0:
        return None
    if struct.unpack("Q", os.read(file, 8))[0] == 0:  # some virtual machines have a counter that stands still
        os.close(file)
        return None
    return int(file)

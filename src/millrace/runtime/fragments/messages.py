"""Messages between the fragment exchanges of workers: one msgpack frame, and the bytes of a part in a second one.

Everything is requested, and only a few requests are in progress at a time, so that few parts wait anywhere.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from millrace.errors import WireError
from millrace.runtime.wire.messages import UNREADABLE, Natural
from millrace.state.erasure import Bytes
from millrace.state.fragments import BlobIdentity, Fragment

PART_BYTES = 1 << 20  # the largest part of a fragment that is sent at once
Size = Annotated[int, msgspec.Meta(ge=0, lt=2**48)]
Crc = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]


class Head(msgspec.Struct, array_like=True, frozen=True):
    """A fragment without its payload."""

    blob: Name
    index: Natural
    r: Natural
    c: Natural
    length: Size
    crc: Crc
    whole_crc: Crc

    @classmethod
    def of(cls, fragment: Fragment) -> Head:
        return cls(fragment.blob, fragment.index, fragment.r, fragment.c, fragment.length, fragment.crc, fragment.whole_crc)

    @property
    def identity(self) -> BlobIdentity:
        return BlobIdentity(self.blob, self.r, self.c, self.length, self.whole_crc)

    def fragment(self, payload: Bytes) -> Fragment:
        return Fragment(self.blob, self.index, self.r, self.c, self.length, self.crc, self.whole_crc, payload)


class Put(msgspec.Struct, array_like=True, tag=1, tag_field="type"):
    """Sends a part of a fragment to hold. Parts are sent in order; each is answered by `Accepted`."""

    request: int
    head: Head
    offset: Size


class Get(msgspec.Struct, array_like=True, tag=2, tag_field="type"):
    """Requests the part at this offset; answered by `Part` or `Nothing`."""

    request: int
    blob: Name
    index: Natural
    offset: Size


class Keep(msgspec.Struct, array_like=True, tag=3, tag_field="type"):
    """Tells a holder that only these blobs of a task are still needed. Answered by `Accepted`."""

    request: int
    task: Name
    blobs: list[Name]


class Discard(msgspec.Struct, array_like=True, tag=4, tag_field="type"):
    """Tells a holder to discard everything below this path: a topology or task has ended. Answered by `Accepted`."""

    request: int
    prefix: Name


class Accepted(msgspec.Struct, array_like=True, tag=5, tag_field="type"):
    """Answers a request. Not `ok`: no room, or the fragment is damaged. After the last part: the fragment is held."""

    request: int
    ok: bool


class Part(msgspec.Struct, array_like=True, tag=6, tag_field="type"):
    """Answers `Get`; the bytes are in the second frame."""

    request: int
    head: Head
    offset: Size


class Nothing(msgspec.Struct, array_like=True, tag=7, tag_field="type"):
    """Answers `Get`: there is no such part here."""

    request: int


FragmentRequest = Put | Get | Keep | Discard
FragmentAnswer = Accepted | Part | Nothing
_request_decoder = msgspec.msgpack.Decoder(FragmentRequest)
_answer_decoder = msgspec.msgpack.Decoder(FragmentAnswer)


def read_fragment_request(frames: list[Any]) -> tuple[FragmentRequest, memoryview | None]:
    """Decode a request and its part; `WireError` if it is anything else."""
    return _read(_request_decoder, frames)


def read_fragment_answer(frames: list[Any]) -> tuple[FragmentAnswer, memoryview | None]:
    return _read(_answer_decoder, frames)


def _read(decoder: msgspec.msgpack.Decoder[Any], frames: list[Any]) -> tuple[Any, memoryview | None]:
    try:
        message = decoder.decode(frames[0]) if frames else None
    except UNREADABLE as error:
        raise WireError(f"a frame of {len(frames[0])} bytes is not a fragment message: {error}") from None
    with_part = isinstance(message, Put | Part)
    if message is None or len(frames) != 1 + with_part or (with_part and len(frames[1]) > PART_BYTES):
        raise WireError(f"a fragment message of {len(frames)} frames has too many frames, or one that is too large")
    return message, memoryview(frames[1]) if with_part else None

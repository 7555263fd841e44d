"""A chunk reads the same for a bolt whether it came by reference or over the wire, as rows or as an Arrow batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from millrace.model.graph import StreamDef
from millrace.runtime.flow.channel import UNTRACKED, Delivery, Inlet
from millrace.runtime.tasks.chunk_views import ChunkReader
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import encode_batch, encode_rows

ROWS = [("a", 1), ("b", 2)]
BATCH = pa.RecordBatch.from_pydict({"word": ["a", "b"], "n": [1, 2]})
FORMS: dict[str, tuple[Any, int, bool]] = {
    "rows by reference": (ROWS, wire.ROWS, True), "rows over the wire": (encode_rows(ROWS), wire.ROWS, False),
    "a batch by reference": (BATCH, wire.ARROW, True), "a batch over the wire": (encode_batch(BATCH), wire.ARROW, False)}


def reader() -> ChunkReader:
    sources = {"a_count": SimpleNamespace(outputs=(StreamDef("default", ("word", "n"), False),))}
    topology: Any = SimpleNamespace(graph=SimpleNamespace(component=sources.__getitem__))
    return ChunkReader(topology)


def chunk(body: Any, form: int, local: bool) -> Delivery:
    return Delivery(Inlet(1, 0, "a_count", ("default",), 0, None), 0, body, 2, form, local, 0, UNTRACKED)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_rows_have_the_names_of_the_stream(form: tuple[Any, int, bool]) -> None:
    rows = reader().rows(chunk(*form), named=True)
    assert rows == ROWS
    assert [(row.word, row.n) for row in rows] == ROWS
    assert type(rows[0]).__name__ == "TACountDefaultTuple"


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_plain_rows_are_plain_tuples(form: tuple[Any, int, bool]) -> None:
    rows = reader().rows(chunk(*form), named=False)
    assert rows == ROWS and {type(row) for row in rows} == {tuple}


def test_the_named_tuple_of_a_stream_is_made_once() -> None:
    views = reader()
    first, second = (views.rows(chunk(*form), named=True) for form in FORMS.values() if form[1] == wire.ROWS)
    assert type(first[0]) is type(second[0])


@pytest.mark.parametrize("form", [form for form in FORMS.values() if form[1] == wire.ARROW], ids=["local", "remote"])
def test_a_batch_comes_as_it_was_emitted(form: tuple[Any, int, bool]) -> None:
    assert reader().batch(chunk(*form)).equals(BATCH)


def test_rows_become_a_batch_with_the_names_of_the_stream() -> None:
    delivery = chunk(*FORMS["rows by reference"])
    assert reader().as_batch(delivery, ROWS).equals(BATCH)


def test_values_that_no_column_holds_together_raise_what_arrow_does() -> None:
    with pytest.raises(pa.ArrowInvalid):
        reader().as_batch(chunk(*FORMS["rows by reference"]), [("a", 1), ("b", "two")])


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("body", "form"), [(b"\xc1", wire.ROWS), (b"", wire.ROWS), (b"no batch", wire.ARROW),
                                            (encode_rows([("a", 1)])[:-1], wire.ROWS)])
def test_a_body_that_cannot_be_read_is_an_error_of_the_wire(body: bytes, form: int, named: bool) -> None:
    with pytest.raises(wire.WireError):
        reader().rows(chunk(body, form, False), named)


def test_rows_of_another_width_do_not_fit_their_names() -> None:
    with pytest.raises(wire.WireError, match="a chunk from a_count does not fit 'default'"):
        reader().rows(chunk(encode_rows([("a", 1, 2)]), wire.ROWS, False), named=True)

# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False, embedsignature=False
"""The steps of the hot path in C. `plain` has the same in Python; both pass the same tests."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.dict cimport PyDict_GetItemWithError
from cpython.list cimport PyList_Append, PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject, PyObject_SetItem, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from millrace.hotpath.plain import BOLT, HANDLE, SPOUT

cdef extern from *:
    """
    #include <structmember.h>
    #define OFFSET_OF_VALUES offsetof(struct TupleObject, values)
    #define OFFSET_OF_ORIGIN offsetof(struct TupleObject, origin)

    // A tuple of this class whose places are still empty. The garbage collector need not know it while it holds scalars only.
    static PyObject *untracked_row(PyTypeObject *kind, Py_ssize_t width) {
        if (kind == &PyTuple_Type) {
            PyObject *row = PyTuple_New(width);
            if (row != NULL)
                PyObject_GC_UnTrack(row);
            return row;
        }
        PyTupleObject *row = PyObject_GC_NewVar(PyTupleObject, kind, width);
        if (row == NULL)
            return NULL;
        memset(row->ob_item, 0, width * sizeof(PyObject *));
    #if PY_VERSION_HEX >= 0x030E0000
        row->ob_hash = -1; // not known yet: since 3.14 a tuple remembers its hash
    #endif
        return (PyObject *)row;
    }
    """
    object PyUnicode_DecodeUTF8(const char* text, Py_ssize_t size, const char* errors)
    object PyUnicode_New(Py_ssize_t size, uint32_t largest)
    void* PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    object PyLong_FromLongLong(long long value)
    object PyLong_FromUnsignedLongLong(unsigned long long value)
    object untracked_row(PyTypeObject* kind, Py_ssize_t width)
    void PyObject_GC_Track(void* untracked)
    object PyDescr_NewMember(PyTypeObject* kind, PyMemberDef* member)
    void PyType_Modified(PyTypeObject* kind)
    int T_OBJECT_EX, READONLY
    Py_ssize_t OFFSET_OF_VALUES, OFFSET_OF_ORIGIN
    ctypedef struct PyMemberDef:
        const char* name
        int type
        Py_ssize_t offset
        int flags
        const char* doc


# -- emit --------------------------------------------------------------------------------------------------------------

cdef inline bint is_scalar(object value):
    kind = type(value)
    return kind is str or kind is int or kind is float or kind is bool or kind is bytes or kind is type(None)


cdef inline bint is_plain(tuple row, Py_ssize_t width):
    """True if a row has this width, and only scalars."""
    cdef Py_ssize_t place
    if PyTuple_GET_SIZE(row) != width:
        return False
    for place in range(width):
        if not is_scalar(<object>PyTuple_GET_ITEM(row, place)):
            return False
    return True


@cython.final
cdef class Emitter:
    """The `emit` of one stream, in each of its forms. It appends plain rows to a list and leaves the rest to `slow`."""

    cdef list rows, ids
    cdef object slow
    cdef Py_ssize_t width
    cdef bint track
    cdef object splits, split  # None if ids are kept as they are

    def __init__(self, buffer, slow, bint track, splits, split):
        self.rows, self.ids, self.slow, self.width, self.track = buffer.rows, buffer.ids, slow, buffer.width, track
        self.splits, self.split = (None, None) if splits == 1 else (splits, split)

    def rebind(self, list rows, list ids):
        """Append to other lists from now on."""
        self.rows, self.ids = rows, ids

    cdef inline bint takes(self, tup, tup_id) except -1:
        """Append a row if it is plain. A tuple is kept as it is; a list may change later and is copied."""
        cdef tuple row
        if type(tup) is tuple:
            row = <tuple>tup
        elif type(tup) is list:
            row = tuple(<list>tup)
        else:
            return False
        if not is_plain(row, self.width):
            return False
        PyList_Append(self.rows, row)
        if self.track:
            PyList_Append(self.ids, tup_id if self.splits is None else tup_id * self.splits + self.split)
        return True

    def for_bolt(self, tup, stream=None, anchors=None, direct_task=None, need_task_ids=False):
        if (stream is None and anchors is None and direct_task is None and need_task_ids is False
                and self.takes(tup, None)):
            return None
        return self.slow(tup, None, stream, anchors, direct_task, need_task_ids)

    def for_spout(self, tup, tup_id=None, stream=None, direct_task=None, need_task_ids=False):
        if stream is None and direct_task is None and need_task_ids is False and self.takes(tup, tup_id):
            return None
        return self.slow(tup, tup_id, stream, None, direct_task, need_task_ids)

    def for_handle(self, tup, tup_id, stream, anchors, direct_task, need_task_ids):
        if (stream is None and anchors is None and direct_task is None and need_task_ids is False
                and self.takes(tup, tup_id)):
            return None
        return self.slow(tup, tup_id, stream, anchors, direct_task, need_task_ids)


def fast_emit(buffer, slow, form, track, splits=1, split=0):
    emitter = Emitter(buffer, slow, track, splits, split)
    buffer.rebinds.append(emitter.rebind)
    return {BOLT: emitter.for_bolt, SPOUT: emitter.for_spout, HANDLE: emitter.for_handle}[form]


def plain_rows(rows, Py_ssize_t width):
    cdef bint listed = type(rows) is list
    cdef list as_tuples = None
    cdef Py_ssize_t place
    if not listed and type(rows) is not tuple:
        return None
    for place, row in enumerate(rows):
        if type(row) is list:  # may change later
            if as_tuples is None:
                as_tuples = list(rows)
            row = as_tuples[place] = tuple(<list>row)
        elif type(row) is not tuple:
            return None
        if not is_plain(<tuple>row, width):
            return None
    return rows if as_tuples is None else as_tuples


# -- routing -----------------------------------------------------------------------------------------------------------

def buckets(rows, memory, tuple positions, Py_ssize_t count):
    cdef list parts = [[] for _ in range(count)]
    cdef PyObject* known  # borrowed; `memory` is a dict, or of a class derived from it
    cdef Py_ssize_t first = positions[0]
    cdef bint single = len(positions) == 1
    for row in rows:
        key = row[first] if single else tuple([row[position] for position in positions])
        known = PyDict_GetItemWithError(memory, key)
        index = <object>known if known is not NULL else memory[key]
        PyList_Append(<list>PyList_GET_ITEM(parts, index), row)
    return parts


# -- tuples for bolts --------------------------------------------------------------------------------------------------

@cython.final
@cython.freelist(256)
@cython.no_gc  # what it refers to does not refer back to it
cdef public class Tuple [object TupleObject, type TupleType]:
    """A tuple as a bolt sees it: `id`, `component`, `stream`, `task` and `values`, in that order.

    `values` is a named tuple of the stream's fields: `tup.values[0]` and `tup.values.word` are the same.
    """

    cdef readonly object values, origin
    cdef readonly Py_ssize_t index

    def __init__(self, values, origin, Py_ssize_t index=0):
        self.values, self.origin, self.index = values, origin, index

    @staticmethod
    def of(id, component, stream, task, values):
        return Tuple(values, FixedOrigin(id, component, stream, task))

    @property
    def id(self):
        return self.origin.tuple_id(self.index)

    @property
    def component(self):
        return self.origin.component

    @property
    def stream(self):
        return self.origin.stream

    @property
    def task(self):
        return self.origin.task

    def __iter__(self):
        return iter((self.id, self.component, self.stream, self.task, self.values))

    def __getitem__(self, index):
        return (self.id, self.component, self.stream, self.task, self.values)[index]

    def __len__(self):
        return 5

    def __repr__(self):
        return f"Tuple(values={self.values!r}, origin={self.origin!r}, index={self.index!r})"

    def __reduce__(self):
        return Tuple, (self.values, self.origin, self.index)


from millrace.hotpath.plain import FixedOrigin  # noqa: E402


cdef PyMemberDef _values = PyMemberDef("values", T_OBJECT_EX, OFFSET_OF_VALUES, READONLY, NULL)
cdef PyMemberDef _origin = PyMemberDef("origin", T_OBJECT_EX, OFFSET_OF_ORIGIN, READONLY, NULL)


cdef _use_member(PyMemberDef* member):
    """Make an attribute of tuples a member in place of Cython's getter: the interpreter reads members without a call."""
    cdef PyTypeObject* kind = <PyTypeObject*>Tuple
    (<dict>kind.tp_dict)[member.name.decode()] = PyDescr_NewMember(kind, member)
    PyType_Modified(kind)


_use_member(&_values)
_use_member(&_origin)


@cython.final
cdef class _Tuples:
    """Iterates over rows as tuples of one chunk."""

    cdef list rows
    cdef object origin
    cdef Py_ssize_t next

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_ssize_t index = self.next
        cdef Tuple tup
        if index >= PyList_GET_SIZE(self.rows):
            raise StopIteration
        tup = Tuple.__new__(Tuple)
        tup.values, tup.origin, tup.index = <object>PyList_GET_ITEM(self.rows, index), self.origin, index
        self.next = index + 1
        return tup


def tuples_of(list rows, origin):
    cdef _Tuples each = _Tuples.__new__(_Tuples)
    each.rows, each.origin = rows, origin
    return each


def name_rows(rows, row_type):
    cdef Py_ssize_t width = len(row_type._fields), place, index = 0
    cdef bint scalars
    cdef list result = PyList_New(len(rows))
    for row in rows:
        if not isinstance(row, tuple) or PyTuple_GET_SIZE(<tuple>row) != width:
            raise ValueError(f"{row!r:.200} does not have {width} values")
        named_row, scalars = untracked_row(<PyTypeObject*>row_type, width), True
        for place in range(width):
            value = <object>PyTuple_GET_ITEM(<tuple>row, place)
            Py_INCREF(value)
            PyTuple_SET_ITEM(<tuple>named_row, place, value)
            scalars = scalars and is_scalar(value)
        if not scalars:
            PyObject_GC_Track(<void*>named_row)
        Py_INCREF(named_row)
        PyList_SET_ITEM(result, index, named_row)
        index += 1
    return result


# -- keyed state -------------------------------------------------------------------------------------------------------

cdef class QuickDict(dict):
    """A dict as a base class. Reading an item of a class that Python derives from dict directly takes a call of a method."""

    def __getitem__(self, key):
        cdef PyObject* known = PyDict_GetItemWithError(self, key)
        return <object>known if known is not NULL else self.__missing__(key)

    def add(self, key, n=1):
        """Adds to the key's number; returns the new value."""
        total = self[key] + n
        PyObject_SetItem(self, key, total)
        return total


# -- decoding ----------------------------------------------------------------------------------------------------------

cdef enum:
    REMEMBERED = 4096  # strings of a decoder, a power of 2
    LONGEST = 32  # bytes of a string that is remembered
    TRIED = 4  # of so many bodies, one tries whether strings come again


cdef struct Remembered:
    uint64_t mixed  # from its bytes: most strings that differ need no look at the string itself
    PyObject* text


@cython.final
cdef class RowDecoder:
    """Decodes chunk bodies. It remembers short strings: a string that comes again is the same object, with its hash. While fewer
    than half of the strings come again, it tries that with few bodies only."""

    cdef object row_type, other
    cdef Py_ssize_t width  # -1: rows of any width
    cdef Remembered* remembered
    cdef Py_ssize_t known, fresh  # strings of the last body that were remembered, and that were not
    cdef Py_ssize_t bodies
    cdef bint remembers
    cdef const uint8_t* at
    cdef const uint8_t* end

    def __cinit__(self):
        self.remembered = <Remembered*>PyMem_Calloc(REMEMBERED, sizeof(Remembered))
        if self.remembered is NULL:
            raise MemoryError

    def __init__(self, row_type, other):
        self.row_type, self.other = row_type, other
        self.width = -1 if row_type is tuple else len(row_type._fields)

    def __dealloc__(self):
        cdef Py_ssize_t place
        if self.remembered is not NULL:
            for place in range(REMEMBERED):
                Py_XDECREF(self.remembered[place].text)
            PyMem_Free(self.remembered)

    def decode(self, body):
        """The rows of a body. What is not a list of rows of plain values is left to the other decoder, errors included."""
        cdef Py_buffer view
        cdef list rows
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            self.at = <const uint8_t*>view.buf
            self.end = self.at + view.len
            self.bodies += 1
            self.remembers = self.known >= self.fresh or self.bodies % TRIED == 0
            if self.remembers:
                self.known = self.fresh = 0
            rows = self.plain()
        finally:
            PyBuffer_Release(&view)
        return self.other.decode(body) if rows is None else rows

    cdef list plain(self):
        """The rows, or None if a value is not plain, or the body is malformed."""
        cdef Py_ssize_t count = self.length(), index
        cdef list rows
        if count < 0 or count > self.end - self.at:  # each row has at least a byte
            return None
        rows = []
        for index in range(count):
            row = self.row()
            if row is None:
                return None
            PyList_Append(rows, row)
        return rows if self.at == self.end else None

    cdef Py_ssize_t length(self):
        """Of the array that begins here; -1 if none does."""
        cdef Py_ssize_t size
        if self.at >= self.end:
            return -1
        cdef uint8_t tag = self.at[0]
        if tag & 0xF0 == 0x90:
            self.at += 1
            return tag & 0x0F
        if tag == 0xDC and self.end - self.at >= 3:
            size = self.at[1] << 8 | self.at[2]
            self.at += 3
            return size
        if tag == 0xDD and self.end - self.at >= 5:
            size = <Py_ssize_t>self.unsigned(self.at + 1, 4)
            self.at += 5
            return size
        return -1

    cdef inline uint64_t unsigned(self, const uint8_t* place, int size):
        cdef uint64_t value = 0
        cdef int index
        for index in range(size):
            value = value << 8 | place[index]
        return value

    cdef object row(self):
        """The next row, or None."""
        cdef Py_ssize_t width = self.length(), place
        if width < 0 or width > self.end - self.at or (width != self.width and self.width >= 0):
            return None
        row = untracked_row(<PyTypeObject*>self.row_type, width)
        for place in range(width):  # a row that is given up has empty places, which a tuple may have until it is seen
            if not self.value(<PyObject*>row, place):
                return None
        return row

    cdef bint value(self, PyObject* row, Py_ssize_t place) except -1:
        """Decode the next value into its place; False if it is not plain."""
        cdef const uint8_t* at = self.at
        cdef Py_ssize_t left = self.end - at
        cdef uint8_t tag
        cdef uint64_t bits
        cdef double number
        cdef int size
        if left < 1:
            return False
        tag = at[0]
        if tag & 0xE0 == 0xA0:
            return self.text(row, place, 1, tag & 0x1F)
        if tag < 0x80:
            self.at = at + 1
            return self.put(row, place, <long>tag)
        if tag >= 0xE0:
            self.at = at + 1
            return self.put(row, place, <long><int8_t>tag)
        if 0xCC <= tag <= 0xD3:
            size = 1 << (tag & 3)
            if left <= size:
                return False
            bits = self.unsigned(at + 1, size)
            self.at = at + 1 + size
            if tag <= 0xCF:
                return self.put(row, place, PyLong_FromUnsignedLongLong(bits))
            if size == 1:
                return self.put(row, place, PyLong_FromLongLong(<int8_t>bits))
            if size == 2:
                return self.put(row, place, PyLong_FromLongLong(<int16_t>bits))
            if size == 4:
                return self.put(row, place, PyLong_FromLongLong(<int32_t>bits))
            return self.put(row, place, PyLong_FromLongLong(<int64_t>bits))
        if tag == 0xCB and left > 8:
            bits = self.unsigned(at + 1, 8)
            memcpy(&number, &bits, 8)
            self.at = at + 9
            return self.put(row, place, number)
        if 0xC2 <= tag <= 0xC3:
            self.at = at + 1
            return self.put(row, place, tag == 0xC3)
        if tag == 0xC0:
            self.at = at + 1
            return self.put(row, place, None)
        if 0xD9 <= tag <= 0xDB or 0xC4 <= tag <= 0xC6:
            size = 1 << (tag - 0xD9 if tag >= 0xD9 else tag - 0xC4)
            if left <= size:
                return False
            bits = self.unsigned(at + 1, size)
            if tag >= 0xD9:
                return self.text(row, place, 1 + size, bits)
            if bits > <uint64_t>(left - 1 - size):
                return False
            self.at = at + 1 + size + bits
            return self.put(row, place, PyBytes_FromStringAndSize(<const char*>at + 1 + size, <Py_ssize_t>bits))
        return False

    cdef inline bint put(self, PyObject* row, Py_ssize_t place, object value):
        Py_INCREF(value)
        PyTuple_SET_ITEM(<tuple>row, place, value)
        return True

    cdef bint text(self, PyObject* row, Py_ssize_t place, Py_ssize_t head, uint64_t size) except -1:
        """Put a string that begins behind `head` bytes. Short ones in ASCII are remembered."""
        cdef const uint8_t* start = self.at + head
        cdef Py_ssize_t length
        cdef uint64_t mixed = size
        cdef uint8_t all_bytes = 0
        cdef PyObject* known = NULL
        cdef Remembered* entry = NULL
        cdef Py_ssize_t index
        if size > <uint64_t>(self.end - start):
            return False
        length = <Py_ssize_t>size
        self.at = start + length
        if not 0 < length <= LONGEST:
            return self.decoded(row, place, start, length)
        for index in range(length):
            all_bytes |= start[index]
            mixed = mixed * 31 + start[index]
        if all_bytes & 0x80:
            return self.decoded(row, place, start, length)
        if self.remembers:
            entry = &self.remembered[(mixed ^ mixed >> 15) & (REMEMBERED - 1)]
            known = entry.text
            if known is not NULL and entry.mixed == mixed and PyUnicode_GET_LENGTH(<object>known) == length and not memcmp(
                    PyUnicode_DATA(<object>known), start, length):
                self.known += 1
                return self.put(row, place, <object>known)
            self.fresh += 1
        text = PyUnicode_New(length, 127)
        memcpy(PyUnicode_DATA(text), start, length)
        if self.remembers:
            Py_INCREF(text)
            entry.mixed, entry.text = mixed, <PyObject*>text
            Py_XDECREF(known)
        return self.put(row, place, text)

    cdef bint decoded(self, PyObject* row, Py_ssize_t place, const uint8_t* start, Py_ssize_t length) except -1:
        try:
            value = PyUnicode_DecodeUTF8(<const char*>start, length, NULL)
        except UnicodeDecodeError:
            return False
        return self.put(row, place, value)

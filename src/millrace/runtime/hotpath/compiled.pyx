# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, embedsignature=True
"""The steps of the hot path in C. `plain` has the same in Python; both pass the same tests."""

from cpython.dict cimport PyDict_GetItemWithError
from cpython.list cimport PyList_Append
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE

from millrace.runtime.hotpath.plain import BOLT, HANDLE, SPOUT


cdef inline bint is_plain(tuple row, Py_ssize_t width):
    """True if a row has this width, and only scalars."""
    cdef Py_ssize_t place
    if PyTuple_GET_SIZE(row) != width:
        return False
    for place in range(width):
        kind = type(<object>PyTuple_GET_ITEM(row, place))
        if not (kind is str or kind is int or kind is float or kind is bool or kind is bytes or kind is type(None)):
            return False
    return True


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

    cdef bint takes(self, tup, tup_id) except -1:
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


def buckets(rows, memory, tuple positions, Py_ssize_t count):
    cdef list parts = [[] for _ in range(count)]
    cdef PyObject* known  # borrowed; `memory` is a dict, or of a class derived from it
    cdef Py_ssize_t first = positions[0]
    cdef bint single = len(positions) == 1
    for row in rows:
        key = row[first] if single else tuple([row[position] for position in positions])
        known = PyDict_GetItemWithError(memory, key)
        index = <object>known if known is not NULL else memory[key]
        PyList_Append(parts[index], row)
    return parts

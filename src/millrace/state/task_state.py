"""The keyed state of one task, written as pieces for the checkpoint store and restored from them.

A piece is one key group of all the task's states at one wave: whole, or the changes since the previous piece. It is msgpack,
with the extensions of `packing`: [format, group, whole, {state: [keys, values, expiry times, deleted keys]}].
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from millrace.api.keyed.changes import Changes
from millrace.api.keyed.declared import declared_states
from millrace.api.keyed.keys import ATOMS, KeyPlaces
from millrace.api.keyed.plain import KeyedState, Loaded
from millrace.errors import CorruptCheckpoint, EncodingError, KeyNotOwned, UnknownName, is_interrupt
from millrace.state.packing import (
    TOO_ODD,
    UNREADABLE_VALUE,
    as_key,
    encode_msgpack,
    plain_key,
    plain_value,
    unwrap,
    wrapped,
)

FORMAT = 1
LONGEST_CHAIN = 16  # pieces; a restore reads them all
SPREAD = 0x9E3779B1  # multiplies group numbers so that those of a task differ, whatever their distance
SLACK = 4096  # bytes by which the deltas of a chain may exceed its whole piece; else small groups would always be written whole

T = TypeVar("T")
OnDropped = Callable[[KeyNotOwned], None]
Dues = dict[Any, float]  # expiry times by key
Decoded = tuple[dict[str, Loaded], "Chain | None"]  # the content of a chain by state, and its length
Columns = tuple[list[Any], list[Any], list[float], list[Any]]  # keys, values, expiry times, deleted keys
_decoder = msgspec.msgpack.Decoder(tuple[int, int, bool, dict[str, Columns]], ext_hook=unwrap)


@dataclass(slots=True)
class Chain:
    """The number and size of a group's pieces since its last whole one."""

    pieces: int
    whole: int  # bytes
    deltas: int = 0

    def takes(self, delta: int, group: int) -> bool:
        """False if the group is better written whole. The limit differs between groups, so that they do not all become whole
        in the same wave."""
        longest = LONGEST_CHAIN - (group * SPREAD >> 16) % (LONGEST_CHAIN // 2)
        return self.pieces < longest and self.deltas + delta <= self.whole + SLACK

    def grow(self, deltas: Sequence[bytes]) -> None:
        self.pieces += len(deltas)
        self.deltas += sum(map(len, deltas))


class TaskState:
    """All states of one task, by key group. `restore` adds a group, `drop` removes it. `dropped`: gets the error when entries
    of other tasks' groups are found and dropped; without it, they are an error each time."""

    def __init__(self, states: dict[str, KeyedState], places: KeyPlaces, dropped: OnDropped | None = None) -> None:
        self.states, self.places, self._label, self._dropped = states, places, places.label, dropped
        self._chains: dict[int, Chain] = {}
        self._spoiled: set[int] = set()

    @property
    def owned(self) -> frozenset[int]:
        return self.places.owned

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the declared states."""
        return tuple(self.states)

    def snapshot(self, whole: Container[int] | bool = ()) -> dict[int, tuple[bool, bytes]]:
        """Returns group -> (whole?, piece) for each group that changed since its last piece, and for the non-empty groups in
        `whole` (True: all). If it raises, nothing has changed: the next snapshot has all the changes."""
        changes = self._changes()
        pieces = self._pieces(changes, whole)
        for name, state in self.states.items():
            state.settle(changes[name])
        self.places.settled()
        self._written(pieces)
        return pieces

    def last_pieces(self, whole: Container[int] | bool = ()) -> dict[int, tuple[bool, bytes]]:
        """The pieces of a snapshot, for another object of this state: this one must not be used again. No group is whole
        because its chain is long."""
        return self._pieces(self._changes(), whole, any_length=True)

    def _changes(self) -> dict[str, Changes]:
        return self._rid_of_foreign(lambda: {name: state.changes() for name, state in self.states.items()})

    def _rid_of_foreign(self, call: Callable[[], T]) -> T:
        """The result of the call, which can be repeated. Entries of other tasks' groups are dropped if it fails for them:
        setting an entry checks nothing, and the groups may have left before that."""
        try:
            return call()
        except KeyNotOwned as error:
            if self._dropped is None:
                raise
            found = {name: len(keys) for name, state in self.states.items() if (keys := state.drop_foreign())}
            self._dropped(KeyNotOwned(f"{error}. Dropped such entries: {found}. A bolt that holds tuples and writes "
                                     "their state later must expect that the key group has moved to another task"))
            return call()

    def _pieces(self, changes: dict[str, Changes], whole: Container[int] | bool, any_length: bool = False,
                among: Container[int] | None = None) -> dict[int, tuple[bool, bytes]]:
        """The pieces of changed groups and of those that must be whole. `any_length`: a chain may have any length. `among`:
        only of these groups."""
        forced = self._forced(whole) | self._spoiled
        dirty = {group for changed in changes.values() for group in changed}
        if among is not None:
            forced, dirty = ({group for group in groups if group in among} for groups in (forced, dirty))
        pieces = {group: (False, delta) for group in sorted(dirty - forced)
                  if (delta := self._delta(group, changes, any_length)) is not None}
        return pieces | self._whole_pieces((dirty | forced) - pieces.keys(), changes)

    def _forced(self, whole: Container[int] | bool) -> set[int]:
        """Groups with entries or pieces that must be written whole."""
        if not whole:
            return set()
        groups = {*self._chains, *self.keys()}
        return groups if whole is True else {group for group in groups if group in whole}

    def _delta(self, group: int, changes: dict[str, Changes], any_length: bool) -> bytes | None:
        """The changes of the group as a piece; None if a whole piece is better: there is none yet, every entry has changed, or
        the chain is too long, unless it may have any length."""
        chain = self._chains.get(group)
        changed = {name: each[group] for name, each in changes.items() if group in each}
        if chain is None or sum(len(change.keys) for change in changed.values()) >= \
                sum(state.size(group, changes[name]) for name, state in self.states.items()):
            return None
        parts = {name: self._columns(self.states[name], change.keys, change.values, change.deleted)
                 for name, change in changed.items()}
        delta = _piece(group, False, parts)
        return delta if any_length or chain.takes(len(delta), group) else None

    def _whole_pieces(self, groups: set[int], changes: dict[str, Changes]) -> dict[int, tuple[bool, bytes]]:
        parts: dict[int, dict[str, Columns]] = {group: {} for group in sorted(groups)}
        for name, state in self.states.items():
            changed = changes[name]
            replaced = {group for group in groups if group in changed and len(changed[group].keys) == changed[group].size}
            for group in replaced:  # every entry has changed
                parts[group][name] = self._columns(state, changed[group].keys, changed[group].values, [])
            others = groups - replaced
            for group, entries in (state.entries(others, changed) if others else {}).items():
                if entries:
                    parts[group][name] = self._columns(state, list(entries), list(entries.values()), [])
        return {group: (True, _piece(group, True, part)) for group, part in parts.items()}

    def _columns(self, state: KeyedState, keys: list[Any], values: list[Any], deleted: list[Any]) -> Columns:
        return self._plain_keys(state.name, keys), self._plain_values(state, keys, values), state.dues_of(keys), \
            self._plain_keys(state.name, deleted)

    def _plain_keys(self, name: str, keys: list[Any]) -> list[Any]:
        """Checks the types again: an instance of a subclass may equal a key that was checked, and still not be packable."""
        if ATOMS.issuperset(map(type, keys)):
            return keys
        try:
            return list(map(plain_key, keys))
        except TypeError as error:
            raise EncodingError(f"{self._label}: {error} of {name!r}. Keys are str, int, float, bool, None, bytes, Decimal, "
                                "dates and times, or tuples of those, and of no subclass") from None

    def _plain_values(self, state: KeyedState, keys: list[Any], values: list[Any]) -> list[Any]:
        to_plain = None if state.codec is None else state.codec.encode
        if to_plain is None and ATOMS.issuperset(map(type, values)):
            return values
        plain = []
        for key, value in zip(keys, values, strict=True):
            try:
                plain.append(plain_value(value if to_plain is None else to_plain(value)))
            except BaseException as error:  # a codec is the user's code
                if is_interrupt(error):
                    raise
                what = f"Does its codec, {state.codec!r}, fit the value?" if to_plain is not None else \
                    "Keep values of plain types, or give the state a codec: State(codec=Typed(...))"
                raise EncodingError(f"{self._label}: the value of {key!r} in {state.name!r}, a {type(value).__name__}, cannot "
                                    f"be put into a snapshot: {str(error) or type(error).__name__}. {what}") from error
        return plain

    def _written(self, pieces: dict[int, tuple[bool, bytes]]) -> None:
        for group, (whole, piece) in pieces.items():
            if whole:
                self._chains[group] = Chain(1, len(piece))
            else:
                self._chains[group].grow([piece])
        self._spoiled.clear()

    def spoil(self, groups: Iterable[int]) -> None:
        """Marks groups whose pieces were lost: their next piece is whole."""
        for group in groups:
            if self._chains.pop(group, None) is not None:
                self._spoiled.add(group)

    def restore(self, group: int, pieces: Sequence[bytes]) -> None:
        """Adds the group with the content of its chain: the first piece whole, the others in the order they were written.
        Without pieces it is empty. If it raises, nothing has changed."""
        self.restore_all({group: pieces})

    def restore_all(self, chains: Mapping[int, Sequence[bytes]]) -> None:
        """Restores many groups at once, because each call looks at all keys."""
        self.load(self.decoded(chains))

    def decoded(self, chains: Mapping[int, Sequence[bytes]]) -> dict[int, Decoded]:
        """The content of chains, for `load`. Changes nothing, and may run beside the task."""
        return {group: self._joined(group, pieces) for group, pieces in chains.items()}

    def load(self, groups: Mapping[int, Decoded]) -> None:
        """Adds groups with their content, or replaces them."""
        for group in groups:
            self.places.own(group)

        def load() -> None:
            for name, state in self.states.items():
                state.load({group: entries.get(name, ({}, {})) for group, (entries, _) in groups.items()})

        self._rid_of_foreign(load)
        for group, (_, chain) in groups.items():
            self._spoiled.discard(group)
            self._chains.pop(group, None)
            if chain is not None:
                self._chains[group] = chain

    def adopt(self, group: int, piece: bytes) -> None:
        """Adds the changes in a piece to those since the last snapshot, which has the state that they follow. A whole piece
        replaces the group."""
        self._adopt(group, 1, piece)

    def _adopt(self, group: int, number: int, piece: bytes) -> None:
        whole, changed = self._changed(group, number, piece)
        if whole:
            self._clear(group)
        for name, (entries, dues, deleted) in changed.items():
            self.states[name].adopt(entries, dues, deleted)

    def extend(self, groups: Mapping[int, Sequence[bytes]]) -> None:
        """Adds deltas that follow the loaded pieces of these groups. Only for a state that has not been used since."""
        for group, deltas in groups.items():
            for number, piece in enumerate(deltas, self._chains[group].pieces):
                self._adopt(group, number, piece)
        for state in self.states.values():
            changes = state.changes()  # may change the form of the state, and with it `settle`
            state.settle(changes)
        for group, deltas in groups.items():
            self._chains[group].grow(deltas)

    def extend_decoded(self, group: int, decoded: Decoded, deltas: Sequence[bytes]) -> None:
        """Adds deltas to the content of the chain that they follow, as `decoded` has returned it."""
        loaded, chain = decoded
        assert chain is not None
        for number, piece in enumerate(deltas, chain.pieces):
            for name, (entries, dues, deleted) in self._changed(group, number, piece)[1].items():
                values, times = loaded.setdefault(name, ({}, {}))
                for key in deleted:
                    values.pop(key, None)
                    times.pop(key, None)
                values.update(entries)
                times.update(dues)
        chain.grow(deltas)

    def _changed(self, group: int, number: int, piece: bytes) -> tuple[bool, dict[str, tuple[dict[Any, Any], Dues, list[Any]]]]:
        """True if the piece is whole; and by state its entries, decoded, their expiry times and the deleted keys."""
        whole, parts = self._read(group, number, piece)
        changed = {}
        for name, columns in parts.items():
            values, dues = dict[Any, Any](), Dues()
            _apply(columns, values, dues)
            changed[name] = self._decoded(self._state(name, group), values), dues, list(map(as_key, columns[3]))
        return whole, changed

    def _clear(self, group: int) -> None:
        """Drops the entries of the group; its next piece is whole."""
        self._unload([group])
        self.spoil([group])

    def _unload(self, groups: Collection[int]) -> None:
        def unload() -> None:
            for state in self.states.values():
                state.unload(groups)

        self._rid_of_foreign(unload)

    def _joined(self, group: int, pieces: Sequence[bytes]) -> tuple[dict[str, Loaded], Chain | None]:
        """The entries of a chain by state, decoded, and its length and size."""
        entries, chain = self.summed(group, pieces)
        decoded = {name: (self._decoded(self._state(name, group), values), dues) for name, (values, dues) in entries.items()}
        return decoded, chain

    def summed(self, group: int, pieces: Sequence[bytes]) -> tuple[dict[str, Loaded], Chain | None]:
        """The entries of a chain by state, as written: before their codecs, and also of undeclared states."""
        entries: dict[str, Loaded] = {}
        chain = None
        for number, piece in enumerate(pieces):
            whole, parts = self._read(group, number, piece)
            if whole or chain is None:
                entries, chain = {}, Chain(1, len(piece))
            else:
                chain.grow([piece])
            try:
                for name, columns in parts.items():
                    _apply(columns, *entries.setdefault(name, ({}, {})))
            except TypeError as error:  # something that cannot be a key
                raise self._corrupt(group, number, str(error)) from None
        return entries, chain

    def _read(self, group: int, number: int, piece: bytes) -> tuple[bool, dict[str, Columns]]:
        try:
            version, of_group, whole, parts = _decoder.decode(piece)
        except UNREADABLE_VALUE as error:
            raise self._corrupt(group, number, f"its {len(piece)} bytes cannot be read: {error}") from None
        if version != FORMAT:
            raise self._corrupt(group, number, f"it has format {version}, and this Millrace reads format {FORMAT}")
        if of_group != group:
            raise self._corrupt(group, number, f"it belongs to key group {of_group}")
        if number == 0 and not whole:
            raise self._corrupt(group, number, "a chain begins with a whole piece and this is a delta")
        for name, (keys, values, dues, _) in parts.items():
            if len(keys) != len(values) or len(dues) not in (0, len(keys)):
                raise self._corrupt(group, number, f"{name!r} has {len(keys)} keys, {len(values)} values and {len(dues)} times")
        return whole, parts

    def _corrupt(self, group: int, number: int, why: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"{self._label}: piece {number} of the chain of key group {group} cannot be restored: {why}. "
                                 "Resume from an earlier wave, if one is kept")

    def _state(self, name: str, group: int) -> KeyedState:
        if name not in self.states:
            raise CorruptCheckpoint(f"{self._label}: the checkpoint has a state {name!r} (key group {group}) and the bolt has "
                                    f"{', '.join(map(repr, self.states))}. Declare it again, if only to clear it")
        return self.states[name]

    def _decoded(self, state: KeyedState, values: dict[Any, Any]) -> dict[Any, Any]:
        if state.codec is None:
            return values
        decoded = {}
        for key, plain in values.items():
            try:
                decoded[key] = state.codec.decode(plain)
            except BaseException as error:  # a codec is the user's code
                if is_interrupt(error):
                    raise
                raise CorruptCheckpoint(f"{self._label}: the value of {key!r} in {state.name!r} cannot be restored: "
                                        f"{str(error) or type(error).__name__}. Has its codec, {state.codec!r}, changed since "
                                        "it was written?") from error
        return decoded

    def drop(self, *groups: int) -> None:
        """Removes groups that this task no longer owns, with their entries."""
        self._unload(groups)
        for group in groups:
            self.places.disown(group)
            self._chains.pop(group, None)
            self._spoiled.discard(group)

    def extract(self, groups: Collection[int], whole: Container[int] | bool) -> dict[int, tuple[bool, bytes]]:
        """Removes groups and returns their changes since the last snapshot, as pieces; those in `whole` (True: all) whole."""
        pieces = self._pieces(self._changes(), whole, any_length=True, among=set(groups))
        self.drop(*groups)
        return pieces

    def sizes(self) -> dict[int, int]:
        """Group -> bytes of its chain."""
        return {group: chain.whole + chain.deltas for group, chain in sorted(self._chains.items())}

    def dirty(self) -> dict[int, int]:
        """Group -> keys set, touched or deleted since its last piece."""
        counts: dict[int, int] = {}
        for state in self.states.values():
            for group, change in state.changes().items():
                counts[group] = counts.get(group, 0) + len(change.keys) + len(change.deleted)
        return counts

    def keys(self) -> dict[int, int]:
        """Group -> entries of all states."""
        counts: dict[int, int] = {}
        for state in self.states.values():
            for group, size in state.sizes().items():
                counts[group] = counts.get(group, 0) + size
        return counts

    def lookup(self, state_name: str, key: Any) -> Any:
        """The value of a key, for `millrace state`; a tuple key may be a list, because it came over the wire. KeyError if the
        key has no entry, KeyNotOwned if it belongs to another task."""
        if state_name not in self.states:
            raise UnknownName(f"{self._label} has no state {state_name!r}; it has {', '.join(map(repr, self.states))}")
        return self.states[state_name].peek(as_key(key))


def open_states(component: Any, group_of: Callable[[Any], int], owned: Collection[int], key_groups: int, label: str,
                now: Callable[[], float], owner_of: Callable[[int], int] | None = None,
                dropped: OnDropped | None = None) -> TaskState | None:
    """Opens the states that the component's class declares and puts them into the instance; None if it declares none.

    `group_of`: a key's group, or a hash to take modulo `key_groups`. `label`: names the task in errors. `now`: wall seconds.
    `owner_of`: the task that owns a group, for errors. `dropped`: as of `TaskState`.
    """
    declared = declared_states(type(component))
    if not declared:
        return None
    places = KeyPlaces(group_of, owned, key_groups, label, owner_of, _add_batch)
    states = {name: state.open(places, now) for name, state in declared.items()}
    vars(component).update(states)
    return TaskState(states, places, dropped)


def _add_batch(state: KeyedState, keys: Any, amounts: Any) -> list[Any]:
    from millrace.state.batches import add_batch  # loads Arrow, which only few states need

    return add_batch(state, keys, amounts)


def stored_entries(group: int, pieces: Sequence[bytes], label: str) -> dict[str, Loaded]:
    """The entries of a chain by state, read without the bolt that wrote it. `label`: names the component in errors."""
    return TaskState({}, KeyPlaces(lambda key: group, (), group + 1, label)).summed(group, pieces)[0]


def _piece(group: int, whole: bool, parts: dict[str, Columns]) -> bytes:
    try:
        return encode_msgpack((FORMAT, group, whole, parts))
    except TOO_ODD:
        return encode_msgpack((FORMAT, group, whole, {name: tuple(map(wrapped, columns)) for name, columns in parts.items()}))


def _apply(columns: Columns, values: dict[Any, Any], dues: dict[Any, float]) -> None:
    keys, news, times, deleted = columns
    for key in map(as_key, deleted):
        values.pop(key, None)
        dues.pop(key, None)
    if not ATOMS.issuperset(map(type, keys)):
        keys = list(map(as_key, keys))
    values.update(zip(keys, news))
    dues.update(zip(keys, times))

"""All exceptions of Millrace.

    MillraceError
    ├── TopologyError            a declaration that cannot run (also a ValueError)
    ├── EncodingError            a value that cannot be encoded (also a TypeError)
    ├── EmitError                an emit that does not fit the declared stream (also a ValueError)
    ├── KeyNotOwned              a key of keyed state that belongs to another task (also a KeyError)
    ├── NotRunning               keyed state or a DataFrame used outside a running task (also a RuntimeError)
    ├── JavaNotFound             no Java that Spark can use
    ├── MasterUnreachable        the Spark master, or a running Millrace, does not answer
    ├── NotEncrypted             encryption is required, and something would travel between hosts unencrypted
    ├── NotEnoughSlots           fewer workers than requested or needed
    ├── NoRoom                   tasks that have no place on the present workers (also a TopologyError)
    ├── AddressInUse             a port or socket that another process holds
    ├── UnknownName              no component, stream, task or slot of that name (also a KeyError)
    ├── UnknownTopology          no running topology of that name (also a KeyError)
    ├── BadParameter             a scheduler's parameter that is unknown or out of range (also a ValueError)
    ├── BadLinks                 a file with costs of links that cannot be used (also a ValueError)
    ├── BadSituation             a file or value that is not a situation to schedule (also a ValueError)
    ├── SchedulerFailed          a scheduler that raised, took too long or returned an invalid plan
    ├── StalePlan                a plan based on an outdated one
    ├── IllegalTransition        a status that cannot follow the present one of a topology (also a RuntimeError)
    ├── ForeignPlan              a stored plan that this run has not signed
    ├── NotTheAuthor             another driver has taken over the plans or the checkpoints
    ├── StoreUnreachable         a store (of plans, history or checkpoints) does not answer, is full or refuses
    ├── StoreInUse               another master uses the checkpoints of that topology
    ├── StoreNotShared           a checkpoint store that is not the same one on all hosts
    ├── StateNotKept             state that no wave saves
    ├── RowsLost                 staged rows that only a roll-back brings back
    ├── CheckpointMissing        a checkpoint, or a part of it, that is not in the store
    ├── CorruptCheckpoint        a checkpoint whose bytes have changed
    ├── OffsetsChanged           Spark's notes on a batch are no longer its own (also a CorruptCheckpoint)
    ├── OutputMissing            committed output that a sink no longer has
    ├── NotEnoughFragments       a snapshot that cannot be rebuilt from the available fragments
    ├── FeedingFailed            rows of a DataFrame that a topology did not process
    ├── ThreadDied               a thread of a worker that ended with an error, and the worker with it (also a RuntimeError)
    ├── UserCodeFailed           user code raised an exception that does not derive from Exception
    └── WireError                a network message that cannot be read (also a ValueError)

A message states the request, the cause and the fix.
"""

from __future__ import annotations

import signal

from millrace.redaction import redact


def is_interrupt(error: BaseException) -> bool:
    """True if an exception that comes out of user code may be a Ctrl-C meant for this process. Where SIGINT has no handler in
    Python, as in workers, only user code can have raised it."""
    return isinstance(error, KeyboardInterrupt) and callable(signal.getsignal(signal.SIGINT))


class MillraceError(Exception):
    """Base of all exceptions of Millrace. Its message, which may quote settings, shows no password of a URL."""

    def __init__(self, *args: object) -> None:
        super().__init__(*[redact(arg) if isinstance(arg, str) else arg for arg in args])


class TopologyError(MillraceError, ValueError):
    """The declaration is wrong: raised when the class body is checked, before anything runs."""


class EncodingError(MillraceError, TypeError):
    """A value cannot be encoded; the message names component, stream, field and type."""


class EmitError(MillraceError, ValueError):
    """An emit does not fit its stream: wrong length, unknown stream, a task that is not a direct target."""


class StateNotKept(MillraceError):
    """A component has state that no wave saves, so it would be lost with its worker."""


class KeyNotOwned(MillraceError, KeyError):
    """A bolt used a key of its state whose key group belongs to another task; the message names both."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class NotRunning(MillraceError, RuntimeError):
    """A component used its keyed state, or the DataFrame that feeds it, while no engine runs it."""


class JavaNotFound(MillraceError):
    """Spark needs Java 17 or newer and none was found."""


class MasterUnreachable(MillraceError):
    """Nothing answers where the Spark master, or the Millrace master, should be."""


class NotEncrypted(MillraceError):
    """Encryption between hosts is required, and the session or a store does not encrypt."""


class NotEnoughSlots(MillraceError):
    """Spark does not start the requested workers, or none would be left."""


class NoRoom(TopologyError):
    """Tasks that a topology is to have more of have no place on the present workers."""


class AddressInUse(MillraceError):
    """Another process already listens there."""


class UnknownName(MillraceError, KeyError):
    """A component, stream, task or slot does not exist; the message lists those that do."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class UnknownTopology(MillraceError, KeyError):
    """No topology of that name runs here."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class WireError(MillraceError, ValueError):
    """A network message cannot be read: the receiver counts and drops it."""


class FeedingFailed(MillraceError):
    """A micro-batch that feeds a DataFrame spout was not acked, and waiting longer would not help."""


class ThreadDied(MillraceError, RuntimeError):
    """A thread of a worker ended with an error: its task would hang, so the worker ends too and its tasks start elsewhere."""


class UserCodeFailed(MillraceError):
    """User code raised an exception that does not derive from `Exception`, such as SystemExit, where no tuple can be blamed."""


class BadParameter(MillraceError, ValueError):
    """A scheduler or estimator has no such parameter, or the value is out of range."""


class BadLinks(MillraceError, ValueError):
    """A file with the costs of links between nodes that cannot be read, or has something else in it."""


class BadSituation(MillraceError, ValueError):
    """A value or file is not a valid description of graphs, cluster, loads and plans."""


class SchedulerFailed(MillraceError):
    """The scheduler returned no valid answer; the plan in force stays."""


class StoreNotShared(MillraceError):
    """Workers do not see what the master writes to the checkpoint store, or the other way round."""


class StalePlan(MillraceError):
    """The plan is based on another version, other workers or other tasks than the present ones, so it is not carried out."""


class IllegalTransition(MillraceError, RuntimeError):
    """A topology cannot go from one status to the other; names topology, old and new status. A bug in the master."""


class ForeignPlan(MillraceError):
    """A plan in the coordination store is not signed by this run. `author`: the number of the master that it names."""

    def __init__(self, message: str, author: int) -> None:
        super().__init__(message)
        self.author = author


class NotTheAuthor(MillraceError):
    """Another driver has taken over the plans or the checkpoints: this one must not write them."""


class StoreUnreachable(MillraceError):
    """A required store does not answer, is full or refuses."""


class StoreInUse(MillraceError):
    """Another process uses the checkpoints of this topology, and each would overwrite those of the other."""


class RowsLost(MillraceError):
    """Rows that a sink has staged are gone, or may not be on the disk: only a roll-back to the last wave brings them back."""


class CheckpointMissing(MillraceError):
    """A part of a checkpoint is not in the store: it was deleted, or the store restarted empty."""


class OutputMissing(MillraceError):
    """A sink has lost output that it had prepared for a committed wave."""


class CorruptCheckpoint(MillraceError):
    """The bytes read from the checkpoint store are not those that were written, or cannot be restored."""


class OffsetsChanged(CorruptCheckpoint):
    """Spark's notes on a batch are no longer those that it was run with: the batch cannot be committed."""


class NotEnoughFragments(MillraceError):
    """Fewer good fragments than a snapshot needs; the message lists rejected ones. The checkpoint store has it too."""

"""Every exception Millrace raises on purpose.

    MillraceError
    ├── TopologyError            a declaration that cannot run (also a ValueError)
    ├── EncodingError            a value that cannot travel (also a TypeError)
    ├── EmitError                an emit that does not fit the declared stream (also a ValueError)
    ├── KeyNotOwned              a key of keyed state that belongs to another task (also a KeyError)
    ├── NotRunning               emit, ack or fail called outside a running task
    ├── JavaNotFound             no Java that Spark can use
    ├── MasterUnreachable        the Spark master, or a running Millrace, does not answer
    ├── NotEnoughSlots           fewer workers came up than were asked for
    ├── AddressInUse             a port or socket that another process holds
    ├── UnknownName              no component, stream, task or slot of that name (also a KeyError)
    ├── UnknownTopology          a name that is not running here
    ├── BadParameter             a scheduler's parameter that is unknown or out of range (also a ValueError)
    ├── BadSituation             a file or value that is not a situation to schedule (also a ValueError)
    ├── SchedulerFailed          a scheduler that raised, took too long or returned no plan that can be run
    ├── StalePlan                a plan made for another one than that in force
    ├── IllegalTransition        a status that cannot follow the present one of a topology (also a RuntimeError)
    ├── NotTheAuthor             another master has taken over the plans
    ├── StoreUnreachable         a store (of plans, history or checkpoints) does not answer, is full or refuses
    ├── StoreInUse               another master uses the checkpoints of that topology
    ├── CheckpointMissing        the checkpoint store has nothing of that name
    ├── CorruptCheckpoint        a checkpoint whose bytes are not those that were written
    ├── NotEnoughFragments       a snapshot that cannot be rebuilt from the fragments of it that came
    ├── FeedingFailed            rows of a DataFrame that could not be brought through a topology
    └── WireError                a frame that is not one of ours

A message says what was asked, what there was, and what to do about it.
"""

from __future__ import annotations


class MillraceError(Exception):
    """Base of all the others: catch this to catch everything Millrace says on purpose."""


class TopologyError(MillraceError, ValueError):
    """The declaration is wrong: raised while the class body is checked, before anything runs."""


class EncodingError(MillraceError, TypeError):
    """A value in a tuple has no place on the wire; names component, stream, field and type."""


class EmitError(MillraceError, ValueError):
    """An emit does not fit its stream: wrong length, unknown stream, a task that is not a direct target."""


class StateNotKept(MillraceError):
    """What a component keeps would be lost with its worker, though it looks like keyed state."""


class KeyNotOwned(MillraceError, KeyError):
    """A bolt used a key of its state whose key group another task has; says which group and task."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class NotRunning(MillraceError, RuntimeError):
    """A component was used outside a task: `emit`, `ack` and `fail` only work while the engine runs it."""


class JavaNotFound(MillraceError):
    """Spark needs Java 17 or newer and none was found."""


class MasterUnreachable(MillraceError):
    """Nothing answers where the Spark master, or the Millrace master, should be."""


class NotEnoughSlots(MillraceError):
    """Spark did not bring up the workers that were asked for within the time limit."""


class AddressInUse(MillraceError):
    """Another process already listens there."""


class UnknownName(MillraceError, KeyError):
    """A component or stream that is not there; the message lists those that are."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class UnknownTopology(MillraceError, KeyError):
    """No topology of that name runs here."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class WireError(MillraceError, ValueError):
    """A frame that cannot be read: counted and dropped by whoever received it."""


class FeedingFailed(MillraceError):
    """A micro-batch that feeds a DataFrame spout was not acked, and will not be by waiting longer."""


class BadParameter(MillraceError, ValueError):
    """A parameter that the scheduler or estimator does not have, or a value out of its range."""


class BadSituation(MillraceError, ValueError):
    """What should describe graphs, cluster, loads and plans does not."""


class SchedulerFailed(MillraceError):
    """The scheduler gave no answer that can be used; the plan in force stays."""


class StalePlan(MillraceError):
    """The plan was made for another version, other workers or other tasks than there are now: nothing of it is run."""


class IllegalTransition(MillraceError, RuntimeError):
    """A topology cannot go from one status to the other; names topology, old and new status. A bug in the master."""


class NotTheAuthor(MillraceError):
    """A newer master writes the plans now: this one must not."""


class StoreUnreachable(MillraceError):
    """A store that is needed does not answer."""


class StoreInUse(MillraceError):
    """Another process has the checkpoints of this topology, and two would destroy each other's."""


class CheckpointMissing(MillraceError):
    """Something that a checkpoint needs is not in the store: it was deleted, or the store came back empty."""


class CorruptCheckpoint(MillraceError):
    """What the checkpoint store gave back is not what was written, or cannot be restored."""


class NotEnoughFragments(MillraceError):
    """Fewer good fragments than a snapshot needs; says which were set aside and why. The checkpoint store has it too."""

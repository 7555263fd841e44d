"""Trial of a checkpoint store: each process writes a test file, a mark, that another must find. The path of a directory does
not tell whether all hosts share it, and `localhost` in a URL is another server on each of them."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.errors import CheckpointMissing, StoreNotShared
from millrace.redaction import shown_place
from millrace.runtime.checkpoints.store import CheckpointStore

MASTER = "master"


def mark_name(token: str, who: str) -> str:
    return f".trial-{token}-{who}"


def begin_trial(store: CheckpointStore, token: str) -> None:
    """Write the mark that the others look for."""
    store.write(mark_name(token, MASTER), [token.encode()])


def join_trial(store: CheckpointStore, token: str, who: str) -> str:
    """Look for the master's mark and leave one for the master; returns the reason why that is impossible, or nothing."""
    try:
        if store.read(mark_name(token, MASTER)) != token.encode():
            return "the driver's test file has other content"
        store.write(mark_name(token, who), [token.encode()])
    except CheckpointMissing:
        return "the driver's test file is not there: another directory or server"
    except Exception as error:  # of any store
        return f"{type(error).__name__}: {error}"
    return ""


def end_trial(store: CheckpointStore, token: str, joined: Iterable[str]) -> set[str]:
    """Delete all marks. Returns those of `joined` whose marks the master does not see."""
    names = {mark_name(token, who): who for who in joined}
    missing = store.missing(names)
    store.delete([mark_name(token, MASTER), *names])
    return {names[name] for name in missing}


def abandon_trial(store: CheckpointStore, token: str) -> None:
    """Delete all marks of a trial without answers, so that it is unknown who has left one. Lists the whole store."""
    store.delete(store.names(mark_name(token, "")))


def raise_if_not_shared(place: str, refused: dict[str, str]) -> None:
    """Raise `StoreNotShared` if processes do not share the store. `refused`: the reason, by process."""
    if refused:
        reasons = "; ".join(f"{who}: {why}" for who, why in sorted(refused.items()))
        raise StoreNotShared(f"the checkpoint store {shown_place(place)} is not the same for all workers, so no state could be "
                             f"stored or restored ({reasons}). Set checkpoint.store to one that all hosts reach: a directory "
                             "that they all mount, redis://HOST:PORT, or a URI such as s3://BUCKET/PATH or hdfs://HOST/PATH")

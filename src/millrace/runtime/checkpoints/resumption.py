"""The start of a topology on a store: chooses the checkpoint to continue from, and takes the topology over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from millrace.control.events import Submitted
from millrace.control.submission import AUTO, OLDER, Resume, as_scaled, check_begun, check_choice, check_older, chosen
from millrace.errors import CorruptCheckpoint, TopologyError
from millrace.model.graph import TopologyGraph
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.state.author import Author
from millrace.state.checkpoint import Manifest, check_fit

log = logging.getLogger(__name__)


class StartOnStore(NamedTuple):
    """The start of a topology by this driver. `place`: the store, for messages; `run`, `least`: see
    `Checkpoints.take_over`."""

    graph: TopologyGraph
    checkpoints: Checkpoints
    place: str
    run: str
    least: int = 0

    def outlook(self, resume: Resume) -> Submitted:
        """The event that would start the topology now, for all checks that may refuse it. Writes nothing: a start that is
        refused leaves the store, and a driver that still runs, alone."""
        if resume is False:  # a fresh start is never refused here
            return Submitted(self.graph)
        choice, manifest = self._choice_and_checkpoint(resume, self.checkpoints.current_author())
        return self._resumed(manifest) if choice and manifest is not None else Submitted(self.graph)

    def submission(self, resume: Resume, confirm: Callable[[], None] = lambda: None) -> Submitted:
        """Take the topology over; the event that starts it. The last step before it is told, after all checks on `outlook`;
        `Checkpoints.give_back` undoes it. A driver that still runs may commit a wave until this one has taken over: so the
        checkpoint is looked up again after that. `confirm`: see `Checkpoints.take_over`."""
        before = self.checkpoints.current_author()
        choice: Resume = False
        if resume is not False:  # a fresh start is never refused here
            choice, _ = self._choice_and_checkpoint(resume, before)
        author = self.checkpoints.take_over(self.run, not choice, self.least, self._upto(before) or 0, confirm)
        choice, manifest = self._choice_and_checkpoint(resume, before)
        after = author.epoch, self.checkpoints.newest()[1]
        if choice and manifest is not None:
            return self._resumed(manifest, after)
        return Submitted(self.graph, None, after, earlier=(manifest.wave, manifest.wave_epoch) if manifest else (0, 0))

    def _resumed(self, manifest: Manifest, after: tuple[int, int] = (0, 0)) -> Submitted:
        return Submitted(as_scaled(self.graph, manifest), manifest, after)

    def _choice_and_checkpoint(self, resume: Resume, before: Author | None) -> tuple[Resume, Manifest | None]:
        """The choice that was made, and the checkpoint to resume from; for a fresh start, the last one of the run that it
        replaces."""
        upto = self._upto(before)
        begun = before is not None and before.fresh and upto is not None
        if resume is False or (resume == AUTO and begun):
            return False, self._replaced(upto)
        manifest, is_newest = self.checkpoints.newest_usable(upto)
        if begun:
            check_begun(resume, manifest, before.at if before is not None else 0.0, self.place)
        if resume == OLDER and upto is None:
            check_older(manifest, self.place)
        choice = chosen(resume, manifest)
        check_choice(choice, manifest, self.place)
        if choice:
            self._check_usable(manifest, is_newest, choice)
        return choice, manifest

    def _upto(self, before: Author | None) -> int | None:
        return self.checkpoints.last_epoch(before) if before is not None else None

    def _replaced(self, upto: int | None) -> Manifest | None:
        """A fresh start works with damaged checkpoints, too."""
        try:
            manifest = self.checkpoints.latest(upto)
        except CorruptCheckpoint as error:
            log.warning("%s starts fresh, and output that its earlier run committed last may be unpublished: %s",
                        self.graph.name, error)
            return None
        sinks = {component.name for component in self.graph.components if component.commits}
        gone = sorted({record.component for record in manifest.records if record.prepared} - sinks) if manifest else []
        if gone:
            log.warning("%s starts fresh without the sinks %s of its earlier run: output that they had prepared for wave %d is "
                        "not published if that run ended before it could", self.graph.name, ", ".join(gone),
                        manifest.wave if manifest else 0)
        return manifest

    def _check_usable(self, manifest: Manifest | None, is_newest: bool, resume: Resume) -> None:
        graph = self.graph
        if manifest is None:
            raise TopologyError(f"there is no checkpoint of {graph.name!r} in {self.place} to resume from: start it without "
                                f"--resume{' older' if resume == OLDER else ''}, or name the store and the cluster that it ran "
                                "in")
        check_fit(manifest, as_scaled(graph, manifest))
        if graph.exactly_once and not is_newest:
            raise CorruptCheckpoint(f"the newest checkpoint of {graph.name!r} in {self.place} cannot be used. "
                                    f"Resuming from an older one (wave {manifest.wave}) would republish output that its sinks "
                                    "have published since: restore the newest from a backup, or delete its manifest to accept "
                                    "that")

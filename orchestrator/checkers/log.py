"""log.*: the log is complete and unaltered, says once how the run ended, and belongs to the recipe beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.accounting.verdicts import Verdict
from orchestrator.checkers.claims import CLAIMS, judge, unknown
from orchestrator.eventlog import reader
from orchestrator.eventlog.block import Block
from orchestrator.eventlog.chain_reader import Numbering
from orchestrator.eventlog.compactor import segments_folder
from orchestrator.eventlog.facts import RunFinished, RunResumed, RunStarted
from orchestrator.recipe.problems import InputError
from orchestrator.recipe.toml_text import hash_in
from orchestrator.store.readers import RECIPE_FILE
from outer.protocol.facts import Finished

LONG = 24  # segments: about 1.5 million facts
UNKNOWN = [
    unknown("log.chain", "there is no log to read"),
    unknown("log.seal", "there is no log to read"),
]


class LogCheck:
    """log.sequence and log.ending, as a fold."""

    def __init__(self) -> None:
        self._numbering = Numbering()
        self._facts = self._ended = self._ended_finished = self._resumed = 0
        self._finished_at: int | None = None  # the syncer step
        self.config_hash: str | None = None  # of the most recent RunStarted

    def take(self, block: Block) -> None:
        self._numbering.take(block)
        self._facts += block.rows
        for _, event in block.others:
            match event.fact:
                case RunStarted(config_hash=here):
                    self.config_hash = here
                case RunFinished(state=state):
                    self._ended += 1
                    self._ended_finished += state == "finished"
                case RunResumed():
                    self._resumed += 1
                case Finished(syncer_step=step):
                    self._finished_at = step

    def verdicts(self) -> list[Verdict]:
        sequence = judge("log.sequence", self._facts, "events", self._numbering.broken())
        return [sequence, judge("log.ending", self._ended, "end of the run", [*self._endings()])]

    def _endings(self) -> Iterator[str]:
        if self._finished_at is not None and not self._ended:
            yield f"the syncer finished at step {self._finished_at}, but the run never did"
        if self._ended > 1 + self._resumed:
            yield f"the run finished {self._ended} times, and was resumed {self._resumed} times"
        if self._ended_finished and self._finished_at is None:
            yield "the run is called finished, but its syncer never reached the budget"


# ------------------------------------------------------------------ the recipe beside the log


def recipe_verdict(run_dir: Path, begun: str | None) -> Verdict:
    """Whether config.toml matches the config hash in the log's most recent RunStarted event. Reads the file's values
    as they are: a later version's defaults do not matter.
    """
    path = run_dir / RECIPE_FILE
    if begun is None or not path.is_file():
        lacking = "the log does not say with which the run was begun" if begun is None else f"no {RECIPE_FILE} is here"
        return unknown("log.recipe", lacking)
    try:
        here = hash_in(path)
    except InputError as error:
        return Verdict("log.recipe", CLAIMS["log.recipe"], "violated", f"{RECIPE_FILE} {error.problems[0].message}")
    told = f"{RECIPE_FILE} has the config hash {here}, the run was begun with {begun}"
    return judge("log.recipe", 1, "recipe", [] if begun == here else [told])


# ------------------------------------------------------------------ a run's folder


class LogFolder:
    """Read `blocks` to their end, then ask for `verdicts`."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.reader = reader.LogReader(run_dir)

    def blocks(self) -> Iterator[Block]:
        """Raises OSError."""
        return self.reader.rest()

    @property
    def long(self) -> bool:
        """Whether it pays to read it in several processes. Raises OSError."""
        return len(reader.store_of(self._run_dir).names(segments_folder(reader.SYNCER))) >= LONG

    @property
    def readable(self) -> bool:
        return not self.reader.findings.unreadable

    def verdicts(self, config_hash: str | None) -> list[Verdict]:
        """`config_hash`: of the log's most recent RunStarted; None: there is none."""
        found = self.reader.findings
        facts, recipe = self.reader.rows, recipe_verdict(self._run_dir, config_hash)
        readable = judge("log.readable", facts, "facts", found.unreadable)
        if not facts and not found.unreadable:
            nothing = f"no events in {self._run_dir}"
            return [*(unknown(name, nothing) for name in ("log.readable", "log.chain", "log.seal")), recipe]
        if found.unknown:
            told = f"{found.unknown} facts are of kinds that this version does not know"
            readable = unknown("log.readable", told)
        if not self.readable:
            readable = judge("log.readable", facts, "facts", found.unreadable)
        chain = judge("log.chain", facts, "facts", found.unlinked)
        return [readable, chain, self._seal(facts), recipe]

    def _seal(self, facts: int) -> Verdict:
        try:
            ends = reader.sealed(self._run_dir)
        except ValueError as error:
            return judge("log.seal", 0, "sealed facts", [str(error)])
        if ends is None:
            return unknown("log.seal", "the run has no seal.json: it did not end")
        told = reader.differs(self.reader, ends)
        return judge("log.seal", facts, "sealed facts", [told] if told else [])

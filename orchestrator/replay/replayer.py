"""Replays a tape with real numbers: every learner repeats its steps, and every commit is computed again.

Merges with production's GlobalParameters in this process, on its CPUs, as a syncer does; learners are repeated by
others, because JAX reads its settings only at its start. A commit waits for its contributions, an adoption for its
commit, a joiner for its donor, and nothing else.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from learners.protocol.facts import DeviceTaken
from learners.training.task import Task
from learners.training.tree import deal, initial_parameters
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.tasks import build_task
from orchestrator.replay.crew import (
    AFTER_STRETCHES,
    AdoptedValue,
    Difference,
    Finish,
    News,
    Order,
    PeerState,
    ReplayTally,
    Sent,
    Stretch,
    stretches,
)
from orchestrator.replay.environment import Environment, hints
from orchestrator.replay.incarnation import Adopt, Key, Read, TapeError
from orchestrator.replay.learners import pool_of
from orchestrator.replay.tape import Tape, merged_read
from orchestrator.replay.workers import Workers, shares
from orchestrator.store.compile_cache import compilation_cache
from outer.numeric import codec as codecs
from outer.numeric.chain import VersionChain
from outer.numeric.parameters import GlobalParameters
from outer.numeric.rules import rules
from outer.protocol.facts import Committed
from outer.protocol.manifest import code_digest

AHEAD = 32  # commits for which learners are told to go on before they are needed


class Replayer:
    """Replays one tape once, with learners that `workers` repeat. `on_news` is called whenever these tell something."""

    def __init__(
        self,
        tape: Tape,
        recipe: Recipe,
        task: Task,
        workers: Workers,
        on_news: Callable[[Replayer], None] = lambda replayer: None,
    ) -> None:
        """Raises TapeError where the task deals into other fragments than the run's."""
        self.fragments = deal(task, recipe.sync)
        names = tuple(tuple(tensor.name for tensor in fragment.tensors) for fragment in self.fragments)
        if (names, tuple(fragment.size for fragment in self.fragments)) != (tape.rules.fragments, tape.rules.sizes):
            raise TapeError(
                "the recipe's task deals into other fragments than the run had: its code or [model] changed"
            )
        tensors = [tensor for fragment in self.fragments for tensor in fragment.tensors]
        self.parameters = GlobalParameters(
            self.fragments,
            initial_parameters(task, self.fragments, recipe.seed, recipe.warm_start),
            recipe.outer,
            recipe.sync.codec,
            rules(tensors, recipe.outer.merge, getattr(task, "merge_rules", {})),
            chain=VersionChain.of(recipe.sync.downlink, self.fragments, recipe.seed),
        )
        for key in tape.incarnations:
            pool_of(recipe, key)
        self.tally, self.workers, self.begun = ReplayTally(), workers, time.monotonic()
        self.commits = 0  # computed so far
        self.device: DeviceTaken | None = None  # of a process that has finished
        self._tape, self._on_news = tape, on_news
        self._sent: dict[tuple[Key, Read], Sent] = {}  # until it is merged
        self._adoptions: dict[tuple[int, int], Counter[int]] = {}  # still to come, by version and group
        for key, incarnation in tape.incarnations.items():
            for moment in incarnation.moments:
                if isinstance(moment, Adopt):
                    groups = self._adoptions.setdefault((moment.fragment, moment.version), Counter())
                    groups[workers.groups[key[0]]] += 1
        self._order: Order = (0, 0, 0)  # of what was compared last here
        self._syncer_step = 0
        self._finished = 0  # groups

    def play(self) -> Iterator[Committed]:
        """Compute every commit again; yields each once it is installed. Raises as Workers.hear."""
        for index in range(len(self.fragments)):
            self._publish(index, 0)
        ahead = stretches(self._tape)
        for _ in range(AHEAD):
            self._ask(next(ahead, []))
        number = 0
        for commit in self._tape.commits:
            self._ask(next(ahead, []))
            self._syncer_step = commit.syncer_step
            payloads = []
            for index in range(len(commit.participants)):
                payloads.append(self._contribution(commit, index, number))
                number += 1
            weights = [one.weight for one in commit.participants]
            forms = [one.codec for one in commit.participants]
            proposal = self.parameters.propose(commit.fragment, payloads, weights, commit.syncer_step, forms)
            self._order = (number - 1, AFTER_STRETCHES, 1)
            found = codecs.digest(proposal.theta)
            self._compare("commit", commit.digest, found, fragment=commit.fragment)
            self.parameters.install(proposal, commit.syncer_step)
            self._publish(commit.fragment, commit.syncer_step)
            self.commits += 1
            yield commit
        self._finish()

    def _ask(self, wanted: list[Stretch]) -> None:
        for stretch in wanted:
            self.workers.tell(self.workers.groups[stretch.key[0]], stretch)

    def _publish(self, fragment: int, version: int) -> None:
        """Give the newest version of a fragment to all who will adopt it."""
        for group, count in self._adoptions.pop((fragment, version), Counter[int]()).items():
            self.workers.tell(group, AdoptedValue(fragment, version, self.parameters.thetas[fragment], count))

    def _contribution(self, commit: Committed, index: int, number: int) -> NDArray[Any]:
        one = commit.participants[index]
        key, read = (one.learner, one.incarnation), merged_read(self._tape.rules, commit, one)
        while (key, read) not in self._sent:
            self._hear()
        sent = self._sent.pop((key, read))
        self._order = (number, AFTER_STRETCHES, 0)
        found = codecs.digest(sent.payload)
        self._compare("contribution", one.digest, found, key, one.step, commit.fragment)
        return sent.payload

    def _hear(self) -> None:
        match message := self.workers.hear():
            case Sent():
                self._sent[message.key, message.read] = message
            case PeerState(joiner):
                self.workers.tell(self.workers.groups[joiner[0]], message)
            case News(tally, device):
                self.tally.add(tally)
                self._finished += device is not None
                self.device = device or self.device
        self._on_news(self)

    def _finish(self) -> None:
        groups = set(self.workers.groups.values())
        for group in groups:
            self.workers.tell(group, Finish())
        while self._finished < len(groups):
            self._hear()

    # -------------------------------------------------------------- comparing

    def _compare(
        self,
        what: str,
        recorded: str,
        found: str,
        key: Key = ("", 0),
        step: int | None = None,
        fragment: int | None = None,
    ) -> None:
        self.tally.compare(what, recorded, found, self._order, self._syncer_step, key, step, fragment)

    def finish(self) -> str:
        """The digest of all parameters; compared with the run's if the tape is whole."""
        digest = self.parameters.digest()
        finished = self._tape.finished
        if self._tape.whole and finished is not None and (finished.digest or finished.state != "failed"):
            self._compare("final", finished.digest, digest)  # of a run that failed there is none
        return digest

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    @property
    def difference(self) -> Difference | None:
        """The first so far."""
        return self.tally.first and self.tally.first[1]


# ------------------------------------------------------------------ for the command


def play(
    tape: Tape, recipe: Recipe, environment: Environment | None, show: Callable[[Replayer], None]
) -> dict[str, Any]:
    """Replay a tape in fresh processes; return the outcome.

    Raises InputError for a task that cannot be built, TapeError for a tape that cannot be played, RuntimeError for a
    process that fails or falls silent. Whatever is raised here ends the processes.
    """
    with tempfile.TemporaryDirectory(prefix="diloco-replay-") as folder:
        inherited = compilation_cache(Path(folder)) | os.environ
        parts = shares(tape, recipe, environment, sorted(os.sched_getaffinity(0)))
        variables = inherited if environment is None else environment.variables(inherited)
        with closing(Workers(parts, variables)) as workers:  # they start while this process does
            replayer = Replayer(tape, recipe, build_task(recipe), workers, show)
            for _ in replayer.play():
                pass
    digest, tally = replayer.finish(), replayer.tally
    tokens, last = tape.commits[-1].tokens_committed if tape.commits else 0, max(replayer.parameters.versions)
    return {
        "commits": replayer.commits,
        "syncer_step": last,
        "tokens": tokens,
        "steps": tally.steps,
        "computed": dict(tally.computed),
        "compared": dict(tally.compared),
        "equal": dict(tally.equal),
        "difference": replayer.difference and asdict(replayer.difference),
        "bit_equal": tally.bit_equal,
        "digest": digest,
        "hints": _hints(tape, recipe, environment, replayer.device),
        "seconds": replayer.seconds,
        "processes": len(parts),
    }


def _hints(tape: Tape, recipe: Recipe, environment: Environment | None, here: DeviceTaken | None) -> list[str]:
    assert here is not None, "every process has finished"
    if environment is not None and environment.cores:
        here = replace(here, cores=min(here.cores, environment.cores))  # of each learner
    found = hints(tape, here, {"optax": version("optax"), "code": code_digest()})
    return found + [
        f"pool {pool.name}: where more than two devices share a batch, its {pool.processes} processes added up in "
        "another order than one does"
        for pool in recipe.pools
        if pool.processes > 1 and pool.known_devices > 2 * pool.model_parallel
    ]

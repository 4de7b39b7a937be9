"""Replays a tape with real numbers: every learner repeats its steps, and every commit is computed again.

Merges with production's GlobalParameters; learners are repeated by a Crew, in this process or in several others at the
same time. A commit waits for its contributions, an adoption for its commit, a joiner for its donor, and nothing else.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from numpy.typing import NDArray

from learners.training.task import Task
from learners.training.tree import deal, initial_parameters, left_out
from orchestrator.recipe.config import Recipe
from orchestrator.replay.crew import (
    AFTER_STRETCHES,
    AdoptedValue,
    Crew,
    Difference,
    Finish,
    FromLearners,
    News,
    Order,
    PeerState,
    ReplayTally,
    Sent,
    Stretch,
    ToLearners,
    stretches,
)
from orchestrator.replay.incarnation import Adopt, Key, Read, TapeError
from orchestrator.replay.learners import Learners, pool_of
from orchestrator.replay.tape import Tape, merged_read, merged_reads
from outer.numeric import codec as codecs
from outer.numeric.chain import VersionChain
from outer.numeric.parameters import GlobalParameters
from outer.numeric.rules import rules
from outer.protocol.facts import Committed

AHEAD = 32  # commits for which learners are told to go on before they are needed


class OneProcess(Crew):
    """All learners in this process and thread, one after the other."""

    def __init__(self, tape: Tape, recipe: Recipe, task: Task) -> None:
        self.groups = {learner: 0 for learner, _ in tape.incarnations}
        self._heard: deque[FromLearners] = deque()
        self.learners = Learners(tape.incarnations, merged_reads(tape), recipe, task, self._heard.append)
        self._running = self.learners.run()
        next(self._running)

    def tell(self, group: int, message: ToLearners) -> None:
        try:
            self._running.send(message)
        except StopIteration:
            assert isinstance(message, Finish)

    def hear(self) -> FromLearners:
        assert self._heard, "the schedule asks for nothing that is not there"
        return self._heard.popleft()


class Replayer:
    """Replays one tape once. `on_news` is called whenever learners tell something."""

    def __init__(
        self,
        tape: Tape,
        recipe: Recipe,
        task: Task,
        on_news: Callable[[], None] = lambda: None,
        crew: Crew | None = None,
    ) -> None:
        """Raises TapeError where the task deals into other fragments than the run's."""
        self.fragments, self.left_out = deal(task, recipe.sync), left_out(task)
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
        self.tally = ReplayTally()
        self.crew = crew or OneProcess(tape, recipe, task)
        self._tape, self._on_news = tape, on_news
        self._sent: dict[tuple[Key, Read], Sent] = {}  # until it is merged
        self._adoptions: dict[tuple[int, int], Counter[int]] = {}  # still to come, by version and group
        for key, incarnation in tape.incarnations.items():
            for moment in incarnation.moments:
                if isinstance(moment, Adopt):
                    groups = self._adoptions.setdefault((moment.fragment, moment.version), Counter())
                    groups[self.crew.group_of(key)] += 1
        self._order: Order = (0, 0, 0)  # of what was compared last here
        self._syncer_step = 0
        self._finished = 0  # groups

    def play(self) -> Iterator[Committed]:
        """Compute every commit again; yields each once it is installed. Raises as Crew.hear."""
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
            yield commit
        self._finish()

    def _ask(self, wanted: list[Stretch]) -> None:
        for stretch in wanted:
            self.crew.tell(self.crew.group_of(stretch.key), stretch)

    def _publish(self, fragment: int, version: int) -> None:
        """Give the newest version of a fragment to all who will adopt it."""
        for group, count in self._adoptions.pop((fragment, version), Counter[int]()).items():
            self.crew.tell(group, AdoptedValue(fragment, version, self.parameters.thetas[fragment], count))

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
        match message := self.crew.hear():
            case Sent():
                self._sent[message.key, message.read] = message
            case PeerState(joiner):
                self.crew.tell(self.crew.group_of(joiner), message)
            case News(tally, finished):
                self.tally.add(tally)
                self._finished += finished
        self._on_news()

    def _finish(self) -> None:
        groups = set(self.crew.groups.values())
        for group in groups:
            self.crew.tell(group, Finish())
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
    def difference(self) -> Difference | None:
        """The first so far."""
        return self.tally.first and self.tally.first[1]

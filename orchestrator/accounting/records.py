"""The syncer's records, each once: a new epoch that starts from too little says some of them again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np

from orchestrator.eventlog.block import Block, Commits, ContributionRows, Ints
from outer.protocol.facts import SetAside, SpanGranted, SpanReturned

KEPT = 1024  # newest records of each kind that a repeated one is compared with
EXAMPLES = 8  # failures that are kept in words

Identity = tuple[Any, ...]


@dataclass
class Records:
    """A fold whose `commits`, `contributions` and `is_repeated` tell a block's records as the earliest epoch said them.

    Two of the same identity by one epoch both count: checks judge that.
    """

    repeats: int = 0
    differing: list[str] = field(default_factory=list)  # the first repeats that say something else, in words
    differ: int = 0
    _commits: dict[int, tuple[int, int]] = field(default_factory=dict)  # by syncer step: epoch, CRC of the record
    _spans: dict[Identity, tuple[int, int]] = field(default_factory=dict)  # the same of grants and returns
    _repeated: set[int] = field(default_factory=set)  # positions in the newest block
    _tables: tuple[Commits, ContributionRows] | None = None

    def take(self, block: Block) -> None:
        self._repeated = set()
        for position, event in block.others:
            fact = event.fact
            if type(fact) is SpanGranted:
                identity: Identity = (fact.learner, fact.incarnation, fact.span)
                name = f"span {fact.span} of {fact.learner} {fact.incarnation}"
            elif isinstance(fact, SpanReturned | SetAside):
                identity = (fact.learner, fact.incarnation, fact.span, fact.start)
                name = f"span {fact.span} of {fact.learner} {fact.incarnation}"
            else:
                continue
            if self._again(self._spans, identity, event.incarnation, crc32(repr(fact).encode()), name):
                self._repeated.add(position)
        self._tables = self._counted(block)

    @property
    def commits(self) -> Commits:
        assert self._tables is not None
        return self._tables[0]

    @property
    def contributions(self) -> ContributionRows:
        assert self._tables is not None
        return self._tables[1]

    def is_repeated(self, position: int) -> bool:
        """Whether a grant or return of the newest block repeats an earlier epoch's."""
        return position in self._repeated

    def _again(self, said: dict[Any, tuple[int, int]], identity: Any, epoch: int, content: int, name: str) -> bool:
        first = said.setdefault(identity, (epoch, content))
        if len(said) > KEPT:
            del said[next(iter(said))]
        if first[0] >= epoch:
            return False
        self.repeats += 1
        if first[1] != content:
            self.differ += 1
            if len(self.differing) < EXAMPLES:
                self.differing.append(f"epoch {epoch} says {name} otherwise than epoch {first[0]}")
        return True

    def _counted(self, block: Block) -> tuple[Commits, ContributionRows]:
        commits, contributions = block.commits, block.contributions
        counted = np.ones(len(commits.position), bool)
        steps, sources = commits.syncer_step.tolist(), commits.source.tolist()
        for index, content in enumerate(_contents(block)):
            step, epoch = steps[index], block.sources[sources[index]][1]
            counted[index] = not self._again(self._commits, step, epoch, content, f"the commit of syncer step {step}")
        if counted.all():
            return commits, contributions
        parts = counted[contributions.commit]
        places = np.cumsum(counted) - 1
        kept = ContributionRows._make(column[parts] for column in contributions)
        sizes = np.diff(commits.first)[counted]
        rest = Commits._make([*(column[counted] for column in commits[:-1]), np.concatenate([[0], np.cumsum(sizes)])])
        return rest, kept._replace(commit=places[kept.commit])


def _contents(block: Block) -> list[int]:
    """A CRC of each commit, over all it says."""
    commits, parts = block.commits, block.contributions
    if not len(commits.position):
        return []
    names = np.array([crc32(repr(source).encode()) for source in block.sources], np.int64)
    numbers: list[Ints] = [names[parts.learner], parts.step, parts.base_step, parts.steps, parts.age, parts.tokens]
    table = np.stack([*numbers, parts.weight.view(np.int64), parts.processed], axis=1)
    own = [commits.syncer_step, commits.fragment, commits.epoch, commits.base_version, commits.live]
    own += [commits.tokens_committed, commits.norm.view(np.int64), commits.quorum_s.view(np.int64)]
    own += [commits.grace_s.view(np.int64), commits.sync_s.view(np.int64)]
    heads = np.stack(own, axis=1)
    first, digests = commits.first.tolist(), parts.digest.tolist()
    contents = []
    for index, (digest, reason) in enumerate(zip(commits.digest.tolist(), commits.reason.tolist(), strict=True)):
        content = crc32(heads[index].tobytes(), crc32(table[first[index] : first[index + 1]].tobytes()))
        words = [*digests[first[index] : first[index + 1]], digest, reason]
        contents.append(crc32("\n".join(words).encode(), content))
    return contents

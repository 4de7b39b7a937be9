"""Adoption of fragment versions: what to fetch, what to adopt and when, and the progress since (paper section 2).

The learner machine calls `adopt` at every boundary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from learners.protocol.events_effects import Apply, Effect, Emit, Fetch, Fetched, FetchFailed
from learners.protocol.facts import Adopted, AdoptionRefused
from learners.protocol.resume_state import ResumeBase
from outer.protocol.coverage import Mark
from outer.protocol.messages import FragmentCounters, Notice, ReadRequest

if TYPE_CHECKING:
    from outer.config import SyncConfig

START = Mark(0, 0)


@dataclass
class Base:
    """A learner's version of one fragment, and its progress since."""

    version: int | None = None  # None until adopted from the syncer
    since: Mark = START  # when it was adopted
    asked: tuple[int, int, int] = (0, 0, 0)  # epoch, syncer step and attempt of the newest answered read
    reads: dict[int, Mark] = field(default_factory=dict)  # its answers, by this learner's step

    def counters(self, at: Mark) -> FragmentCounters:
        return FragmentCounters(self.version, self.since.step, at.step - self.since.step, at.tokens - self.since.tokens)


class Adoption:
    """The base of each fragment and the newest version that arrived for it. The order of arrival does not matter."""

    def __init__(self, config: SyncConfig, fragments: int) -> None:
        self._config = config
        self._bases = [Base() for _ in range(fragments)]
        self._noticed: dict[int, Notice] = {}  # the newest notice, by fragment
        self._fetching: dict[int, int] = {}  # fragment -> the newest requested version, until it fails
        self._pending: dict[int, tuple[int, Any]] = {}  # fragment -> (version, payload)
        self._lost: dict[int, range] = {}  # fragment -> versions that an epoch has lost
        self._bytes: Counter[int] = Counter()  # by fragment: of versions that came, until one is adopted
        self._counted: tuple[Mark, tuple[FragmentCounters, ...]] | None = None  # cache of `counters`

    # -------------------------------------------------------------- what is held

    @property
    def whole(self) -> bool:
        """Whether this learner has every fragment from the syncer."""
        return all(base.version is not None for base in self._bases)

    @property
    def versions(self) -> tuple[int, ...]:
        """The version of each fragment; -1 for one that did not come from the syncer."""
        return tuple(-1 if base.version is None else base.version for base in self._bases)

    def holds(self, fragment: int) -> bool:
        """Whether this fragment came from the syncer."""
        return self._bases[fragment].version is not None

    def counters(self, at: Mark) -> tuple[FragmentCounters, ...]:
        """The progress on each fragment up to `at`, since its base was adopted."""
        if self._counted is None or self._counted[0] != at:
            self._counted = at, tuple(base.counters(at) for base in self._bases)
        return self._counted[1]

    def note_read(self, request: ReadRequest, at: Mark) -> None:
        """Remember the answer to a read, for adoption. Answers to older reads can no longer merge and are dropped."""
        base = self._bases[request.fragment]
        asked = (request.epoch, request.syncer_step, request.attempt)
        if asked > base.asked:
            base.asked, base.reads = asked, {}
        if asked == base.asked:
            base.reads[at.step] = at

    def lacks(self, fragment: int, read_at: int) -> bool:
        """Whether the version that contains a read at this step has not been adopted yet."""
        base = self._bases[fragment]
        return (base.version or 0) < read_at and base.since.step < read_at

    # -------------------------------------------------------------- checkpoints

    def state(self) -> list[ResumeBase]:
        """The base of each fragment, for a checkpoint."""
        return [ResumeBase(each.version, each.since, each.asked, [*each.reads.values()]) for each in self._bases]

    def restore(self, state: Sequence[ResumeBase]) -> None:
        """Restore what `state` returned."""
        self._bases = [Base(b.version, Mark(*b.since), b.asked, {at[0]: Mark(*at) for at in b.reads}) for b in state]

    # -------------------------------------------------------------- the inbox

    def disown(self, versions: tuple[int, ...]) -> None:
        """An epoch has these versions: newer ones are lost, and what was built on them cannot merge."""
        for fragment, version in enumerate(versions):
            held = self.versions[fragment], self._pending.get(fragment, (0,))[0], self._fetching.get(fragment, 0)
            if max(held) > version:
                self._lost[fragment] = range(version + 1, max(held) + 1)
                self._drop(fragment, self._bases[fragment] if held[0] <= version else Base())

    def _drop(self, fragment: int, base: Base) -> None:
        self._bases[fragment], self._counted = base, None
        for known in (self._pending, self._noticed, self._fetching):
            known.pop(fragment, None)

    def notice(self, notice: Notice) -> list[Effect]:
        """A version was announced: fetch it if it is newer than what is here or on its way. Or if steps on it have
        merged into one that is lost: it is adopted anew.
        """
        fragment, base = notice.fragment, self._bases[notice.fragment].version
        if base == notice.version and (notice.merged_step or 0) > self._bases[fragment].since.step:
            self._drop(fragment, Base())
        elif base is not None and notice.version <= base:
            return [Emit(AdoptionRefused(fragment, notice.version, "older"))] if notice.version < base else []
        noticed = self._noticed.get(fragment)
        if noticed is None or notice.version >= noticed.version:
            self._noticed[fragment] = notice
        newest = max(self._fetching.get(fragment, -1), self._pending.get(fragment, (-1,))[0])
        fetch = fragment, notice.version, notice.digest, notice.source
        return [self.fetch(*fetch)] if notice.version > newest else []

    def fetch(self, fragment: int, version: int, digest: str = "", source: Any = None) -> Fetch:
        """Request a version."""
        self._fetching[fragment] = version
        return Fetch(fragment, version, digest, source)

    def fetch_missing(self, versions: tuple[int, ...]) -> list[Fetch]:
        """Fetch every fragment that is neither here, nor pending, nor requested, in these versions."""
        return [
            self.fetch(fragment, version)
            for fragment, version in enumerate(versions)
            if not (self.holds(fragment) or fragment in self._pending or fragment in self._fetching)
        ]

    def arrive(self, event: Fetched) -> None:
        """Keep a payload until the next boundary, if it is the newest of its fragment, and not of a lost version."""
        self._bytes[event.fragment] += event.bytes
        newest, lost = self._pending.get(event.fragment, (-1,))[0], self._lost.get(event.fragment, ())
        if event.version in lost:
            self._fetching.pop(event.fragment, None)  # what was asked for behind it may have been passed over
        elif event.version > newest:
            self._pending[event.fragment] = (event.version, event.payload)

    def fail(self, event: FetchFailed) -> None:
        """A fetch failed."""
        if self._fetching.get(event.fragment, event.version + 1) <= event.version:
            del self._fetching[event.fragment]

    # -------------------------------------------------------------- adopting, at a boundary

    def adopt(self, at: Mark) -> list[Effect]:
        """Adopt every pending version whose time has come: one Apply for each."""
        effects: list[Effect] = []
        for fragment in sorted(self._pending):
            version, payload = self._pending[fragment]
            base = self._bases[fragment].version
            if base is not None and version > base and not self._is_time(fragment, version, at):
                continue
            del self._pending[fragment]
            if base is None or version > base:
                effects += self._adopt(fragment, version, payload, at)
            elif version < base:
                effects.append(Emit(AdoptionRefused(fragment, version, "older")))
        return effects

    def _is_time(self, fragment: int, version: int, at: Mark) -> bool:
        """Strict overlap fixes the step of adoption. Rebase and error feedback need a notice that says what the version
        contains.

        With a base window, no version older than an answered read is adopted before it is known whether that read
        merged: its steps would be overwritten, and merged later. Once it has, rebase needs a version that contains it.
        """
        if self._config.overlap == "strict" and at.step < version + self._config.overlap_steps:
            return False
        base, noticed = self._bases[fragment], self._noticed.get(fragment)
        heard = noticed.version if noticed else -1
        if self._config.needs_notice and heard < version:
            return False
        if not (self._config.base_window and base.reads) or version >= base.asked[1]:
            return True
        assert noticed is not None
        return heard >= base.asked[1] and not (self._config.adopt == "rebase" and noticed.merged_step in base.reads)

    def _adopt(self, fragment: int, version: int, payload: Any, at: Mark) -> list[Effect]:
        base = self._bases[fragment]
        mode = "bootstrap" if base.version is None else self._config.adopt
        read_at = None
        if mode != "bootstrap" and self._config.needs_notice:
            merged_step = self._noticed[fragment].merged_step
            read_at = merged_step if merged_step in base.reads else None
        if mode != "rebase":
            base.since = at
        elif read_at is not None:  # the new version contains what was read at that step; later progress is kept
            base.since = base.reads[read_at]
        base.version = version
        base.reads = {}
        self._counted = None
        return [
            Emit(Adopted(fragment, version, at.step, mode, read_at, self._bytes.pop(fragment, 0))),
            Apply(fragment, version, payload, mode, read_at),
        ]

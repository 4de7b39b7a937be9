"""What a learner holds of each fragment, by what it contains: where it grew from, and its own steps since.

The counterpart of the trainer and of the host copies that a real learner keeps. Knows adoption's arithmetic, and
nothing of when to adopt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.simulation.contents import Content, Key, Version, rebased

if TYPE_CHECKING:
    from chaos.simulation.truth import Truth
    from learners.protocol import events_effects


class Held(NamedTuple):
    """A donor's state, as of one completed step."""

    contents: tuple[Content, ...]
    poisoned: bool  # its numbers are not finite


class Values:
    """`step` is the learner's last completed step, in truth."""

    def __init__(self, unit: Key, truth: Truth) -> None:
        self.step = 0
        self._unit, self._truth = unit, truth
        self._roots: list[Version] = list(truth.origin)
        self._carried: list[Any] = [()] * len(self._roots)
        self._since = [0] * len(self._roots)
        self._bases: list[Version | None] = [None] * len(self._roots)
        self._first = [0] * len(self._roots)  # after this step a fragment first came from the syncer
        self._read: dict[tuple[int, int], Content] = {}  # by fragment and step: what was handed out since

    @property
    def whole(self) -> bool:
        """Every fragment came from the syncer."""
        return None not in self._bases

    @property
    def unmerged(self) -> list[int]:
        """Fragments that came from the syncer, with own steps on them that it does not have."""
        return [p for p, base in enumerate(self._bases) if base is not None and self.step > self._since[p]]

    def content(self, fragment: int) -> Content:
        return Content(self._roots[fragment], self._carried[fragment], self._unit, self._since[fragment], self.step)

    def contents(self) -> tuple[Content, ...]:
        return tuple(map(self.content, range(len(self._roots))))

    def note_read(self, fragment: int, content: Content) -> None:
        """This was handed out: rebase asks later what it was."""
        self._read[fragment, content.step] = content

    def apply(self, effect: events_effects.Apply) -> None:
        """Adopt a version."""
        fragment, version = effect.fragment, effect.payload
        base, mine = self._bases[fragment], self.content(fragment)
        if effect.mode == "rebase":
            assert base is not None, "there is nothing to rebase onto before the first version"
            anchor = Content(base, (), self._unit, mine.since, mine.since)
            if effect.read_at is not None:
                anchor = self._read[fragment, effect.read_at]
            mine = rebased(mine, anchor, version)
        else:  # mixing keeps a share of the numbers, which is nobody's to count
            mine = Content(version, (), self._unit, self.step, self.step)
        if base is None:
            self._first[fragment] = self.step
        self._truth.applied(effect, base, mine, self._first[fragment])
        self._bases[fragment] = self._roots[fragment] = version
        self._carried[fragment], self._since[fragment] = mine.carried, mine.since
        if self._read:
            self._read = {key: value for key, value in self._read.items() if key[0] != fragment}

    def inherit(self, contents: tuple[Content, ...]) -> None:
        """Go on from a donor's values. Its steps are in there, and are not this learner's to give."""
        for fragment, content in enumerate(contents):
            self._roots[fragment], self._carried[fragment] = content.root, content.ranges
            self._since[fragment] = self.step

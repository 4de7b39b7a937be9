"""The chain of a journal: the names of its objects, the identity that ties them to one run, and how it is read.

    journal/identity       written once, by the first epoch; every group carries the identity too
    journal/000000000012   the group at position 12, with the seal of the one before

`Chain.back` reads from the newest group to a snapshot, for the next epoch. `Chain.forward` reads on from a known group,
for the log. Both leave out what an epoch cut off: an opening names the group that it follows, and what lies between the
two does not count. Nothing here writes. Segmenter is the port by which groups become segments of the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from outer.journal.framing import Damaged, pack, unpack
from outer.journal.groups import OPENING, SNAPSHOT, Group, Value
from outer.journal.object_store import Bytes, Objects

IDENTITY = "identity"
SEGMENT_ROWS, SEGMENT_GROUPS = 65_536, 4_096  # a segment is made once as many facts, or groups, wait for it
SEGMENT_BYTES, SEGMENT_ROUNDS = 2**30, 2  # or once their groups hold as much: both so many bytes and rounds of values


def group_key(folder: str, position: int) -> str:
    return f"{folder}/{position:012d}"


def positions(store: Objects, folder: str) -> list[int]:
    """The positions of all groups in the store, sorted."""
    names = (name.rpartition("/")[2] for name in store.names(folder))
    return sorted(int(name) for name in names if name.isdecimal())


def identity_object(run: str) -> list[Bytes]:
    """The content of the object journal/identity."""
    return [*pack({"run": run}, [])[0]]


def identity(store: Objects, folder: str) -> str | None:
    """The identity of the run whose journal this is; None if there is no journal yet, or none that can be read.

    If the identity object is missing or damaged, the newest intact group provides it.
    """
    return inspect_identity(store, folder)[0]


def inspect_identity(store: Objects, folder: str) -> tuple[str | None, str]:
    """(identity or None, what is wrong with the identity object or "")."""
    try:
        return _identity_in(store, f"{folder}/{IDENTITY}"), ""
    except FileNotFoundError:
        wrong = "it is missing"
    except Damaged as error:
        wrong = str(error)
    there = positions(store, folder)
    for position in reversed(there):
        with contextlib.suppress(Damaged, FileNotFoundError):
            return _identity_in(store, group_key(folder, position)), f"{IDENTITY}: {wrong}"
    return None, f"{IDENTITY}: {wrong}" if there or wrong != "it is missing" else ""


def _identity_in(store: Objects, name: str) -> str:
    return str(unpack(store.read(name))[0]["run"])


# ------------------------------------------------------------------ groups


class ChainLink(NamedTuple):
    """The place of a group: its position and its seal."""

    position: int = -1
    seal: str = ""


@dataclass
class EarlierGroups:
    """The groups of earlier epochs in the store."""

    positions: list[int]  # of all groups, sorted
    epoch: int = 0  # the newest
    chain: list[Group] = field(default_factory=list)  # newest first, down to a snapshot or the beginning
    values: dict[int, Value] = field(default_factory=dict)  # by fragment: the newest in the chain
    damage: list[str] = field(default_factory=list)

    def add(self, group: Group) -> None:
        """Add the group that precedes the chain. Only the newest value of each fragment stays in memory."""
        for fragment, value in group.values():
            self.values.setdefault(fragment, value)
        group.arrays = []
        self.chain.append(group)
        # Damage that an earlier epoch cut off stays missing until an epoch starts over with a seed.
        self.damage += [str(each) for each in group.header.get("damage", []) if each not in self.damage]


class Chain:
    """The groups of one run in a folder of a store. `run`: the identity that they carry."""

    def __init__(self, store: Objects, folder: str, run: str) -> None:
        self.store, self.folder, self.run = store, folder, run

    def positions(self) -> list[int]:
        return positions(self.store, self.folder)

    def group(self, position: int, seal: str = "") -> Group:
        """Read a group. Raises Damaged if it is not the one written there, or does not have the given seal."""
        header, arrays, found = unpack(self.store.read(group_key(self.folder, position)))
        if (header.get("run"), header.get("position")) != (self.run, position):
            raise Damaged("it belongs to another position or another run")
        if seal and found != seal:
            raise Damaged("its seal is not the one in the next group")
        return Group(position, header, arrays, found)

    # -------------------------------------------------------------- backward

    def back(self) -> EarlierGroups:
        """Read from the newest group back to a snapshot. If a group in between is damaged, use only those before it."""
        past = EarlierGroups(self.positions())
        group = self.newest_sound(past, past.positions)
        past.epoch = 0 if group is None else int(group.header["epoch"])
        while group is not None:
            past.add(group)
            before = -1 if group.header["kind"] == SNAPSHOT else int(group.header["after"])
            if before < 0:
                break
            try:
                group = self.group(before, str(group.header["before"]))
            except (Damaged, FileNotFoundError) as error:
                unusable = f"; {len(past.chain)} groups after it cannot be used"
                past.damage.append(f"group {before}: {words(error)}{unusable}")
                past.chain, past.values = [], {}  # a group before them is damaged: none of them can be used
                group = self.newest_sound(past, [position for position in past.positions if position < before])
        return past

    def newest_sound(self, past: EarlierGroups, positions: Sequence[int]) -> Group | None:
        for position in reversed(positions):
            try:
                return self.group(position)
            except (Damaged, FileNotFoundError) as error:
                past.damage.append(f"group {position}: {words(error)}")
        return None

    # -------------------------------------------------------------- forward

    def forward(self, after: ChainLink, row: int, damage: list[str], until: int | None = None) -> Iterator[Group]:
        """The groups behind `after`, in order, without their arrays; up to position `until`. `row`: facts before them.

        `damage` takes what is missing, damaged, or linked to another group, in words. Where the chain is broken, it
        goes on at the opening that cut the damage off, or else at the next group that can be read. Raises OSError.
        """
        waiting = [each for each in self.positions() if each > after.position and (until is None or each <= until)]
        if until is None:
            waiting += self._beyond(max(waiting, default=after.position))
        while waiting:
            heard: list[str] = []
            group = self._readable(waiting[0], heard)
            if group is not None and after.position < (before := int(group.header["after"])) < waiting[0]:
                waiting.insert(0, before)  # a listing may have overlooked it; if it is missing, say so
                continue
            if group is None or not follows(group, after, row):
                group = self._behind_damage(waiting, group, after, row, heard)
            damage += heard
            if group is None:
                return
            waiting = [each for each in waiting if each > group.position]
            after, row = ChainLink(group.position, group.seal), group.next_row
            yield group

    def _beyond(self, position: int) -> list[int]:
        """Positions right behind this one that an old listing lacks. Raises OSError."""
        found: list[int] = []
        with contextlib.suppress(FileNotFoundError):
            while True:
                position += 1
                self.store.read(group_key(self.folder, position))
                found.append(position)
        return found

    def ahead(self, after: ChainLink, row: int) -> Iterator[Group]:
        """The groups right behind `after` while each is sound and follows, without a listing. Raises OSError."""
        while True:
            try:
                group = self.group(after.position + 1)
            except (Damaged, FileNotFoundError):
                return
            if not follows(group, after, row):
                return
            group.arrays = []
            yield group
            after, row = ChainLink(group.position, group.seal), group.next_row

    def _readable(self, position: int, damage: list[str]) -> Group | None:
        try:
            group = self.group(position)
        except (Damaged, FileNotFoundError) as error:
            damage.append(f"group {position}: {words(error)}")
            return None
        group.arrays = []
        return group

    def _behind_damage(
        self, waiting: list[int], first: Group | None, after: ChainLink, row: int, heard: list[str]
    ) -> Group | None:
        """Where to go on when the next group is not readable, or does not follow `after`."""
        sound, unheard = first, list[str]()
        for position in waiting[1:]:
            group = self._readable(position, unheard)
            if group is not None and follows(group, after, row):
                heard.clear()  # an epoch cut off what lies between, and has said so
                return group
            sound = sound or group
        if sound is not None:
            heard.append(
                f"group {sound.position}: it follows group {sound.header['after']}, not {after.position} as here"
            )
        return sound


def follows(group: Group, after: ChainLink, row: int) -> bool:
    """Whether a group is the next one. An epoch that found damage, or no log, opens behind whatever facts are left."""
    if after.position >= 0 and (group.header["after"], group.header["before"]) == (after.position, after.seal):
        return True
    told = group.header.get("begins") or group.header.get("damage")
    return group.header["kind"] == OPENING and bool(told) and group.row == row


def words(error: Exception) -> str:
    return "it is missing" if isinstance(error, FileNotFoundError) else str(error)


# ------------------------------------------------------------------ segments


@dataclass(frozen=True)
class Segmented:
    """How far the log is in segments, as the last one says."""

    segments: int = 0
    seal: str = ""
    run: str = ""  # identity of the chain whose groups it covers
    last: int = -1  # position of the last of them
    group: str = ""  # and its seal
    rows: int = 0  # facts in all segments
    writers: tuple[tuple[str, int, int], ...] = ()  # as Recorder.state

    def link(self, run: str) -> ChainLink:
        """Behind which group of this chain the next segment begins."""
        return ChainLink(self.last, self.group) if run == self.run else ChainLink()


class Segmenter(Protocol):
    """Raises OSError; then call it again."""

    def newest(self, known: Segmented) -> Segmented:
        """The last segment in the store; `known` is one that is there."""
        ...

    def write(self, run: str, groups: Iterable[Group], known: Segmented, damage: Sequence[str]) -> Segmented:
        """Make the next segment of the first of these groups, or find that another process has made it.

        `damage`: what could not be read among them, known once they are read.
        """
        ...

"""The journal: makes commits, grants and the end of the run durable before anyone is told, and with them the log.

It is a chain of groups in an object store, at positions 0, 1, 2, ...; each carries the seal of the one before. A writer
creates the object at the next position, which succeeds for one writer only. This one request makes a group durable,
excludes a second writer, and tells an old epoch that a newer one has opened: an epoch opens by writing an opening
behind the last group, so an old epoch that still runs finds its successor's opening at its next position.

A snapshot of the records makes all groups before it removable, except those that hold a fragment's newest value and
those whose facts are in no segment of the log yet. Openings go too, so an old epoch may find its next position free
again. Therefore groups are removed in the order of their positions, except an epoch's own opening, and a group counts
as durable only if the opening of its own epoch is still there after the group was created. Then nothing behind that
opening had been removed: not the group, if an earlier attempt had created it, and not what stood in its way.
"""

from __future__ import annotations

import contextlib
import copy
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

from outer.journal import groups, values
from outer.journal.chain import (
    IDENTITY,
    SEGMENT_BYTES,
    SEGMENT_GROUPS,
    SEGMENT_ROUNDS,
    SEGMENT_ROWS,
    Chain,
    ChainLink,
    EarlierGroups,
    Segmented,
    Segmenter,
    group_key,
    identity,
    identity_object,
    inspect_identity,
    words,
)
from outer.journal.framing import Damaged, is_sealed, pack
from outer.journal.groups import (
    FACTS,
    FORMAT,
    OPENING,
    SNAPSHOT,
    SYNCER,
    Arrays,
    Group,
    Item,
    JournalCut,
    Logged,
    Value,
)
from outer.journal.object_store import Objects, prove, sweep
from outer.protocol.facts import Committed, StateRebuilt
from outer.protocol.recorder import Recorded, Recorder
from outer.protocol.recovery import JournalReplay, Recovered

SNAPSHOT_GROUPS = 32  # groups between two snapshots of the records; with more fragments, as many as those
OPENING_ATTEMPTS_MAX = 100


class StaleEpoch(Exception):
    """A newer epoch of the syncer has opened; this one is over."""


@dataclass
class Opened:
    """The state that an epoch finds in the journal when it opens."""

    found: Recovered
    values: dict[int, Value] = field(default_factory=dict)  # by fragment; a fragment without one never committed
    damage: list[str] = field(default_factory=list)  # what was damaged or missing, in words
    writers: list[list[Any]] = field(default_factory=list)  # up to which fact of whom the log goes: a Recorder's state
    named: list[str] = field(default_factory=list)  # the values that are objects of their own and that records name
    rebuilt: StateRebuilt | None = None  # what an epoch that had rebuilt the state died before it could tell


def inspect(store: Objects, folder: str) -> list[str]:
    """Read a whole journal and describe its damage. Opens no epoch, creates and removes nothing."""
    run, wrong = inspect_identity(store, folder)
    found = [wrong] if wrong else []
    return found if run is None else found + StoredJournal(store, folder, 0, 0).survey(run)


class StoredJournal:
    """One epoch's journal in a store. One thread writes; `segment` and `remove` may run in another."""

    def __init__(
        self,
        store: Objects,
        folder: str,
        epoch: int,
        fragments: int,
        persistent: bool = True,
        segmenter: Segmenter | None = None,
        apart: bool = False,
    ) -> None:
        """`persistent`: False for a journal without values; `apart`: for one whose values others read."""
        self._persistent, self._segmenter, self._apart = persistent, segmenter, apart
        self.bytes_written = self.groups_written = 0
        self._store, self._folder, self._epoch = store, folder, epoch
        self._chain = Chain(store, folder, "")
        self._replay = JournalReplay.empty(fragments)
        self._recorder = Recorder()  # of what is durable
        self.segmented = Segmented()
        self._next = self.rows = 0  # the next group's position, and the facts before it
        self._before = ""  # the seal of the previous group
        self._after = -1  # the position of the previous group
        # By fragment: the position and seal of the group with its newest value.
        self._newest_at: dict[int, tuple[int, str]] = {}
        self._rebuilt: tuple[int, StateRebuilt | None] = 0, None  # by which epoch, and how
        self._opening = ChainLink()  # this epoch's
        self._removable: set[int] = set()  # existing positions
        self._sizes: deque[tuple[int, int]] = deque()  # (position, bytes) of this epoch's groups that are in no segment
        self._inherited = False  # whether earlier epochs left facts that are in no segment
        self._since_snapshot = 0
        self._unsure = False  # whether the outcome of the last request is unknown
        self._snapshot: dict[str, Any] | None = None  # being written
        self._values: dict[int, Value] = {}  # by fragment: references to the newest, not copies

    @property
    def run(self) -> str:
        """The journal's identity."""
        return self._chain.run

    # -------------------------------------------------------------- opening

    def open(self) -> Opened:
        """Read everything that earlier epochs made durable, and fence them.

        Raises StaleEpoch if a newer epoch has opened; Unconditional for a store without conditional creation; OSError.
        """
        prove(self._store)
        sweep(self._store, self._folder)  # only earlier epochs write here, which are dead or about to be fenced
        self._chain.run = self._identity()
        for _ in range(OPENING_ATTEMPTS_MAX):
            past = self._chain.back()
            if past.epoch >= self._epoch:
                raise StaleEpoch(f"epoch {past.epoch} has opened; this is epoch {self._epoch}")
            self._after, self._before, self.rows = -1, "", 0
            if past.chain:
                last = past.chain[0]
                self._after, self._before, self.rows = last.position, last.seal, last.next_row
            self._count_segments(past)
            newest, covered = max(past.positions, default=-1), self.segmented.link(self.run).position
            self._next = max(newest, covered) + 1  # readers of the log go on behind what is in a segment
            if any(map(self._exists, range(covered, newest, -1))):
                continue  # the listing is an old one
            if covered > newest:
                past.damage.append(f"group {covered}: it is missing; a segment of the log has what it held")
            header = {"kind": OPENING, "nonce": uuid.uuid4().hex, "damage": past.damage, "begins": not past.chain}
            try:
                self._put(header, [])
            except FileExistsError:
                continue  # the previous epoch wrote, or another epoch opened, in between
            self._opening = ChainLink(self._after, self._before)
            if any(position > self._after for position in self._chain.positions()):
                continue  # a later epoch opened here, and has removed its opening since
            return self._go_on(past)
        raise OSError(f"{self._store}: the journal changed {OPENING_ATTEMPTS_MAX} times while it was being opened")

    def _identity(self) -> str:
        """The journal's identity; a new one if there is none."""
        if identity(self._store, self._folder) is None:
            with contextlib.suppress(FileExistsError):
                self._store.create(f"{self._folder}/{IDENTITY}", identity_object(uuid.uuid4().hex))
        return identity(self._store, self._folder) or ""  # "": the identity and all groups are damaged

    def _count_segments(self, past: EarlierGroups) -> None:
        """How far segments go. They may hold facts of groups that were damaged since."""
        known = Segmented()
        if past.chain and (values := past.chain[-1].header.get("segmented")):
            known = Segmented(**values | {"writers": tuple(map(tuple, values["writers"]))})
        self.segmented = known if self._segmenter is None else self._segmenter.newest(known)
        self.rows = max(self.rows, self.segmented.rows)

    def _go_on(self, past: EarlierGroups) -> Opened:
        opened = Opened(Recovered([], []), past.values, past.damage)
        self._replay_all(past.chain)
        for fragment, (position, seal) in self._newest_at.items():
            if fragment not in opened.values:
                self._fetch(fragment, position, seal, opened)
        for fragment, value in list(opened.values.items()):
            self._read(fragment, value, opened, here=not self._apart)
        self._recorder.mark_durable(Recorded(*each) for each in self.segmented.writers)
        self._inherited = self.rows > self.segmented.rows
        self._removable = set(past.positions)
        opened.found = copy.deepcopy(self._replay.found)
        opened.writers = self._recorder.state()
        if not any(writer == SYNCER and epoch >= self._rebuilt[0] for writer, epoch, *_ in opened.writers):
            opened.rebuilt = self._rebuilt[1]
        self._values = dict(opened.values)
        return opened

    def _replay_all(self, chain: Sequence[Group]) -> None:
        """Replay groups, the newest first."""
        for group in reversed(chain):
            self._replay_group(group)

    def _replay_group(self, group: Group) -> None:
        header = group.header
        match header["kind"]:
            case groups.SNAPSHOT:
                self._replay = groups.decode_replay(header["kept"])
                self._recorder = Recorder(header.get("writers", ()))
                if told := header.get("rebuilt"):
                    self._rebuilt = header["epoch"], StateRebuilt(told[0], *map(tuple, told[1:]))
                self._newest_at = {fragment: (at, seal) for fragment, at, seal in header["places"]}
                self._newest_at |= {fragment: (group.position, group.seal) for fragment, *_ in header.get("values", [])}
            case groups.OPENING:
                pass
            case _:
                self._note(group)

    def _note(self, group: Group) -> None:
        """Apply a durable group of facts and records."""
        self._since_snapshot += 1
        self._recorder.mark_durable(group.runs())
        for entry in group.entries():
            self._replay.apply(entry)
            if isinstance(entry.record, Committed):
                self._newest_at[entry.record.fragment] = group.position, group.seal

    def _fetch(self, fragment: int, position: int, seal: str, opened: Opened) -> None:
        """Read a fragment's newest value, from before the snapshot."""
        try:
            group = self._chain.group(position, seal)
        except (Damaged, FileNotFoundError) as error:
            opened.damage.append(f"group {position}: {words(error)}; it had the newest value of fragment {fragment}")
            return
        values = (value for each, value in group.values() if each == fragment)
        if (value := next(values, None)) is not None:
            opened.values[fragment] = value

    def _read(self, fragment: int, value: Value, opened: Opened, here: bool = True) -> None:
        """Note a value that is an object of its own; `here`: and read it."""
        if value.stored is None:
            return
        opened.named.append(value.stored.key)
        try:
            opened.values[fragment] = Value(value.version, values.read(self._store, value.stored)) if here else value
        except Damaged as error:
            opened.values.pop(fragment)
            opened.damage.append(f"the newest value of fragment {fragment}: {error}")

    def survey(self, run: str) -> list[str]:
        """Describe the damage of a journal, without opening an epoch."""
        self._chain.run = run
        past = self._chain.back()
        committed = (each.record for group in past.chain for each in group.entries())
        fragments = (1 + record.fragment for record in committed if isinstance(record, Committed))
        self._replay = JournalReplay.empty(max(fragments, default=0))
        opened = self._go_on(past)
        oldest = past.chain[-1].header if past.chain else {}
        if (opening := oldest.get("opening", -1)) not in (-1, *past.positions):
            opened.damage.append(f"group {opening}: it is missing; an epoch opened there")
        read = {group.position for group in past.chain}
        reported = {each.partition(":")[0] for each in opened.damage}
        for position in past.positions:
            if position not in read and f"group {position}" not in reported:
                self._chain.newest_sound(past, [position])
        return opened.damage

    # -------------------------------------------------------------- writing

    def write(self, items: Sequence[Item]) -> list[Recorded]:
        """Make facts and records durable, in this order, in one request; returns up to which fact of whom they go.

        Raises StaleEpoch, and changes nothing, if a newer epoch has opened; ValueError, and changes nothing, for a
        record that is not due. After OSError nothing is durable yet; call again with the same items.
        """
        logged = [item for item in items if isinstance(item, Logged)]
        self._replay.follow(item.entry for item in logged)
        arrays = [array for item in logged for array in item.arrays] if self._persistent else []
        header = {"kind": FACTS, **groups.encode(items, self._persistent)}
        try:
            self._put(header, arrays)
        except FileExistsError as error:
            raise self._stale() from error
        self._since_snapshot += 1
        runs = [run for item in items for run in groups.runs(item)]
        self._recorder.mark_durable(runs)
        for item in logged:
            entry, record = item.entry, item.entry.record
            self._replay.apply(entry)
            if isinstance(record, Committed):
                self._values[record.fragment] = Value(record.syncer_step, list(item.arrays), item.stored)
                if self._persistent:
                    self._newest_at[record.fragment] = self._after, self._before
        return runs

    def seed(self, replay: JournalReplay, newest: Mapping[int, Value], rebuilt: StateRebuilt) -> Recovered:
        """Start over from this state, whatever `open` found. Raises as `write` does.

        `rebuilt`: how it was made, which a later epoch tells where this one dies before it can.
        """
        self._replay, self._values = replay, dict(newest)
        kept = newest if self._persistent else {}
        described = [value.described(fragment) for fragment, value in sorted(kept.items())]
        arrays = [array for _, value in sorted(kept.items()) for array in value.arrays]
        self._newest_at = {}
        self._put_snapshot({"values": described, "rebuilt": astuple(rebuilt)}, arrays)
        self._newest_at = dict.fromkeys(kept, (self._after, self._before))
        return copy.deepcopy(replay.found)

    def cut(self) -> JournalCut:
        """Everything that is durable now. Call it in the writing thread."""
        return JournalCut(groups.encode_replay(self._replay), dict(self._values))

    @property
    def writers(self) -> list[list[Any]]:
        """Up to which fact of whom the log is durable."""
        return self._recorder.state()

    # -------------------------------------------------------------- snapshots, segments, removal

    @property
    def needs_compaction(self) -> bool:
        """Whether `compact` is due."""
        return self._since_snapshot >= max(SNAPSHOT_GROUPS, len(self._newest_at))

    def compact(self) -> list[int]:
        """Write a snapshot of the records. Returns the positions that `remove` may remove, in this order.

        Raises as `write` does; then call it again before the next `write`.
        """
        try:
            self._put_snapshot({}, [])
        except FileExistsError as error:
            raise self._stale() from error
        needed = {position for position, _ in self._newest_at.values()} | {self._opening.position, self._after}
        end = self._after if self._segmenter is None else self.segmented.link(self.run).position + 1
        return sorted(position for position in list(self._removable) if position < end and position not in needed)

    def _put_snapshot(self, header: Mapping[str, Any], arrays: Arrays) -> None:
        if self._snapshot is None:  # else the outcome of an attempt with these very bytes is unknown
            newest_at = [(fragment, *where) for fragment, where in sorted(self._newest_at.items())]
            kept = {"kept": groups.encode_replay(self._replay), "places": newest_at, "writers": self.writers}
            places = {"segmented": asdict(self.segmented), "opening": self._opening.position}
            self._snapshot = {"kind": SNAPSHOT, **places, **kept, **header}
        self._put(self._snapshot, arrays)
        self._snapshot, self._since_snapshot = None, 0

    def remove(self, positions: Iterable[int]) -> None:
        """Remove these groups, one after the other. What is left after OSError, `compact` returns again."""
        for position in positions:
            self._store.remove(group_key(self._folder, position))
            self._removable.discard(position)

    @property
    def needs_segment(self) -> bool:
        """Whether `segment` is due: for many facts, many groups or large ones, or what earlier epochs left."""
        if self._segmenter is None:
            return False
        groups_waiting = self._after - self.segmented.link(self.run).position
        bytes_waiting = sum(size for _, size in list(self._sizes))
        newest = sum(array.nbytes for value in list(self._values.values()) for array in value.arrays)
        return (
            self._inherited
            or self.rows - self.segmented.rows >= SEGMENT_ROWS
            or groups_waiting >= SEGMENT_GROUPS
            or (self._persistent and bytes_waiting >= max(SEGMENT_BYTES, SEGMENT_ROUNDS * newest))
        )

    def segment(self) -> None:
        """Make the next segment, of what is durable now. Raises OSError; then call it again."""
        assert self._segmenter is not None
        damage: list[str] = []
        known = self.segmented
        waiting = self._chain.forward(known.link(self.run), known.rows, damage, self._after)
        self.segmented = self._segmenter.write(self.run, waiting, known, damage)
        self._inherited = False
        last = self.segmented.link(self.run).position
        while self._sizes and self._sizes[0][0] <= last:
            self._sizes.popleft()

    def finish(self) -> None:
        """Bring everything that is durable into segments. Raises OSError; then call it again."""
        while self._segmenter is not None and self.rows > self.segmented.rows:
            self.segment()

    def _stale(self) -> StaleEpoch:
        return StaleEpoch(f"another epoch has opened; this is epoch {self._epoch}, at position {self._next}")

    def _put(self, header: Mapping[str, Any], arrays: Arrays) -> None:
        """Create the object at the next position. Raises FileExistsError if a later epoch has opened."""
        link = {"position": self._next, "after": self._after, "before": self._before, "row": self.rows}
        parts, seal = pack({"run": self.run, "epoch": self._epoch, "format": FORMAT, **link, **header}, arrays)
        name = group_key(self._folder, self._next)
        unsure, self._unsure = self._unsure, True
        try:
            self._store.create(name, parts)
        except FileExistsError:
            if not self._is_there(self._next, seal):
                raise
            unsure = True  # an earlier attempt did succeed
        if self._opening.position >= 0:
            removed = not self._is_there(*self._opening)  # by a later epoch; an earlier one may write there since
            if removed or (unsure and self._exists(self._next + 1)):  # a later one opened behind an earlier attempt
                raise FileExistsError(name)
        self._unsure = False
        size = sum(map(len, parts))
        self._removable.add(self._next)
        self._sizes.append((self._next, size))
        self._after, self._next, self._before = self._next, self._next + 1, seal
        self.rows += int(header.get("rows", 0))
        self.bytes_written += size
        self.groups_written += 1

    def _exists(self, position: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            self._store.read(group_key(self._folder, position))
            return True
        return False

    def _is_there(self, position: int, seal: str) -> bool:
        """Whether the group with this seal is at this position."""
        try:
            return is_sealed(self._store.read(group_key(self._folder, position)), seal)
        except FileNotFoundError:
            return False

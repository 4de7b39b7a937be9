"""The journal: makes commits, grants and the end of the run durable before anyone is told.

It is a log of groups in an object store, at positions 0, 1, 2, ...; each group carries the seal of the one before. A
writer creates the object at the next position, which succeeds for one writer only. This one request makes a group
durable, excludes a second writer, and tells an old epoch that a newer one has opened. An epoch opens by writing an
opening group behind the last one, so an old epoch that is still running finds its successor's opening at its next
position. Openings are therefore never removed. A snapshot of the records makes all other groups removable, except
those that hold a fragment's newest value.
"""

from __future__ import annotations

import contextlib
import copy
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.typing import NDArray

from outer.journal import identity as identities
from outer.journal import record_codec
from outer.journal.framing import Damaged, pack, unpack
from outer.journal.identity import IDENTITY, identity, identity_object, object_key, positions
from outer.journal.object_store import Objects, prove
from outer.protocol.facts import Committed
from outer.protocol.fragments import Fragment
from outer.protocol.recovery import Entry, JournalReplay, Recovered

SNAPSHOT_GROUPS = 32  # groups between two snapshots of the records; with more fragments, as many as those
OPENING_ATTEMPTS_MAX = 100

Arrays = Sequence[NDArray[Any]]  # a fragment's new value: parameters, then the outer optimizer's state


class StaleEpoch(Exception):
    """A newer epoch of the syncer has opened; this one is over."""


class Value(NamedTuple):
    """A fragment's value as of a commit: parameters, then the leaves of the outer state."""

    version: int
    arrays: list[NDArray[Any]]


@dataclass
class Opened:
    """What an epoch finds in the journal when it opens."""

    found: Recovered
    values: dict[int, Value] = field(default_factory=dict)  # by fragment; a fragment without one never committed
    damage: list[str] = field(default_factory=list)  # what was damaged or missing, in words


@dataclass(frozen=True)
class Cut:
    """Everything that is durable at one point. A new journal could start from it."""

    state: dict[str, Any]  # of the records, see record_codec
    values: Mapping[int, Value]  # by fragment; a fragment without one never committed

    def part(
        self,
        epoch: int,
        snapshot: int,
        fragments: Sequence[Fragment] = (),
        initial: Mapping[int, NDArray[Any]] | None = None,
    ) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        """(header, arrays) of the syncer's part of a checkpoint. `initial`: values of fragments without a commit."""
        described = [[fragment, value.version, len(value.arrays)] for fragment, value in sorted(self.values.items())]
        arrays = [array for _, value in sorted(self.values.items()) for array in value.arrays]
        first = {fragment: theta for fragment, theta in (initial or {}).items() if fragment not in self.values}
        arrays += [theta for _, theta in sorted(first.items())]
        tensors = [[[each.name, list(each.shape), each.dtype] for each in fragment.tensors] for fragment in fragments]
        header = {"epoch": epoch, "snapshot": snapshot, "kept": self.state, "values": described}
        return header | {"tensors": tensors, "initial": sorted(first)}, arrays


@dataclass
class _Group:
    position: int
    header: dict[str, Any]
    arrays: list[NDArray[Any]]
    seal: str


@dataclass
class _History:
    """The groups of earlier epochs in the store."""

    positions: list[int]  # of all groups, sorted
    epoch: int = 0  # the newest
    chain: list[_Group] = field(default_factory=list)  # newest first, down to a snapshot or the beginning
    values: dict[int, Value] = field(default_factory=dict)  # by fragment: the newest in the chain
    damage: list[str] = field(default_factory=list)

    def add(self, group: _Group) -> None:
        """Add the group that precedes the chain. Only the newest value of each fragment stays in memory."""
        for fragment, value in _values(group):
            self.values.setdefault(fragment, value)
        group.arrays = []
        self.chain.append(group)
        # Damage that an earlier epoch cut off stays missing until an epoch starts over with a seed.
        self.damage += [str(each) for each in group.header.get("damage", []) if each not in self.damage]

    def cut(self) -> None:
        """Drop the chain: a group before it is damaged, so none of it can be used."""
        self.chain, self.values = [], {}


def _values(group: _Group) -> list[tuple[int, Value]]:
    """(fragment, value) of the commits in a group, newest first; for a seed, of all its values."""
    arrays, values = iter(group.arrays), []
    for each in group.header.get("entries", []):
        value = [next(arrays) for _ in range(each["arrays"])]
        if each["kind"] == Committed.__name__:
            values.append((int(each["record"]["fragment"]), Value(int(each["record"]["syncer_step"]), value)))
    for fragment, version, count in group.header.get("values", []):
        values.append((fragment, Value(version, [next(arrays) for _ in range(count)])))
    return values[::-1]


def inspect(store: Objects, folder: str) -> list[str]:
    """Read a whole journal and describe its damage. Opens no epoch, creates and removes nothing."""
    run, wrong = identities.inspect(store, folder)
    found = [wrong] if wrong else []
    return found if run is None else found + StoredJournal(store, folder, 0, 0).survey(run)


class StoredJournal:
    """One epoch's journal in a store. One thread writes."""

    def __init__(self, store: Objects, folder: str, epoch: int, fragments: int, persistent: bool = True) -> None:
        """`persistent`: False for a journal that only fences older epochs and writes no records."""
        self._persistent = persistent
        self.bytes_written = self.groups_written = 0
        self._store, self._folder, self._epoch = store, folder, epoch
        self.run = ""  # its identity
        self._replay = JournalReplay.empty(fragments)
        self._next = 0  # position
        self._before = ""  # the seal of the previous group
        self._after = -1  # the position of the previous group
        self._newest_at: dict[
            int, tuple[int, str]
        ] = {}  # by fragment: the position and seal of the group with its newest value
        self._openings: set[int] = set()
        self._removable: set[int] = set()  # existing positions, without openings
        self._since_snapshot = 0
        self._unsure = False  # whether the outcome of the last request is unknown
        self._values: dict[int, Value] = {}  # by fragment: references to the newest, not copies

    # -------------------------------------------------------------- opening

    def open(self) -> Opened:
        """Read everything that earlier epochs made durable, and fence them.

        Raises StaleEpoch if a newer epoch has opened; Unconditional for a store without conditional creation; OSError.
        """
        prove(self._store)
        self.run = self._identity()
        for _ in range(OPENING_ATTEMPTS_MAX):
            past = self._past()
            if past.epoch >= self._epoch:
                raise StaleEpoch(f"epoch {past.epoch} has opened; this is epoch {self._epoch}")
            self._next = max(past.positions, default=-1) + 1
            if past.chain:
                self._after, self._before = past.chain[0].position, past.chain[0].seal
            try:
                self._put({"kind": "opening", "nonce": uuid.uuid4().hex, "damage": past.damage}, [])
            except FileExistsError:
                continue  # the previous epoch wrote, or another epoch opened, in between
            return self._go_on(past)
        raise OSError(f"{self._store}: the journal changed {OPENING_ATTEMPTS_MAX} times while it was being opened")

    def _identity(self) -> str:
        """The journal's identity; a new one if there is none."""
        if identity(self._store, self._folder) is None:
            with contextlib.suppress(FileExistsError):
                self._store.create(f"{self._folder}/{IDENTITY}", identity_object(uuid.uuid4().hex))
        return identity(self._store, self._folder) or ""  # "": the identity and all groups are damaged

    def _go_on(self, past: _History) -> Opened:
        opened = Opened(Recovered([], []), past.values, past.damage)
        for group in reversed(past.chain):
            self._replay_group(group)
        for fragment, (position, seal) in self._newest_at.items():
            if fragment not in opened.values:
                self._fetch(fragment, position, seal, opened)
        self._openings.add(self._next - 1)
        oldest = past.chain[-1].position if past.chain else 0
        self._removable = {position for position in past.positions if position < oldest}
        self._removable |= {group.position for group in past.chain}
        self._removable -= self._openings
        opened.found = copy.deepcopy(self._replay.found)
        self._values = dict(opened.values)
        return opened

    # -------------------------------------------------------------- reading

    def _past(self) -> _History:
        """Read from the newest group back to a snapshot. If a group in between is damaged, use only those before it."""
        past = _History(positions(self._store, self._folder))
        group = self._newest_sound(past, past.positions)
        past.epoch = 0 if group is None else int(group.header["epoch"])
        while group is not None:
            past.add(group)
            before = -1 if group.header["kind"] == "snapshot" else int(group.header["after"])
            if before < 0:
                break
            try:
                group = self._group(before, str(group.header["before"]))
            except (Damaged, FileNotFoundError) as error:
                unusable = f"; {len(past.chain)} groups after it cannot be used"
                past.damage.append(f"group {before}: {_words(error)}{unusable}")
                past.cut()
                group = self._newest_sound(past, [position for position in past.positions if position < before])
        return past

    def _newest_sound(self, past: _History, positions: Sequence[int]) -> _Group | None:
        for position in reversed(positions):
            try:
                return self._group(position)
            except (Damaged, FileNotFoundError) as error:
                past.damage.append(f"group {position}: {_words(error)}")
        return None

    def _group(self, position: int, seal: str = "") -> _Group:
        """Read a group. Raises Damaged if it is not the one written there, or does not have the given seal."""
        header, arrays, found = unpack(self._store.read(object_key(self._folder, position)))
        if (header.get("run"), header.get("position")) != (self.run, position):
            raise Damaged("it belongs to another position or another run")
        if seal and found != seal:
            raise Damaged("its seal is not the one in the next group")
        return _Group(position, header, arrays, found)

    def _replay_group(self, group: _Group) -> None:
        header = group.header
        match header["kind"]:
            case "snapshot":
                self._replay = record_codec.decode_replay(header["kept"])
                self._newest_at = {fragment: (at, seal) for fragment, at, seal in header["places"]}
                self._openings |= set(header["openings"])
                self._newest_at |= {fragment: (group.position, group.seal) for fragment, *_ in header.get("values", [])}
            case "opening":
                self._openings.add(group.position)
            case _:
                self._since_snapshot += 1
                self._note([record_codec.decode_entry(each) for each in header["entries"]], group.position, group.seal)

    def _note(self, entries: Iterable[Entry], position: int, seal: str) -> None:
        """Apply the entries of a durable group."""
        for entry in entries:
            self._replay.apply(entry)
            if isinstance(entry.record, Committed):
                self._newest_at[entry.record.fragment] = position, seal

    def _fetch(self, fragment: int, position: int, seal: str, opened: Opened) -> None:
        """Read a fragment's newest value, from before the snapshot."""
        try:
            group = self._group(position, seal)
        except (Damaged, FileNotFoundError) as error:
            opened.damage.append(f"group {position}: {_words(error)}; it had the newest value of fragment {fragment}")
            return
        opened.values[fragment] = next(value for each, value in _values(group) if each == fragment)

    def survey(self, run: str) -> list[str]:
        """Describe the damage of a journal, without opening an epoch."""
        self.run = run
        past = self._past()
        opened = Opened(Recovered([], []), past.values, past.damage)
        read = {group.position for group in past.chain}
        if past.chain and (oldest := past.chain[-1].header)["kind"] == "snapshot":
            for fragment, position, seal in oldest["places"]:
                if fragment not in past.values:
                    self._fetch(fragment, position, seal, opened)
            missing = set(oldest["openings"]) - set(past.positions)
            opened.damage += [f"group {position}: it is missing; an epoch opened there" for position in sorted(missing)]
        reported = {each.partition(":")[0] for each in opened.damage}
        for position in past.positions:
            if position not in read and f"group {position}" not in reported:
                self._newest_sound(past, [position])
        return opened.damage

    # -------------------------------------------------------------- writing

    def write(self, group: Sequence[tuple[Entry, Arrays]]) -> None:
        """Make a group of records durable in one request.

        Raises StaleEpoch, and changes nothing, if a newer epoch has opened. After OSError the group is not durable yet;
        call again with the same group.
        """
        if not self._persistent:
            self._look()
            self._remember(group)
            return
        entries = [record_codec.encode_entry(entry) | {"arrays": len(arrays)} for entry, arrays in group]
        try:
            seal = self._put(
                {"kind": "records", "entries": entries}, [array for _, arrays in group for array in arrays]
            )
        except FileExistsError as error:
            raise self._stale() from error
        self._remember(group, seal)
        self._removable.add(self._after)
        self._since_snapshot += 1

    def _look(self) -> None:
        """Raise StaleEpoch if another epoch has opened; for a journal that writes nothing and so cannot collide."""
        with contextlib.suppress(FileNotFoundError):
            self._store.read(object_key(self._folder, self._next))
            raise self._stale()

    def _remember(self, group: Sequence[tuple[Entry, Arrays]], seal: str = "") -> None:
        self._note((entry for entry, _ in group), self._after, seal)
        for entry, arrays in group:
            if isinstance(entry.record, Committed):
                self._values[entry.record.fragment] = Value(entry.record.syncer_step, list(arrays))

    def seed(self, replay: JournalReplay, values: Mapping[int, Value]) -> Recovered:
        """Start over from this state, whatever `open` found. Raises as `write` does."""
        self._replay, self._values = replay, dict(values)
        if self._persistent:
            described = [[fragment, value.version, len(value.arrays)] for fragment, value in sorted(values.items())]
            header = {"kind": "snapshot", "kept": record_codec.encode_replay(replay), "places": [], "values": described}
            arrays = [array for _, value in sorted(values.items()) for array in value.arrays]
            seal = self._put(header | {"openings": sorted(self._openings)}, arrays)
            self._newest_at = dict.fromkeys(values, (self._after, seal))
            self._removable.add(self._after)
        return copy.deepcopy(replay.found)

    def copy_from(self, other: StoredJournal) -> None:
        """Start over from everything durable in another journal of the same epoch. Raises as `write` does."""
        self.seed(copy.deepcopy(other._replay), other._values)

    def cut(self) -> Cut:
        """Everything that is durable now. Call it in the writing thread."""
        return Cut(record_codec.encode_replay(self._replay), dict(self._values))

    @property
    def needs_compaction(self) -> bool:
        """Whether `compact` is due."""
        return self._persistent and self._since_snapshot >= max(SNAPSHOT_GROUPS, len(self._newest_at))

    def compact(self) -> None:
        """Write a snapshot of the records, then remove the groups that it makes removable.

        Raises as `write` does; then call it again before the next `write`.
        """
        newest_at = [(fragment, *where) for fragment, where in sorted(self._newest_at.items())]
        header = {"kind": "snapshot", "kept": record_codec.encode_replay(self._replay), "places": newest_at}
        try:
            self._put(header | {"openings": sorted(self._openings)}, [])
        except FileExistsError as error:
            raise self._stale() from error
        self._since_snapshot = 0
        needed = {position for position, _ in self._newest_at.values()}
        with contextlib.suppress(OSError):  # the next call tries again
            for position in sorted(self._removable - needed):
                self._store.remove(object_key(self._folder, position))
                self._removable.discard(position)
        self._removable.add(self._after)

    def _stale(self) -> StaleEpoch:
        return StaleEpoch(f"another epoch has opened at position {self._next}; this is epoch {self._epoch}")

    def _put(self, header: Mapping[str, Any], arrays: Arrays) -> str:
        """Create the object at the next position; returns its seal. Raises FileExistsError if it is taken."""
        link = {"position": self._next, "after": self._after, "before": self._before}
        parts, seal = pack({"run": self.run, "epoch": self._epoch, **link, **header}, arrays)
        unsure, self._unsure = self._unsure or self._store.retries, True
        try:
            self._store.create(object_key(self._folder, self._next), parts)
        except FileExistsError:
            if not self._is_there(seal):
                raise
        behind = object_key(self._folder, self._next + 1)
        if unsure and behind in self._store.names(self._folder):
            # An earlier attempt did succeed; a later epoch opened behind it and may have removed it.
            raise FileExistsError(behind)
        self._unsure = False
        self._after, self._next, self._before = self._next, self._next + 1, seal
        self.bytes_written += sum(map(len, parts))
        self.groups_written += 1
        return seal

    def _is_there(self, seal: str) -> bool:
        """Whether the object at the next position is ours, because only the acknowledgement was lost."""
        try:
            return self._group(self._next).seal == seal
        except (Damaged, FileNotFoundError):
            return False


def _words(error: Exception) -> str:
    return "it is missing" if isinstance(error, FileNotFoundError) else str(error)

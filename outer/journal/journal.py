"""The journal: commits, grants and the run's end become durable here before anyone is told.

A log of groups in a store of objects, at positions 0, 1, 2, ...; each group carries the seal of the one before. Whoever
writes creates the object at the next position, which the store grants once: that makes a group durable, keeps two
writers apart, and tells an old epoch that there is a newer one, in one request. An epoch opens with a group of its own
behind the last, so the first thing that a zombie finds at its next position is its successor's opening. Openings are
therefore never removed. Of the others a snapshot of the records makes all superfluous that hold no fragment's newest
value.

Knows records and arrays; not what is in them, nor who waits for them.
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

SNAPSHOT_GROUPS = 32  # from one snapshot of the records to the next, or as many as there are fragments
OPENING_ATTEMPTS_MAX = 100

Arrays = Sequence[NDArray[Any]]  # a fragment's new value: parameters, then the outer optimizer's state


class StaleEpoch(Exception):
    """Another epoch of the syncer has taken over: this one is over."""


class Value(NamedTuple):
    """A fragment as of a commit."""

    version: int
    arrays: list[NDArray[Any]]


@dataclass
class Opened:
    """What an epoch finds as it opens."""

    found: Recovered
    values: dict[int, Value] = field(default_factory=dict)  # by fragment; those not in it never committed
    damage: list[str] = field(default_factory=list)  # what was not as it was written, in words


@dataclass(frozen=True)
class Cut:
    """Everything that is durable at one point: another journal could begin with it."""

    state: dict[str, Any]  # of the records, see record_codec
    values: Mapping[int, Value]  # by fragment; those not in it never committed

    def part(
        self,
        epoch: int,
        snapshot: int,
        fragments: Sequence[Fragment] = (),
        initial: Mapping[int, NDArray[Any]] | None = None,
    ) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        """(header, arrays) of a checkpoint's part. `initial`: of fragments that may never have committed."""
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
    """What the store has of the epochs before."""

    positions: list[int]  # of all groups
    epoch: int = 0  # the newest
    chain: list[_Group] = field(default_factory=list)  # the newest first, down to a snapshot or the beginning
    values: dict[int, Value] = field(default_factory=dict)  # by fragment, of what is in the chain
    damage: list[str] = field(default_factory=list)

    def add(self, group: _Group) -> None:
        """The group before those that are there. Of each fragment only the newest value stays in memory."""
        for fragment, value in _values(group):
            self.values.setdefault(fragment, value)
        group.arrays = []
        self.chain.append(group)
        # What an epoch found damaged and cut off is lacking until one begins anew, with a seed.
        self.damage += [str(each) for each in group.header.get("damage", []) if each not in self.damage]

    def cut(self) -> None:
        """Nothing of it can be used: it has not all that came before it."""
        self.chain, self.values = [], {}


def _values(group: _Group) -> list[tuple[int, Value]]:
    """(fragment, value) of what was committed in a group, the newest first; of a seed, all that it begins with."""
    arrays, values = iter(group.arrays), []
    for each in group.header.get("entries", []):
        value = [next(arrays) for _ in range(each["arrays"])]
        if each["kind"] == Committed.__name__:
            values.append((int(each["record"]["fragment"]), Value(int(each["record"]["syncer_step"]), value)))
    for fragment, version, count in group.header.get("values", []):
        values.append((fragment, Value(version, [next(arrays) for _ in range(count)])))
    return values[::-1]


def inspect(store: Objects, folder: str) -> list[str]:
    """Read all of a journal: what is not as it was written, in words. Opens no epoch, creates and removes nothing."""
    run, wrong = identities.inspect(store, folder)
    found = [wrong] if wrong else []
    return found if run is None else found + StoredJournal(store, folder, 0, 0).survey(run)


class StoredJournal:
    """The journal of one epoch on a store, from its opening on. One thread writes."""

    def __init__(self, store: Objects, folder: str, epoch: int, fragments: int, persistent: bool = True) -> None:
        """`persistent`: else it only tells epochs apart, and nothing that is written survives this process."""
        self._persistent = persistent
        self.bytes_written = self.groups_written = 0
        self._store, self._folder, self._epoch = store, folder, epoch
        self.run = ""  # its identity
        self._replay = JournalReplay.empty(fragments)
        self._next = 0  # position
        self._before = ""  # the seal of the group before
        self._after = -1  # its position
        self._places: dict[int, tuple[int, str]] = {}  # by fragment: where its newest value lies, and that group's seal
        self._openings: set[int] = set()
        self._removable: set[int] = set()  # positions there, openings aside
        self._since_snapshot = 0
        self._unsure = False  # whether the last request was carried out
        self._values: dict[int, Value] = {}  # by fragment, the newest: references, no copies

    # -------------------------------------------------------------- opening

    def open(self) -> Opened:
        """Shut out every older epoch, having read all that it has made durable.

        Raises StaleEpoch where this epoch is old itself; Unconditional for a store that cannot tell; OSError.
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
                continue  # the epoch before has written, or another candidate has opened
            return self._go_on(past)
        raise OSError(f"{self._store}: the journal moved on {OPENING_ATTEMPTS_MAX} times while it was being opened")

    def _identity(self) -> str:
        """That of the run whose journal this is; a new one where there is none."""
        if identity(self._store, self._folder) is None:
            with contextlib.suppress(FileExistsError):
                self._store.create(f"{self._folder}/{IDENTITY}", identity_object(uuid.uuid4().hex))
        return identity(self._store, self._folder) or ""  # "": what said it is damaged, and so is all else

    def _go_on(self, past: _History) -> Opened:
        opened = Opened(Recovered([], []), past.values, past.damage)
        for group in reversed(past.chain):
            self._replay_group(group)
        for fragment, (position, seal) in self._places.items():
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
        """From the newest group back to a snapshot; where one in between is damaged, only what is before that."""
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
        """Raises Damaged for one that is not as it was written there, with that seal if one is given."""
        header, arrays, found = unpack(self._store.read(object_key(self._folder, position)))
        if (header.get("run"), header.get("position")) != (self.run, position):
            raise Damaged("it is of another place, or of another run")
        if seal and found != seal:
            raise Damaged("it is not the one that the next was written behind")
        return _Group(position, header, arrays, found)

    def _replay_group(self, group: _Group) -> None:
        header = group.header
        match header["kind"]:
            case "snapshot":
                self._replay = record_codec.decode_replay(header["kept"])
                self._places = {fragment: (at, seal) for fragment, at, seal in header["places"]}
                self._openings |= set(header["openings"])
                self._places |= {fragment: (group.position, group.seal) for fragment, *_ in header.get("values", [])}
            case "opening":
                self._openings.add(group.position)
            case _:
                self._since_snapshot += 1
                self._note([record_codec.decode_entry(each) for each in header["entries"]], group.position, group.seal)

    def _note(self, entries: Iterable[Entry], position: int, seal: str) -> None:
        """What is in a group that is durable."""
        for entry in entries:
            self._replay.apply(entry)
            if isinstance(entry.record, Committed):
                self._places[entry.record.fragment] = position, seal

    def _fetch(self, fragment: int, position: int, seal: str, opened: Opened) -> None:
        """A value from before the snapshot."""
        try:
            group = self._group(position, seal)
        except (Damaged, FileNotFoundError) as error:
            opened.damage.append(f"group {position}: {_words(error)}; it had the newest value of fragment {fragment}")
            return
        opened.values[fragment] = next(value for each, value in _values(group) if each == fragment)

    def survey(self, run: str) -> list[str]:
        """What is not as it was written, in words; of a journal that nobody opens."""
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
        said = {each.partition(":")[0] for each in opened.damage}
        for position in past.positions:
            if position not in read and f"group {position}" not in said:
                self._newest_sound(past, [position])
        return opened.damage

    # -------------------------------------------------------------- writing

    def write(self, group: Sequence[tuple[Entry, Arrays]]) -> None:
        """Make a group durable in one request.

        Raises StaleEpoch, and changes nothing, where a newer epoch has opened; OSError: not durable, and to be given
        again as it was.
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
        """Raise StaleEpoch where another epoch has opened: for one that writes nothing, and so cannot collide."""
        with contextlib.suppress(FileNotFoundError):
            self._store.read(object_key(self._folder, self._next))
            raise self._stale()

    def _remember(self, group: Sequence[tuple[Entry, Arrays]], seal: str = "") -> None:
        self._note((entry for entry, _ in group), self._after, seal)
        for entry, arrays in group:
            if isinstance(entry.record, Committed):
                self._values[entry.record.fragment] = Value(entry.record.syncer_step, list(arrays))

    def seed(self, replay: JournalReplay, values: Mapping[int, Value]) -> Recovered:
        """Begin with this, whatever was found: it is all that a later epoch needs. Raises as `write` does."""
        self._replay, self._values = replay, dict(values)
        if self._persistent:
            described = [[fragment, value.version, len(value.arrays)] for fragment, value in sorted(values.items())]
            header = {"kind": "snapshot", "kept": record_codec.encode_replay(replay), "places": [], "values": described}
            arrays = [array for _, value in sorted(values.items()) for array in value.arrays]
            seal = self._put(header | {"openings": sorted(self._openings)}, arrays)
            self._places = dict.fromkeys(values, (self._after, seal))
            self._removable.add(self._after)
        return copy.deepcopy(replay.found)

    def copy_from(self, other: StoredJournal) -> None:
        """Begin with all that is durable in another, of the same epoch. Raises as `write` does."""
        self.seed(copy.deepcopy(other._replay), other._values)

    def cut(self) -> Cut:
        """In the thread that writes."""
        return Cut(record_codec.encode_replay(self._replay), dict(self._values))

    @property
    def needs_compaction(self) -> bool:
        """Whether it is time for `compact`."""
        return self._persistent and self._since_snapshot >= max(SNAPSHOT_GROUPS, len(self._places))

    def compact(self) -> None:
        """A snapshot of the records, then let go of what it makes superfluous.

        Raises as `write` does, and is then to be called again before anything is written.
        """
        places = [(fragment, *place) for fragment, place in sorted(self._places.items())]
        header = {"kind": "snapshot", "kept": record_codec.encode_replay(self._replay), "places": places}
        try:
            self._put(header | {"openings": sorted(self._openings)}, [])
        except FileExistsError as error:
            raise self._stale() from error
        self._since_snapshot = 0
        needed = {position for position, _ in self._places.values()}
        with contextlib.suppress(OSError):  # what could not be removed is tried again the next time
            for position in sorted(self._removable - needed):
                self._store.remove(object_key(self._folder, position))
                self._removable.discard(position)
        self._removable.add(self._after)

    def _stale(self) -> StaleEpoch:
        return StaleEpoch(f"another epoch has opened at position {self._next}; this is epoch {self._epoch}")

    def _put(self, header: Mapping[str, Any], arrays: Arrays) -> str:
        """Create the object at the next position; returns its seal. Raises FileExistsError where it is taken."""
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
            # What failed before was there after all. A later epoch has opened behind it, and perhaps let go of it.
            raise FileExistsError(behind)
        self._unsure = False
        self._after, self._next, self._before = self._next, self._next + 1, seal
        self.bytes_written += sum(map(len, parts))
        self.groups_written += 1
        return seal

    def _is_there(self, seal: str) -> bool:
        """Whether what is at the next position was put there by us, and only its acknowledgement was lost."""
        try:
            return self._group(self._next).seal == seal
        except (Damaged, FileNotFoundError):
            return False


def _words(error: Exception) -> str:
    return "it is missing" if isinstance(error, FileNotFoundError) else str(error)

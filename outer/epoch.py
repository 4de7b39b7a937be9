"""What an epoch of the syncer begins with: its spec, and the state that earlier epochs have left.

The syncer actor uses it in its constructor. Nothing here knows Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from outer.config import OuterConfig, SyncConfig
from outer.journal.journal import Opened, Value
from outer.journal.object_store import Objects
from outer.journal.rebuild import JOURNAL, RecoverySource, rebuild, replay_log
from outer.journal.recovery_sources import Ask, Incomplete, RecoverySources
from outer.journal.writer import JournalWriter
from outer.numeric import codec as codecs
from outer.protocol.facts import StateRebuilt
from outer.protocol.recovery import Recovered
from outer.protocol.syncer import Budget

if TYPE_CHECKING:
    from outer.numeric.parameters import GlobalParameters

Facts = Sequence[tuple[int, float, Any]]  # (sequence, wall time, fact): sent along until they are acknowledged

# Where chaos can kill the syncer, in the order in which a commit passes them.
RECEIVED, MERGED, JOURNALING, JOURNALED, APPLIED, ANNOUNCED = POINTS = (
    "received",  # a contribution has arrived
    "merged",
    "journaling",  # the record is about to be written
    "journaled",  # the record is durable, and not announced
    "applied",
    "announced",
)


class Recorder(Protocol):
    """Where facts go: the syncer's own, and those that learners' messages carry."""

    def record(self, writer: str, incarnation: int, facts: Facts) -> int:
        """Append what is new; return the sequence up to which everything is recorded."""
        ...

    def close(self) -> None:
        """The log is about to be sealed: take nothing more."""
        ...


@dataclass(frozen=True)
class SyncerSpec:
    """Everything an epoch of the syncer is made from."""

    epoch: int
    sync: SyncConfig
    outer: OuterConfig
    learners: Mapping[str, int]  # name -> batch size
    quorum: int
    span_steps: int
    ahead_s: float
    budget: Budget
    shared: Mapping[str, Any]  # the recipe's tables that every learner must share
    code: str  # digest of the sources that the run was started with
    store: Objects  # where journal and checkpoints are
    durability: str = "journal"
    journal: Objects | None = None  # where the journal is, if not there


def recover(
    spec: SyncerSpec,
    journal: JournalWriter,
    parameters: GlobalParameters,
    fragments: int,
    sources: RecoverySources | None,
    ask: Ask,
) -> tuple[Recovered, StateRebuilt | None]:
    """Open the journal and load into `parameters` what earlier epochs have left.

    The fact says how the state was rebuilt, if the journal was damaged or incomplete. Raises Incomplete when the
    journal is not enough and there are no other sources.
    """
    opened = journal.open()
    found = opened.found
    lacking = [
        f"version {version} of fragment {fragment} is lost"
        for fragment, version in enumerate(found.versions)
        if version and (fragment not in opened.values or opened.values[fragment].version != version)
    ]
    if spec.epoch > 1 and not found.batch_sizes and not opened.damage:
        lacking.append("the journal has no records")
    if spec.epoch == 1 or not (lacking or opened.damage):
        for fragment, value in opened.values.items():
            parameters.restore(fragment, value.version, value.arrays)
        return found, None
    why = "; ".join([*opened.damage, *lacking])
    if sources is None:
        raise Incomplete(why)
    return _rebuilt(spec, journal, parameters, fragments, opened, sources, ask, why)


def _rebuilt(
    spec: SyncerSpec,
    journal: JournalWriter,
    parameters: GlobalParameters,
    fragments: int,
    opened: Opened,
    sources: RecoverySources,
    ask: Ask,
    why: str,
) -> tuple[Recovered, StateRebuilt]:
    log = replay_log(sources.records, fragments)
    ours = {
        fragment: RecoverySource(JOURNAL, value, codecs.digest(value.arrays[0]))
        for fragment, value in opened.values.items()
    }
    learners = sources.held_by_learners(log.found.versions, ours, ask)
    rebuilt = rebuild(log, ours, sources.cut(spec.store), learners)
    for fragment, value in rebuilt.values.items():
        if fragment in rebuilt.momentum_lost:
            parameters.restore_theta(fragment, value.version, value.arrays[0])
        else:
            parameters.restore(fragment, value.version, value.arrays)
        rebuilt.found.digests[fragment] = codecs.digest(value.arrays[0])
    values = {fragment: Value(v.version, parameters.arrays(fragment)) for fragment, v in rebuilt.values.items()}
    found = journal.seed(rebuilt.replay, values)
    found.clock = rebuilt.clock
    return found, rebuilt.fact(why)

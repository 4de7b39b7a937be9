"""What an epoch of the syncer begins with: its spec, and the state that earlier epochs have left.

The syncer actor uses it in its constructor. Nothing here knows Ray.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from outer import first_values, weights
from outer.config import OuterConfig, SyncConfig
from outer.first_values import FirstValues
from outer.journal import record_codec
from outer.journal.groups import Value
from outer.journal.journal import Opened
from outer.journal.object_store import Objects
from outer.journal.rebuild import JOURNAL, RecoverySource, rebuild
from outer.journal.recovery_sources import Incomplete, RecoverySources
from outer.journal.segmenter import Segmenter
from outer.journal.writer import JournalWriter
from outer.numeric import codec as codecs
from outer.protocol.facts import StateRebuilt
from outer.protocol.fragments import Fragment
from outer.protocol.manifest import manifest
from outer.protocol.recorder import Numbered
from outer.protocol.recovery import Recovered
from outer.protocol.syncer import Budget, Syncer

if TYPE_CHECKING:
    from outer.numeric.parameters import GlobalParameters

Facts = Sequence[Numbered]  # sent along by learners until they are durable

MERGE_THREADS = 4  # at most; the bits do not depend on it

# Where chaos can kill the syncer, in the order in which a commit passes them.
RECEIVED, MERGED, JOURNALING, JOURNALED, APPLIED, ANNOUNCED = POINTS = (
    "received",  # a contribution has arrived
    "merged",
    "journaling",  # the record is about to be written
    "journaled",  # the record is durable, and not announced
    "applied",
    "announced",
)


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
    segmenter: Segmenter | None = None  # makes segments of the log from the journal's groups
    region: str = ""  # the syncer's, if the recipe says so; else that of its node
    begun: int = 0  # the epoch that started the run, or resumed it, and saved its first values; 0: this one does


@dataclass(frozen=True)
class Begun:
    """What an epoch works with."""

    fragments: tuple[Fragment, ...]
    task: Mapping[str, Any]  # what status pages need to know of the task
    patterns: Mapping[str, str]  # the task's merge rules
    parameters: GlobalParameters
    machine: Syncer
    writers: Sequence[Sequence[Any]]  # up to which fact of whom the log goes
    rebuilt: StateRebuilt | None  # how the state was rebuilt, if the journal was damaged or incomplete


def begin(
    spec: SyncerSpec,
    journal: JournalWriter,
    make: Callable[[], FirstValues],
    sources: RecoverySources | None,
    ask: Callable[..., Any],
) -> Begun:
    """Open the journal, which fences earlier epochs, and load what they have left.

    `make` makes fragments and initial parameters from the task. `ask` is an Ask whose first argument is the bytes of an
    answer. Raises Incomplete when the journal is not enough and
    there are no other sources, and as JournalWriter.open.
    """
    from outer.numeric.chain import Chain
    from outer.numeric.parameters import GlobalParameters  # JAX starts here
    from outer.numeric.rules import rules
    from outer.numeric.uplinks import uplinks

    opened = journal.open()
    why = _lacking(spec, opened)
    if why and sources is None:
        raise Incomplete(why)
    fragments, thetas, patterns, task = _first_values(spec, opened, why) or make()
    tensors = [tensor for fragment in fragments for tensor in fragment.tensors]
    merge_rules = rules(tensors, spec.outer.merge, patterns)
    threads = min(MERGE_THREADS, len(os.sched_getaffinity(0)))
    chain = Chain.of(spec.sync.downlink, fragments, spec.shared["seed"])
    weighs = uplinks(spec.sync, fragments)
    also = weighs.codecs[1:]
    parameters = GlobalParameters(fragments, thetas, spec.outer, spec.sync.codec, merge_rules, threads, chain, also)
    found, rebuilt = opened.found, None
    if sources is not None and why:
        found, rebuilt = _rebuilt(spec, journal, parameters, len(fragments), opened, sources, ask, why)
    else:
        for fragment, value in opened.values.items():
            parameters.restore(fragment, value.version, value.arrays)
            found.digests[fragment] = codecs.digest(value.arrays[0])  # an older version's may be of another kind
    machine = Syncer(
        epoch=spec.epoch,
        config=spec.sync,
        fragments=fragments,
        learners=spec.learners,
        quorum=spec.quorum,
        span_steps=spec.span_steps,
        budget=spec.budget,
        manifest=manifest(spec.shared, fragments, spec.code, task.get("left_out")),
        recovered=found if spec.epoch > 1 else None,
        ahead_s=spec.ahead_s,
        reopened=True,
        durability=spec.durability,
        weight=weights.named(spec.sync.weights),
        uplinks=weighs,
    )
    return Begun(fragments, task, patterns, parameters, machine, opened.writers, rebuilt)


def save_first_values(spec: SyncerSpec, begun: Begun) -> Callable[[], None] | None:
    """Saves for later epochs what this one made from the task; None where an earlier one has. Call it in a thread."""
    if spec.begun:
        return None
    thetas, versions = list(begun.parameters.thetas), begun.parameters.versions
    values = begun.fragments, thetas, begun.patterns, begun.task
    return partial(first_values.save, spec.store, spec.epoch, values, [f for f, v in enumerate(versions) if not v])


def _lacking(spec: SyncerSpec, opened: Opened) -> str:
    """Why the journal alone is not enough for this epoch; empty when it is."""
    if spec.epoch == 1:
        return ""
    found = opened.found
    told = [
        f"version {version} of fragment {fragment} is lost"
        for fragment, version in enumerate(found.versions)
        if version and (fragment not in opened.values or opened.values[fragment].version != version)
    ]
    if not found.batch_sizes and not opened.damage:
        told.append("the journal has no records")
    return "; ".join([*opened.damage, *told])


def _first_values(spec: SyncerSpec, opened: Opened, lacking: str) -> FirstValues | None:
    """What was saved when the run was started or resumed. What is lacking may have to start from an initial value."""
    if not spec.begun or lacking:
        return None
    uncommitted = [fragment for fragment, version in enumerate(opened.found.versions) if not version]
    return first_values.load(spec.store, spec.begun, uncommitted)


def _rebuilt(
    spec: SyncerSpec,
    journal: JournalWriter,
    parameters: GlobalParameters,
    fragments: int,
    opened: Opened,
    sources: RecoverySources,
    ask: Callable[..., Any],
    why: str,
) -> tuple[Recovered, StateRebuilt]:
    log = record_codec.decode_replay(dict(sources.log))
    ours = {
        fragment: RecoverySource(JOURNAL, value, codecs.digest(value.arrays[0]))
        for fragment, value in opened.values.items()
    }
    largest = max(4 * fragment.size for fragment in parameters.fragments)
    learners = sources.held_by_learners(log.found.versions, ours, partial(ask, largest))
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

"""Begins an epoch of the syncer from the state that earlier epochs have left.

The syncer's shell uses it when it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outer import first_values
from outer.first_values import ModelLayout
from outer.journal import values
from outer.journal.groups import decode_replay
from outer.journal.journal import Opened
from outer.journal.journal_writer import JournalWriter
from outer.journal.object_store import needing_the_store
from outer.journal.rebuild import JOURNAL, Incomplete, RecoverySource, RecoverySources, rebuild
from outer.numeric import codec as codecs
from outer.protocol.facts import StateRebuilt
from outer.protocol.manifest import manifest
from outer.protocol.recorder import Numbered
from outer.protocol.recovery import Recovered
from outer.protocol.syncer import Syncer
from outer.spec import SyncerSpec

if TYPE_CHECKING:
    from outer.bulk import Bulk


Facts = Sequence[Numbered]  # sent along by learners until they are durable


@dataclass(frozen=True)
class Begun:
    """The parts of an epoch that has begun."""

    layout: ModelLayout
    machine: Syncer
    writers: Sequence[Sequence[Any]]  # up to which fact of whom the log goes
    values: Collection[str]  # names of the values that are objects of their own and that records name
    rebuilt: StateRebuilt | None  # how the state was rebuilt, if the journal was damaged or incomplete


async def begin(spec: SyncerSpec, journal: JournalWriter, bulk: Bulk, sources: RecoverySources | None) -> Begun:
    """Open the journal, which fences earlier epochs, and give `bulk` what they have left.

    Raises Incomplete when the journal is not enough and there are no other sources, StoreAway, and as
    JournalWriter.open.
    """
    from outer.numeric.formats import uplinks

    with needing_the_store():
        opened = await journal.open()
        apart = await bulk.load(opened.values, journal.run)
    for fragment, (_, damage) in apart.items():
        if damage:
            opened.values.pop(fragment)
            opened.damage.append(f"the newest value of fragment {fragment}: {damage}")
    why = _lacking(spec, opened)
    if why and sources is None:
        raise Incomplete(why)
    layout = await bulk.begin(opened.found.versions, bool(why))
    found, rebuilt = opened.found, opened.rebuilt
    if sources is not None and why:
        with needing_the_store():
            found, rebuilt = await _rebuilt(spec, journal, bulk, layout, opened, apart, sources, why)
    else:
        await bulk.restore(opened.values)
    machine = Syncer(
        epoch=spec.epoch,
        config=spec.sync,
        fragments=layout.fragments,
        learners=spec.learners,
        quorum=spec.quorum,
        span_steps=spec.span_steps,
        budget=spec.budget,
        manifest=manifest(spec.shared, layout.fragments, spec.code, layout.task.get("left_out")),
        recovered=found if spec.epoch > 1 else None,
        ahead_s=spec.ahead_s,
        aside_max=spec.aside_max,
        reopened=True,
        durability=spec.durability,
        uplinks=uplinks(spec.sync, layout.fragments),
        sample_tokens=layout.task.get("tokens_per_sample", 0),
    )
    return Begun(layout, machine, opened.writers, opened.named, rebuilt)


async def tidy(spec: SyncerSpec, begun: Begun, bulk: Bulk) -> None:
    """Save for later epochs what this one has made from the task, and remove what earlier ones have left.

    Where that fails, later epochs make what they need themselves.
    """
    loop = asyncio.get_running_loop()
    with contextlib.suppress(Exception):
        if not spec.begun:
            await bulk.save_first_values()
            await loop.run_in_executor(None, first_values.finish, spec.store, spec.epoch, begun.layout)
        await loop.run_in_executor(None, values.sweep, spec.store, spec.epoch, begun.values)


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


async def _rebuilt(
    spec: SyncerSpec,
    journal: JournalWriter,
    bulk: Bulk,
    layout: ModelLayout,
    opened: Opened,
    apart: Mapping[int, tuple[str, str]],
    sources: RecoverySources,
    why: str,
) -> tuple[Recovered, StateRebuilt]:
    """Values from elsewhere pass through this process, even where shards hold them afterwards."""
    log = decode_replay(dict(sources.log))
    digests = {
        fragment: apart[fragment][0] if fragment in apart else codecs.digest(value.arrays[0])
        for fragment, value in opened.values.items()
    }
    ours = {fragment: RecoverySource(JOURNAL, value, digests[fragment]) for fragment, value in opened.values.items()}
    largest = max(4 * fragment.size for fragment in layout.fragments)
    learners = await sources.held_by_learners(log.found.versions, ours, largest)
    rebuilt = rebuild(log, ours, sources.saved(spec.store), learners)
    await bulk.restore(rebuilt.values, rebuilt.momentum_lost)
    for fragment, value in rebuilt.values.items():
        ours_too = value is opened.values.get(fragment)
        rebuilt.found.digests[fragment] = digests[fragment] if ours_too else codecs.digest(value.arrays[0])
    fact = rebuilt.fact(why)
    return await journal.seed(rebuilt.replay, await bulk.kept(rebuilt.values), fact), fact

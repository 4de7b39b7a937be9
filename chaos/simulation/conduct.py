"""How machines behave, beside what their values hold: who steps, who gives, who leaves, and how long is waited.

Seen by their shells as it happens, or in what they have said once a run without faults is over. Knows no history but
that; what it finds it tells `truth`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from chaos.simulation.setting import MANIFEST
from learners.protocol.learner import HOLD_S
from outer.protocol import events_effects
from outer.protocol.events_effects import Emit, Fence
from outer.protocol.facts import Committed, LearnerFenced, Refused, StepOpened
from outer.protocol.messages import COMPILING, DRAINING, IMPORTING, STARTING, STEPPING, STOPPED, Attach, Report

if TYPE_CHECKING:
    from chaos.simulation.setting import Fact, Setting
    from chaos.simulation.truth import Truth
    from learners.protocol.events_effects import Donate

FASTEST = 0.9 * 0.97  # times a learner's usual step: by so much steps vary, and clocks differ
UNEVEN = frozenset({"clock_rate", "clock_jump", "wall_skew", "wall_jump", "zombie"})
SLACK_S = 1.0  # between two looks
WAKE_S = 0.01  # a timer comes so late at most
SOONER = frozenset({"late", "doubled", "stale_incarnation", "stale_epoch", "stale_base"})  # looked at before counters


def steps(truth: Truth, unit: Any) -> None:
    """Only who is stepping steps: nobody who joins, leaves or has stopped."""
    if unit.machine.phase != STEPPING:
        truth.broken("conduct.steps", f"{unit.name} {unit.incarnation} steps while it is {unit.machine.phase}")


def gives(truth: Truth, unit: Any, effect: Donate) -> None:
    """A donor is whole, finite as far as it knows, and has seen the clock that the joiner was told."""
    name, request = f"{unit.name} {unit.incarnation}", effect.request
    if effect.syncer_step < request.syncer_step:
        told = f"{request.joiner} was told {request.syncer_step}"
        truth.broken("conduct.gives", f"{name} gave its state at syncer step {effect.syncer_step}, {told}")
    if not unit.values.whole:
        truth.broken("conduct.gives", f"{name} gave its state before every fragment of it came from the syncer")
    if unit.known_poisoned:
        truth.broken("conduct.gives", f"{name} gave a state of which it knew that it is not finite")


def leaves(truth: Truth, unit: Any, reason: str) -> None:
    """Who was drained holds nothing that a commit could still take."""
    if reason == "drained" and (left := unit.values.unmerged):
        truth.broken("conduct.leaves", f"{unit.name} {unit.incarnation} left as drained with steps on fragments {left}")


def quorum(truth: Truth, server: Any, syncer_step: int, k: int) -> None:
    """At least K reported a further step after this one opened, or reopened; who leaves has none to report."""
    opened, reported = server.opened[syncer_step], 0
    for unit in server.peers.values():
        heard = server.heard.get(unit.key)
        further = heard is not None and heard.step > opened.get(unit.key, 0)
        reported += further or unit.machine.phase in (DRAINING, STOPPED)
    if reported < k:
        truth.broken("conduct.quorum", f"syncer step {syncer_step} went on with {reported} reports, the quorum is {k}")


def life(server: Any, learner: str) -> tuple[int, float]:
    """The incarnation that the syncer knows, and for how long it has been silent, in seconds."""
    for row in server.machine.view(server.clock()):
        if row["name"] == learner and row["lease_age_s"] is not None:
            return row["incarnation"], row["lease_age_s"]
    return 0, math.inf


def hears(truth: Truth, server: Any, report: Report, before: tuple[int, float]) -> None:
    """A report of one incarnation is no sign of life of another."""
    incarnation, silent_s = life(server, report.learner)
    if incarnation == before[0] != report.incarnation and silent_s < before[1]:
        sign = f"a report of {report.learner} {report.incarnation}"
        truth.broken("conduct.hears", f"{sign} was taken for a sign of life of {incarnation}")


def leases(truth: Truth, server: Any) -> None:
    """Nobody is held for alive who has been silent for longer than the last report that arrived was good for."""
    now = server.clock()
    for row in server.machine.view(now):
        heard = server.heard.get((row["name"], row["incarnation"]))
        if not row["alive"] or row["phase"] == STARTING or heard is None:
            continue
        if now > heard.lease_until + SLACK_S:
            silent = f"{row['name']} {row['incarnation']} is held for alive {now - heard.lease_until:.1f} s"
            truth.broken("conduct.leases", f"{silent} after its lease")


def reports(truth: Truth, unit: Any) -> None:
    """A loop reports after every step, and twice a second while it waits; before there is one, on entering a phase."""
    if not unit.running or unit.exited or unit.machine.phase in (STARTING, IMPORTING, COMPILING, STOPPED):
        return
    silent_s = unit.time.now - max(unit.reported_at, unit.stepped_at, unit.thawed_at)
    if silent_s > 2 * HOLD_S + SLACK_S:
        truth.broken("conduct.reports", f"{unit.name} {unit.incarnation} has reported nothing for {silent_s:.1f} s")


def lets_in(truth: Truth, message: Attach) -> None:
    """Nobody of another recipe is welcome."""
    if message.manifest != MANIFEST:
        truth.broken("conduct.attaches", f"{message.learner} {message.incarnation} is welcome with another recipe")


def fences(truth: Truth, server: Any, event: events_effects.Event, effects: list[events_effects.Effect]) -> None:
    """A fence ends the incarnation that it names, and no other."""
    if not isinstance(event, Fence) or not server.running or server.deposed:
        return
    for row in server.machine.view(server.clock()):
        if row["alive"] and (row["name"], row["incarnation"]) == (event.learner, event.incarnation):
            truth.broken("conduct.fences", f"{event.learner} {event.incarnation} is held for alive after its fence")
    for effect in effects:
        if isinstance(effect, Emit) and isinstance(effect.fact, LearnerFenced):
            named, ended = f"{event.learner} {event.incarnation}", f"{effect.fact.learner} {effect.fact.incarnation}"
            if named != ended:
                truth.broken("conduct.fences", f"the fence of {named} ended {ended}")


def refuses(
    truth: Truth,
    server: Any,
    event: events_effects.Event,
    effects: list[events_effects.Effect],
    reasons: frozenset[str],
) -> None:
    """What cannot be right is refused, for one of these reasons; with none it is passed over."""
    if not server.running or server.deposed:
        return
    facts = [effect.fact for effect in effects if isinstance(effect, Emit)]
    said = {fact.reason for fact in facts if isinstance(fact, Refused)}
    if not said <= reasons or bool(said) != bool(reasons):
        truth.broken("conduct.refuses", f"{event} was refused for {sorted(said)}, due is one of {sorted(reasons)}")


def shows(truth: Truth, server: Any) -> None:
    """What status pages show is within its range, and within an epoch no count of it falls."""
    machine, name = server.machine, f"epoch {server.epoch}"
    counts = {"progress": machine.progress, "tokens_processed": machine.tokens_processed}
    counts["tokens_committed"] = machine.tokens_committed
    for row in machine.view(server.clock()):
        learner = f"{row['name']} {row['incarnation']}"
        counts |= {f"{learner} {count}": row[count] for count in ("step", "tokens")}
        if not 0 <= (row["version_lag"] or 0) <= len(machine.versions):
            truth.broken("conduct.shows", f"{name} shows {learner} {row['version_lag']} versions behind")
    fell = [
        f"{count} {value} after {server.shown[count]}" for count, value in counts.items() if value < server.shown[count]
    ]
    if fell or not machine.progress <= 1.0 or (machine.grace_s or 0.0) < 0.0:
        truth.broken("conduct.shows", f"{name} shows {', '.join(fell)}; progress {machine.progress}")
    server.shown.update(counts)


def waits(setting: Setting) -> None:
    """Steps open no sooner than learners step, and no grace outlasts what was granted.

    Not judged where the syncer's clocks do not run evenly, or it freezes.
    """
    options = setting.options
    if UNEVEN & {fault.kind for fault in options.faults}:
        return
    fastest = FASTEST * min(options.step_s.values())
    grace = options.sync.grace
    longest = math.inf if isinstance(grace, str) else grace  # what adaptive grace granted, no record says
    for (writer, epoch), said in setting.facts.items():
        if writer == "syncer":
            _waits(setting, epoch, said, fastest, longest)


def _waits(setting: Setting, epoch: int, said: list[Fact], fastest: float, longest: float) -> None:
    """Of one epoch. What it says again of an earlier one tells nothing of it."""
    sync = setting.options.sync
    opened_at, known = float("-inf"), False  # before the first commit nobody's step time may be known
    for at, fact in said:
        if isinstance(fact, Committed) and fact.grace_s > longest + WAKE_S:
            given = f"syncer step {fact.syncer_step} waited {fact.grace_s:.3f} s after its quorum"
            setting.truth.broken("conduct.waits", f"{given}, granted were at most {longest:.3f} s")
        if isinstance(fact, StepOpened):
            if known and sync.pacing == "clock" and at - opened_at < fastest:
                since = f"syncer step {fact.syncer_step} opened {at - opened_at:.3f} s after the one before"
                setting.truth.broken("conduct.waits", f"{since}, no learner steps in less than {fastest:.3f} s")
            opened_at = at
        known = known or (isinstance(fact, Committed) and fact.epoch == epoch)

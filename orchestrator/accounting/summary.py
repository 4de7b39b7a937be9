"""The summary of a run: one plain dictionary, computed from the event log alone.

What the log does not tell is None, never 0. Times are seconds; `wall_s` and `tokens_per_s` are over the window of
the accounts (first learner step to last commit), `at_s` counts from the first learner step. `wire_bytes` are
payloads only, headers are not counted: up, each merged contribution in the recipe's codec; down, each adoption
in float32.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from learners.protocol.facts import Adopted
from orchestrator.accounting.books import COMMITTED, IN_FLIGHT, REASONS, Books, Ledger, settle
from orchestrator.accounting.goodput import account, first_step_at, participation
from orchestrator.accounting.history import SYNCER, History, indexed
from orchestrator.accounting.incarnations import Freeze, Incarnation, Said
from orchestrator.accounting.outages import Outage, outages
from orchestrator.accounting.verdicts import Verdict, sound
from orchestrator.eventlog.events import Evaluated, Event, FaultInjected, ReferenceLosses, RunFinished, RunStarted
from outer.protocol.facts import Committed, Finished, Refused, StepPassed

if TYPE_CHECKING:
    from orchestrator.recipe.config import Recipe

ELEMENT_BYTES = {"fp32": 4, "bf16": 2}  # of one element on the wire, by codec
PHASES = ("detect", "decide", "start", "import", "compile", "state", "first_contribution")


def summarise(
    events: Iterable[Event] | History, recipe: Recipe | Mapping[str, Any], verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    """The summary of a log, with the checkers' verdicts on it. Strict JSON values throughout."""
    history = indexed(events)
    plain: Mapping[str, Any] = recipe if isinstance(recipe, Mapping) else recipe.canonical()
    books = settle(history)
    goodput, share = account(history, books), participation(history)
    state = _last(history, RunFinished, "state")
    references = history.of(ReferenceLosses)
    wall_s = goodput.wall_s if goodput else None
    steps = history.by_syncer(Committed, StepPassed, Finished)
    evaluated = history.of(Evaluated)
    losses = [_finite(said.fact.loss) for said in evaluated]
    newest_step = max((said.fact.syncer_step for said in steps), default=None)
    evaluated_last = bool(evaluated) and evaluated[-1].fact.syncer_step == newest_step  # else it says something older
    return {
        "name": _last(history, RunStarted, "name") or plain.get("name"),
        "config_hash": _last(history, RunStarted, "config_hash"),
        "ok": state == "finished" and sound(verdicts) and books.balanced,
        "state": state,
        "reason": _last(history, RunFinished, "reason"),
        "initial_eval_loss": losses[0] if losses else None,
        "eval_loss": losses[-1] if evaluated_last else None,
        "loss_unit": evaluated[-1].fact.unit if evaluated else None,
        "reference_losses": {
            "bigram": _finite(references[-1].fact.bigram),
            "trigram": _finite(references[-1].fact.trigram),
        }
        if references
        else None,
        "tokens": _tokens(books),
        "token_fragments": _token_fragments(books) if history.rules else None,
        "syncer_steps": newest_step,
        "commits": len(history.commits) if history.rules else None,
        "rounds_per_fragment": _rounds(history),
        "wall_s": wall_s,
        "tokens_per_s": books.committed / wall_s if wall_s else None,
        "availability": goodput.availability if goodput else None,
        "goodput_time": goodput.goodput_time if goodput else None,
        "goodput_categories": goodput.categories if goodput else None,
        "global_downtime_s": goodput.global_downtime_s if goodput else None,
        "outer_downtime_s": goodput.outer_downtime_s if goodput else None,
        "participation": {"mean": share.mean, "alive_mean": share.alive_mean, "by_learner": share.by_learner}
        if share
        else None,
        "faults": _faults(history, books),
        "refusals": dict(sorted(Counter(said.fact.reason for said in history.of(Refused)).items())),
        "wire_bytes": _wire_bytes(history, plain.get("sync", {}).get("codec")),
        "checks": [{"name": v.name, "status": v.status, "reason": v.reason} for v in verdicts],
    }


def _last(history: History, kind: type[Any], name: str) -> Any:
    said = history.of(kind)
    return getattr(said[-1].fact, name) if said else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _tokens(ledger: Ledger) -> dict[str, Any]:
    return {
        "processed": ledger.processed,
        "committed": ledger.committed,
        "in_flight": ledger.in_flight,
        "discarded": dict(ledger.discarded),
    }


def _token_fragments(books: Books) -> dict[str, Any]:
    """The second table: a token counts once for each fragment. `by_fragment` is what each one committed."""
    shares = books.token_fragments
    return {
        "processed": sum(share.processed for share in shares),
        "committed": sum(share.committed for share in shares),
        "in_flight": sum(share.in_flight for share in shares),
        "discarded": {reason: sum(share.discarded[reason] for share in shares) for reason in REASONS},
        "by_fragment": [share.committed for share in shares],
    }


def _rounds(history: History) -> int | None:
    if history.rules is None:
        return None
    commits = Counter(said.fact.fragment for said in history.commits)
    return min(commits[fragment] for fragment in range(len(history.rules.sizes)))


def _wire_bytes(history: History, codec: str | None) -> dict[str, int | None]:
    if history.rules is None:
        return {"up": None, "down": None}
    sizes = history.rules.sizes
    up = sum(sizes[said.fact.fragment] * len(said.fact.participants) for said in history.commits)
    down = sum(sizes[said.fact.fragment] for said in history.of(Adopted))
    return {
        "up": up * ELEMENT_BYTES[codec] if codec in ELEMENT_BYTES else None,
        "down": down * ELEMENT_BYTES["fp32"],
    }


# ------------------------------------------------------------------ faults, and deaths that none explains


def _faults(history: History, books: Books) -> list[dict[str, Any]]:
    """Injected faults, and deaths that no injected fault explains, by time."""
    origin = first_step_at(history)
    rows: list[tuple[float, dict[str, Any]]] = []
    for incarnation in history.incarnations.values():
        killer, fatal = incarnation.killer, incarnation.fatal_freeze
        for said in incarnation.kills[:1]:
            rows.append((said.at, _death(history, books, incarnation, said.at, True, said.fact.fault_kind)))
        for freeze in incarnation.freezes:
            if freeze is fatal:
                rows.append((freeze.start, _death(history, books, incarnation, freeze.start, True, "freeze")))
            else:
                rows.append((freeze.start, _freeze(history, incarnation, freeze)))
        rows += [(said.at, _strike(history, books, incarnation, said)) for said in incarnation.strikes]
        explained = any(_is_its_end(history, incarnation, said) for said in incarnation.strikes) or _was_misconfigured(
            history, incarnation
        )
        if incarnation.died is not None and killer is None and fatal is None and not explained:
            rows.append((incarnation.died, _death(history, books, incarnation, incarnation.died, False)))
    rows += [(outage.began, _outage(outage)) for outage in outages(history)]
    for at, row in rows:
        row["at_s"] = None if origin is None else at - origin
    return [row for _, row in sorted(rows, key=lambda item: item[0])]


def _outage(outage: Outage) -> dict[str, Any]:
    """An epoch's end: no token is lost to it, for what was not committed is asked for again."""
    detected = None if outage.noticed is None else outage.noticed - outage.began
    phases: dict[str, float | None] = dict.fromkeys(PHASES) | {"detect": detected}
    if outage.served is not None and outage.noticed is not None:
        phases["start"] = outage.served - outage.noticed
        phases["first_contribution"] = None if outage.committed is None else outage.committed - outage.served
    return {
        "kind": outage.kind,
        "target": SYNCER,
        "injected": outage.injected,
        "at_s": None,
        "detection_s": detected,
        "recovery_s": None if outage.committed is None else outage.committed - outage.began,
        "recovery_phases": phases,
        "tokens_lost": 0,
    }


def _death(
    history: History,
    books: Books,
    incarnation: Incarnation,
    at: float,
    injected: bool,
    kind: str = "kill",
    detected: float | None = None,
) -> dict[str, Any]:
    """The end of an incarnation, and how a later one came back. After the run's end nobody looks for either.

    `detected`: when the fault that brought it showed, where that was before the end was noticed.
    """
    noticed = incarnation.noticed if incarnation.over == "killed" else None
    contributed = next(
        (
            (said.at, history.incarnations[(one.learner, one.incarnation)])
            for said in history.commits
            for one in said.fact.participants
            if one.learner == incarnation.learner and one.incarnation > incarnation.number
        ),
        None,
    )
    later = [other for other in history.incarnations_of(incarnation.learner) if other.number > incarnation.number]
    heir = contributed[1] if contributed else next(iter(later), None)
    milestones: list[float | None] = [at, noticed if detected is None else detected]
    milestones += (
        [heir.requested, heir.started, *(heir.entered(phase) for phase in ("compiling", "joining", "stepping"))]
        if heir
        else [None] * 5
    )
    milestones.append(contributed[0] if contributed else None)
    phases = _phases(milestones)
    tokens = {(*incarnation.key, step.fact.step): step.fact.tokens for step in incarnation.steps}
    lost = sum(count for unit, count in tokens.items() if books.fates[unit] == "killed")
    return {
        "kind": kind,
        "target": incarnation.learner,
        "injected": injected,
        "at_s": None,
        "detection_s": phases["detect"],
        "recovery_s": contributed[0] - at if contributed else None,
        "recovery_phases": phases,
        "tokens_lost": lost if noticed is not None else None,
    }


def _phases(milestones: Sequence[float | None]) -> dict[str, float | None]:
    """The time between milestones. One that was not said is None, and the next carries its time.

    A milestone that two clocks put before its predecessor counts as at the same time, so that the phases of a
    recovery sum to its length.
    """
    phases: dict[str, float | None] = {}
    reached = milestones[0]
    for name, at in zip(PHASES, milestones[1:], strict=True):
        if at is None or reached is None:
            phases[name] = None
        else:
            phases[name] = max(0.0, at - reached)
            reached = max(reached, at)
    return phases


def _freeze(history: History, incarnation: Incarnation, freeze: Freeze) -> dict[str, Any]:
    """A freeze that nobody took for a death: once healed, it has killed nothing, so no token is lost to it."""
    healed = history.healed.get(freeze.fault)
    detected = next((at for at, _ in incarnation.expired if at >= freeze.start), None)
    if detected is not None and healed is not None and detected > healed:
        detected = None  # another silence
    return _survived(history, incarnation, "freeze", freeze.start, detected, healed) | {
        "tokens_lost": None if healed is None else 0
    }


def _strike(history: History, books: Books, incarnation: Incarnation, said: Said[FaultInjected]) -> dict[str, Any]:
    """What struck a learner from within: followed to its healing, or to the successor that it took."""
    kind, healed, ended = (
        said.fact.fault_kind,
        history.healed.get(said.fact.fault),
        _is_its_end(history, incarnation, said),
    )
    detected = _shown(history, incarnation, said, ended)
    if ended:
        row = _death(history, books, incarnation, said.at, True, kind, detected)
    else:
        row = _survived(history, incarnation, kind, said.at, detected, healed)
    until = math.inf if ended else healed
    if until is None:
        return row | {"tokens_lost": None}
    steps = [step.fact for step in incarnation.steps if said.at <= step.at <= until]
    kept = (COMMITTED, IN_FLIGHT, "run_ended")
    return row | {
        "tokens_lost": sum(step.tokens for step in steps if books.fates[(*incarnation.key, step.step)] not in kept)
    }


def _is_its_end(history: History, incarnation: Incarnation, said: Said[FaultInjected]) -> bool:
    """Whether this incarnation was over because of it: NaN never heals, and a cut is taken for a death in the end."""
    if incarnation.over != "killed" or incarnation.noticed is None or incarnation.noticed < said.at:
        return False
    healed = history.healed.get(said.fact.fault, math.inf)
    return said.fact.fault_kind == "non_finite" or (said.fact.fault_kind == "link" and incarnation.noticed <= healed)


def _shown(history: History, incarnation: Incarnation, said: Said[FaultInjected], ended: bool) -> float | None:
    """When the first thing showed it: a refusal, an expired lease, or the end that it brought."""
    reason = {"corrupt": "bad_digest", "non_finite": "non_finite"}.get(said.fact.fault_kind)
    refused = (s for s in history.of(Refused) if (s.fact.learner, s.fact.incarnation) == incarnation.key)
    signs = [refusal.at for refusal in refused if refusal.fact.reason == reason]
    if said.fact.fault_kind == "link":
        signs += [at for at, _ in incarnation.expired]
    if ended and incarnation.noticed is not None:
        signs.append(incarnation.noticed)
    healed = history.healed.get(said.fact.fault, math.inf)
    return min((at for at in signs if said.at <= at <= healed), default=None)


def _was_misconfigured(history: History, incarnation: Incarnation) -> bool:
    """Whether it came with another configuration because of an injected fault, and was refused for it."""
    before = history.incarnations.get((incarnation.learner, incarnation.number - 1))
    if before is None or not any(kill.fact.fault_kind == "wrong_config" for kill in before.kills):
        return False
    refused = [said.fact for said in history.of(Refused) if said.fact.reason == "wrong_config"]
    return any((fact.learner, fact.incarnation) == incarnation.key for fact in refused)


def _survived(
    history: History, incarnation: Incarnation, kind: str, at: float, detected: float | None, healed: float | None
) -> dict[str, Any]:
    """A fault that ended no incarnation, up to the learner's first contribution after the healing."""
    contributed = next(
        (
            said.at
            for said in history.commits
            if healed is not None
            and said.at >= healed
            and any(one.learner == incarnation.learner for one in said.fact.participants)
        ),
        None,
    )
    phases: dict[str, float | None] = dict.fromkeys(PHASES)
    if detected is not None:
        phases["detect"] = detected - at
    if contributed is not None and healed is not None:
        phases["first_contribution"] = contributed - healed
    return {
        "kind": kind,
        "target": incarnation.learner,
        "injected": True,
        "at_s": None,
        "detection_s": phases["detect"],
        "recovery_s": None if contributed is None else contributed - at,
        "recovery_phases": phases,
        "tokens_lost": None,
    }

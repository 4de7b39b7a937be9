"""The summary of a run: one plain dictionary, computed from the event log alone.

What the log does not contain is None, never 0. Times are seconds; `wall_s` and `tokens_per_s` are over the window of
the accounts (first learner step to last commit), `at_s` counts from the first learner step. `wire_bytes` are
payloads only, headers are not counted: up, each merged contribution in the recipe's codec; down, each adoption
in float32.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from learners.protocol.facts import Adopted
from orchestrator.accounting.books import REASONS, Books, Ledger, settle
from orchestrator.accounting.faults import fault_rows
from orchestrator.accounting.goodput import Interval, account, wanted_times
from orchestrator.accounting.history import History, indexed
from orchestrator.accounting.verdicts import Verdict, sound
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import Evaluated, ReferenceLosses, RunFinished, RunStarted
from outer.protocol.facts import Committed, Finished, Refused, StepPassed

if TYPE_CHECKING:
    from orchestrator.recipe.config import Recipe

ELEMENT_BYTES = {"fp32": 4, "bf16": 2}  # of one element on the wire, by codec


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
        "faults": fault_rows(history, books),
        "refusals": dict(sorted(Counter(said.fact.reason for said in history.of(Refused)).items())),
        "wire_bytes": _wire_bytes(history, plain.get("sync", {}).get("codec")),
        "checks": [{"name": v.name, "status": v.status, "reason": v.reason} for v in verdicts],
    }


@dataclass(frozen=True)
class Participation:
    """Merged contributions as shares of the possible ones."""

    mean: float  # of commits x learners wanted at each
    alive_mean: float | None  # of the live learners, summed over commits; None: there never were any
    by_learner: dict[str, float]  # share of the commits that each took part in


def participation(history: History) -> Participation | None:
    """None without a commit, or when the configured learners are not known."""
    commits, rules = [said.fact for said in history.commits], history.rules
    if not commits or rules is None:
        return None
    took_part = Counter(one.learner for commit in commits for one in commit.participants if one.weight > 0)
    live = sum(commit.live for commit in commits)
    could = {name: _commits_within(history, name, times) for name, times in wanted_times(history).items()}
    return Participation(
        took_part.total() / sum(could.values()),
        took_part.total() / live if live else None,
        {name: took_part[name] / count if count else 0.0 for name, count in could.items()},
    )


def _commits_within(history: History, learner: str, times: list[Interval]) -> int:
    """Commits that a learner could have taken part in: while it was wanted, and those it did while leaving."""
    return sum(
        any(start <= said.at < stop for start, stop in times)
        or any(one.learner == learner for one in said.fact.participants)
        for said in history.commits
    )


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
    """Tokens counted once per fragment; `by_fragment`: committed by each."""
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

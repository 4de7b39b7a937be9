"""The summary of a run: one plain dictionary, computed from the event log alone.

What the log does not contain is None, never 0. Times are seconds; `wall_s` and `tokens_per_s` are over the window of
the accounts (first learner step to last commit), `at_s` counts from the first learner step. `wire_bytes` are
payloads only, headers are not counted: up, each merged contribution in its codec; down, what came for each
adoption, and where that was not measured, the fragment in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.accounting.accounts import Accounts, Tallies
from orchestrator.accounting.ledger import REASONS, Books, Ledger
from orchestrator.accounting.verdicts import Verdict, sound
from orchestrator.eventlog.block import Adoptions, Block, Ints
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import Evaluated, EvaluationFailed, RunFinished, RunStarted
from outer.numeric.formats import known
from outer.protocol.facts import SyncerStarted

if TYPE_CHECKING:
    from orchestrator.recipe.config import Recipe

ELEMENT_BYTES = 4  # of a version, on the wire


def summarise(
    log: Accounts | Iterable[Event] | Iterable[Block],
    recipe: Recipe | Mapping[str, Any],
    verdicts: Sequence[Verdict],
) -> dict[str, Any]:
    """The summary of a log, or of its accounts, with the checkers' verdicts on it. Strict JSON values throughout."""
    accounts = log if isinstance(log, Accounts) else Accounts.of(log)
    results, tallies, rules = accounts.results(), accounts.tallies, accounts.roster.rules
    plain: Mapping[str, Any] = recipe if isinstance(recipe, Mapping) else recipe.canonical()
    books, goodput, share = results.books, results.goodput, tallies.participation
    started, finished = tallies.newest_of(RunStarted), tallies.newest_of(RunFinished)
    evaluated = tallies.newest_of(Evaluated)
    wall_s = goodput.wall_s if goodput else None
    # An older evaluation says something of older parameters.
    current = evaluated is not None and evaluated.syncer_step == tallies.syncer_step
    return {
        "name": (started.name if started else None) or plain.get("name"),
        "config_hash": started.config_hash if started else None,
        "ok": finished is not None and finished.state == "finished" and sound(verdicts) and books.balanced,
        "state": finished.state if finished else None,
        "reason": finished.reason if finished else None,
        "initial_eval_loss": _finite(tallies.evaluated.loss) if tallies.evaluated else None,
        "eval_loss": _finite(evaluated.loss) if current else None,
        "eval_fault": failed.reason if (failed := tallies.newest_of(EvaluationFailed)) else None,
        "loss_unit": evaluated.unit if evaluated else None,
        "eval_metrics": {name: _finite(value) for name, value in evaluated.metrics.items()} if current else None,
        "tokens": _tokens(books),
        "token_fragments": _token_fragments(books) if rules else None,
        "syncer_steps": tallies.syncer_step,
        "commits": tallies.commits.total() if rules else None,
        "rounds_per_fragment": min(tallies.commits[fragment] for fragment in range(len(rules.sizes)))
        if rules
        else None,
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
        "faults": results.faults,
        "faults_left_out": results.faults_left_out,
        "set_aside": tallies.set_aside,
        "refusals": dict(sorted(tallies.refusals.items())),
        "wire_bytes": _wire_bytes(tallies, rules, plain.get("sync", {}).get("codec")),
        "checks": [{"name": v.name, "status": v.status, "reason": v.reason} for v in verdicts],
    }


def downloaded(adopted: Adoptions, elements: Ints) -> Ints:
    """Bytes that came for each adoption of a fragment with so many elements."""
    return np.where(adopted.bytes > 0, adopted.bytes, elements * ELEMENT_BYTES)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _tokens(ledger: Ledger) -> dict[str, Any]:
    return {
        "processed": ledger.processed,
        "committed": ledger.committed,
        "in_flight": ledger.in_flight,
        "unknown": ledger.unknown,
        "discarded": dict(ledger.discarded),
    }


def _token_fragments(books: Books) -> dict[str, Any]:
    """Tokens counted once per fragment; `by_fragment`: committed by each."""
    shares = books.token_fragments
    return {
        "processed": sum(share.processed for share in shares),
        "committed": sum(share.committed for share in shares),
        "in_flight": sum(share.in_flight for share in shares),
        "unknown": sum(share.unknown for share in shares),
        "discarded": {reason: sum(share.discarded[reason] for share in shares) for reason in REASONS},
        "by_fragment": [share.committed for share in shares],
    }


def _wire_bytes(tallies: Tallies, rules: SyncerStarted | None, codec: str | None) -> dict[str, int | None]:
    if rules is None:
        return {"up": None, "down": None}
    sizes = dict(enumerate(rules.sizes))  # a strange log may name other fragments
    form, sent = known(codec), tallies.contributions.items()
    up = None if form is None else sum(form.bytes(sizes.get(fragment, 0)) * count for fragment, count in sent)
    up = None if up is None else up + tallies.sent_otherwise
    down = sum(sizes.get(fragment, 0) * count for fragment, count in tallies.adoptions.items())
    return {
        "up": up,
        "down": tallies.downloaded + down * ELEMENT_BYTES,
    }

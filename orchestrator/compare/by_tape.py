"""Trains a run in the harness by a simulated tape, so that faults strike it: who dies when is decided by a seed.

The simulation decides who steps when, who is read, and what is adopted; real training then follows it (paper, section
6). The folder is an ordinary run's, whose log has the held-out losses of the real training.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.accounting.verdicts import Verdict
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import Evaluated
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.tasks import build_task, host_only
from orchestrator.replay.process import Job, play_apart
from orchestrator.replay.tape import by_writer, tape_of
from orchestrator.simulation.tape_log import write
from orchestrator.store.run_store import RunStore
from outer.protocol.facts import Committed

TAPE_FILE = "tape.json"  # written last: the run is finished
Simulated = tuple[list[Event], list[Verdict]]
Simulate = Callable[[Recipe], Simulated]
OBSERVER = "orchestrator"  # who says what the held-out loss is


def train(recipe: Recipe, store: RunStore, simulate: Simulate, on_news: Callable[[Mapping[str, Any]], None]) -> None:
    """Simulate `recipe` and train by it. Interrupted, it begins anew. Raises TapeError, RuntimeError, OSError."""
    events, verdicts = simulate(recipe)
    tape = tape_of(by_writer(events))
    rules, every = tape.rules, recipe.eval.every
    commits = max(1, every * len(rules.fragments) // rules.round_steps)
    last = {"progress": 0.0, "eval_loss": None}

    def tell(news: Mapping[str, Any]) -> None:
        if "evaluated" in news:
            last["eval_loss"] = news["evaluated"][1]
        elif "of" in news:
            last["progress"] = news["commits"] / max(1, news["of"])
        on_news(last)

    outcome = play_apart(Job(tape, recipe, None, commits, None), tell)
    task = build_task(recipe)
    with host_only():
        from learners.training.task import loss_unit
    tokens, unit = task.tokens(recipe.eval.sequences), loss_unit(task)
    losses = [Evaluated(step, loss, tokens, unit) for step, loss in outcome["evaluations"]]
    shutil.rmtree(store.root, ignore_errors=True)
    write(recipe, told(events, losses), verdicts, store)
    store.write_json(TAPE_FILE, {key: outcome[key] for key in ("digest", "evaluations", "seconds", "steps")})


def told(events: Sequence[Event], losses: Sequence[Evaluated]) -> list[Event]:
    """The log with each loss behind its commit, said by the one who says it in other runs."""
    waiting = {loss.syncer_step: loss for loss in losses}
    found: list[Event] = []
    incarnation, number = 1, 0
    for event in events:
        if event.writer == OBSERVER:
            incarnation = event.incarnation
            event, number = replace(event, sequence=number), number + 1
        found.append(event)
        if isinstance(event.fact, Committed) and (loss := waiting.pop(event.fact.syncer_step, None)):
            found.append(Event(OBSERVER, incarnation, number, event.at, loss))
            number += 1
    return found

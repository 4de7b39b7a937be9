"""The log of a run that never was, as a run's folder: a tape that real training follows (`diloco replay`).

Whatever simulates the run says so in RunStarted. Nothing was computed, and the log says that, too: digests are empty,
losses not a number.
"""

from __future__ import annotations

import math
import os
import shutil
import uuid
from dataclasses import replace
from typing import Any

from learners.protocol.facts import Donated, StateReceived, StepFinished
from orchestrator.accounting.summary import summarise
from orchestrator.accounting.verdicts import Verdict
from orchestrator.eventlog.events import Event
from orchestrator.eventlog.facts import RunFinished
from orchestrator.eventlog.log_writer import write_log
from orchestrator.eventlog.reader import SEAL_FILE, blocks, seal
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.toml_text import dump
from orchestrator.store.readers import RECIPE_FILE
from orchestrator.store.run_store import RunStore
from outer.journal.object_store import Folder
from outer.protocol.facts import Committed


def bare(fact: Any) -> Any:
    """The fact without numbers that nobody computed."""
    match fact:
        case StepFinished():
            return replace(fact, loss=math.nan)
        case Committed():
            participants = tuple(replace(one, digest="") for one in fact.participants)
            return replace(fact, digest="", norm=0.0, participants=participants)
        case StateReceived() | Donated():
            return replace(fact, digest="", bytes=0)
        case RunFinished():
            return replace(fact, digest="")
    return fact


def write(recipe: Recipe, events: list[Event], verdicts: list[Verdict], store: RunStore) -> dict[str, Any]:
    """A run's folder of it, there as a whole or not at all; returns the summary. `events`: in order. Raises OSError."""
    draft = RunStore(store.root.with_name(f".{store.root.name}.{uuid.uuid4().hex}"))
    try:
        draft.create()
        ends = write_log(Folder(draft.root), events)
        summary = summarise(blocks(draft.root), recipe, verdicts)
        draft.write_json(SEAL_FILE, seal(ends))
        draft.write_json("summary.json", summary)
        draft.write_text(RECIPE_FILE, dump(recipe))
        os.replace(draft.root, store.root)
    finally:
        shutil.rmtree(draft.root, ignore_errors=True)
    return summary

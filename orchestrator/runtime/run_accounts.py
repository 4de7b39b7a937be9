"""Sums up a run whose log is complete: the analysis reads the log in a process of its own, never in the orchestrator's.

It writes summary.json and report.html. `python -m orchestrator.analysis RUN_DIR` repeats it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

from orchestrator.recipe.config import Recipe
from orchestrator.store.readers import object_of
from orchestrator.store.run_store import RunStore
from outer.journal.object_store import Objects

ANALYSIS = "orchestrator.analysis"
SUMMARY_FILE = "summary.json"
DEADLINE_S = 3600.0  # a log of 10^7 facts takes a minute
STORE_AWAY = 75  # the analysis's exit status when it could not read or write: to be tried again
SHOWN = 2000  # characters of what it says, at most


class NotAnalysed(Exception):
    """The log could not be summed up; the message says why, and what to do. The run itself is complete."""


def finish(recipe: Recipe, store: RunStore, objects: Objects) -> dict[str, Any]:
    """Write summary and report; returns the summary. Raises OSError, and then it may be called again; NotAnalysed."""
    if find_spec(f"{ANALYSIS}.__main__") is None:
        return _folded(recipe, store, objects)
    command = [sys.executable, "-m", ANALYSIS, str(store.root)]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path))
    }  # Ray gives its workers paths of their own
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise NotAnalysed(_words(command, f"took longer than {DEADLINE_S:g} s")) from error
    said = done.stderr.strip()[-SHOWN:]
    if done.returncode == STORE_AWAY:
        raise OSError(said)
    if done.returncode:
        raise NotAnalysed(_words(command, f"ended with exit status {done.returncode}: {said or 'it said nothing'}"))
    summary = object_of(store, SUMMARY_FILE)
    if summary is None:
        raise NotAnalysed(_words(command, f"left no {SUMMARY_FILE} that can be read"))
    return dict(summary)


def _words(command: list[str], what: str) -> str:
    return f"the run is over and its log complete, but the analysis {what}; repeat it: {' '.join(command)}"


def _folded(recipe: Recipe, store: RunStore, objects: Objects) -> dict[str, Any]:
    """The same by the folds, in this process, where that module is not there."""
    from orchestrator.accounting.accounts import Accounts
    from orchestrator.accounting.summary import summarise
    from orchestrator.checkers.suite import Suite
    from orchestrator.eventlog.reader import LogReader
    from orchestrator.report.fold import ReportFold
    from orchestrator.report.render import Contents
    from orchestrator.report.write import attempt

    accounts = Accounts()
    suite, report = Suite(accounts), ReportFold(accounts)
    for block in LogReader(store.root, objects).rest():
        for fold in (accounts, suite, report):
            fold.take(block)
    verdicts = suite.verdicts()
    summary = summarise(accounts, recipe, verdicts)
    store.write_json(SUMMARY_FILE, summary)
    attempt(store, Contents(report, summary, verdicts))
    return summary

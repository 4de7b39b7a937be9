"""Sums up a run whose log is complete: the analysis reads the log in a process of its own, never in the orchestrator's.

It writes summary.json and report.html. `python -m orchestrator.report RUN_DIR` repeats it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from orchestrator.report.write import STORE_AWAY, SUMMARY
from orchestrator.store.readers import object_of
from orchestrator.store.run_store import RunStore

ANALYSIS = "orchestrator.report"  # run as a module
DEADLINE_S = 3600.0  # a log of 10^7 facts takes a minute and a half
SHOWN = 2000  # characters of what it says, at most


class NotAnalysed(Exception):
    """The log could not be summed up; the message says why, and what to do. The run itself is complete."""


def finish(store: RunStore) -> dict[str, Any]:
    """Write summary and report; returns the summary. Raises OSError, and then it may be called again; NotAnalysed."""
    command = [sys.executable, "-m", ANALYSIS, str(store.root)]
    paths = os.pathsep.join(filter(None, sys.path))  # Ray gives its workers some of their own
    env = os.environ | {"PYTHONPATH": paths}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise NotAnalysed(_words(command, f"took longer than {DEADLINE_S:g} s")) from error
    said = done.stderr.strip()[-SHOWN:]
    if done.returncode == STORE_AWAY:
        raise OSError(said)
    if done.returncode:
        raise NotAnalysed(_words(command, f"ended with exit status {done.returncode}: {said or 'it said nothing'}"))
    summary = object_of(store, SUMMARY)
    if summary is None:
        raise NotAnalysed(_words(command, f"left no {SUMMARY} that can be read"))
    return dict(summary)


def _words(command: list[str], what: str) -> str:
    return f"the run is over and its log complete, but the analysis {what}; repeat it: {' '.join(command)}"

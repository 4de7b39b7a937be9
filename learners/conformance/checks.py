"""Runs the checks of `diloco check-task`: whether a task fulfils the interface in learners/training/task.py.

Each check runs the task's own code; an exception becomes that check's finding, with a fix. fingerprint.py compares the
task with a new process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from learners.conformance import data_checks, training_checks
from learners.conformance.check import Check, CheckFailed, Finding, Subject
from learners.training.task import Task

CHECKS = (*data_checks.CHECKS, *training_checks.CHECKS)


def run_checks(subject: Subject, names: Collection[str] = ()) -> Iterator[Finding]:
    """Run all checks, or those named, in order. A check that needs a failed one is skipped."""
    failed: set[str] = set()
    task = subject.build()
    for check in CHECKS:
        if names and check.name not in names:
            continue
        if missing := [need for need in check.needs if need in failed]:
            finding = Finding(check.name, "skip", f"needs {', '.join(missing)}")
        else:
            finding = _run_check(check, subject, task)
        if finding.status in ("fail", "skip"):
            failed.add(check.name)
        yield finding


def _run_check(check: Check, subject: Subject, task: Task) -> Finding:
    try:
        return Finding(check.name, "pass", check.run(subject, task))
    except CheckFailed as failure:
        status, message, fix = failure.finding
        return Finding(check.name, status, message, fix)
    except (Exception, SystemExit) as error:  # raised by the task's own code
        text = " ".join(str(error).split())
        return Finding(check.name, "fail", f"raises {type(error).__name__}: {text[:400]}", check.fix)

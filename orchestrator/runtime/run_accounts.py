"""Follows a run's log in a thread, and keeps accounts, checks, report and metrics up to date: one process folds.

An orchestrator that takes over, or resumes a run, reads the log from its beginning, beside the run. At the end only the
log's last seconds are left to read.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.summary import summarise
from orchestrator.checkers.suite import Suite
from orchestrator.eventlog.block import Block
from orchestrator.eventlog.reader import LogReader
from orchestrator.recipe.config import Recipe
from orchestrator.report.fold import ReportFold
from orchestrator.report.write import attempt
from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.catalog import Buckets
from orchestrator.telemetry.fold import MetricsFold
from orchestrator.telemetry.run_samples import publish
from outer.background import tell, thread
from outer.journal.object_store import Objects

LOOK_S = 2.0  # between two looks at the log
HOLD_S = 5.0  # younger facts wait: others may still have to go before them


class Folds:
    """Everything that is computed from a run's log."""

    def __init__(self, codec: str) -> None:
        self.accounts = Accounts()
        self.suite = Suite(self.accounts)
        self.report = ReportFold(self.accounts)
        self.metrics = MetricsFold(codec, self.accounts)

    def take(self, block: Block) -> None:
        for fold in (self.accounts, self.suite, self.report, self.metrics):
            fold.take(block)


class RunAccounts:
    """Follows the run in `store`, whose log is in `objects`. Only `finish` raises."""

    def __init__(self, recipe: Recipe, store: RunStore, objects: Objects) -> None:
        self._recipe, self._store, self._objects = recipe, store, objects
        self.tokens: tuple[int, int] | None = None  # (processed, committed), as of the newest look
        self._ended = threading.Event()
        self._folds: Folds | None = None  # None: they have to be computed anew
        self._reader: LogReader | None = None
        self._thread = thread("accounts", self._follow, tell)

    def finish(self) -> dict[str, Any]:
        """The log is complete: read the rest of it, write the summary and the report. Returns the summary.

        Raises OSError; then call it again.
        """
        self._ended.set()
        self._thread.join()
        try:
            return self._finish()
        except OSError:
            self._folds = None
            raise

    def _finish(self) -> dict[str, Any]:
        if self._folds is None or self._reader is None:  # it could not be followed: read it from the beginning
            self._begin()
        folds, reader = self._folds, self._reader
        assert folds is not None and reader is not None
        for block in reader.rest():
            folds.take(block)
        verdicts = folds.suite.verdicts()
        summary = summarise(folds.accounts, self._recipe, verdicts)
        self._store.write_json("summary.json", summary)
        self._report(folds, summary, verdicts)
        return summary

    def _report(self, folds: Folds, summary: dict[str, Any], verdicts: list[Any]) -> None:
        from orchestrator.report.render import Contents  # matplotlib takes a second to import

        folds.metrics.finish(folds.accounts.results().books)
        self._publish()
        attempt(self._store, Contents(folds.report, summary, verdicts))

    # -------------------------------------------------------------- in the thread

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                self._look()
            except OSError:
                continue  # the next look goes on
            except Exception:
                self._folds = None  # the run goes on without; `finish` reads the log again
                raise

    def _begin(self) -> None:
        self._folds = Folds(self._recipe.sync.codec)
        self._reader = LogReader(self._store.root, self._objects, HOLD_S)

    def _look(self) -> None:
        if self._folds is None or self._reader is None:
            self._begin()
        assert self._folds is not None and self._reader is not None
        for block in self._reader.poll():
            began = time.monotonic()
            self._folds.take(block)
            if self._ended.wait(time.monotonic() - began):  # of a long log: half of the time is the orchestrator's
                return
        self._publish()

    def _publish(self) -> None:
        assert self._folds is not None and self._reader is not None
        metrics = self._folds.metrics
        counters = (each.value for each in metrics.samples() if each.name == "diloco_tokens_processed_total")
        processed = sum(int(value) for value in counters if not isinstance(value, Buckets))
        self.tokens = processed, self._folds.accounts.books.committed
        publish(self._store, metrics, self._reader)

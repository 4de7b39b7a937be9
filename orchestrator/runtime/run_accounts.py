"""Follows a run's log in a thread, and keeps accounts, checks, report and metrics up to date: one process folds.

The state is saved beside the log now and then, so that another orchestrator, or the resumed run, goes on from there.
At the end only the log's last seconds are left to read.
"""

from __future__ import annotations

import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from orchestrator.accounting.accounts import Accounts
from orchestrator.accounting.summary import summarise
from orchestrator.checkers.suite import Suite
from orchestrator.eventlog.block import Block
from orchestrator.eventlog.chain_reader import ChainPlace
from orchestrator.eventlog.reader import GuestsPlace, LogReader, Place, store_of
from orchestrator.recipe.config import Recipe
from orchestrator.report.fold import ReportFold
from orchestrator.report.write import RECIPE, attempt
from orchestrator.store.run_store import RunStore
from orchestrator.telemetry.catalog import Buckets
from orchestrator.telemetry.fold import MetricsFold
from orchestrator.telemetry.published import package_version, publish
from outer.journal.object_store import Objects
from outer.journal.saving import dump, load, saved
from outer.protocol.manifest import code_digest

if TYPE_CHECKING:
    from orchestrator.report.render import Contents

STATE_FILE = "accounts.state"
LOOK_S = 2.0  # between two looks at the log
HOLD_S = 5.0  # younger facts wait: others may still have to go before them
SAVE_S = 60.0

for _kind in (ChainPlace, GuestsPlace, Place):
    saved(_kind)


@saved
class Folds:
    """Everything that is computed from a run's log. `code`: the digest of the sources that compute it."""

    def __init__(self, code: str, codec: str) -> None:
        self.code = code
        self.place: Place | None = None  # how far the log was read when this was saved
        self.accounts = Accounts()
        self.suite = Suite(self.accounts)
        self.report = ReportFold(self.accounts)
        self.metrics = MetricsFold(codec, package_version(), self.accounts)

    def take(self, block: Block) -> None:
        for fold in (self.accounts, self.suite, self.report, self.metrics):
            fold.take(block)


def kept(store: RunStore, objects: Objects, code: str, hold_s: float = 0.0) -> tuple[Folds, LogReader] | None:
    """The folds that a process with these sources has saved, and a reader of what is behind them. Raises OSError.

    None: there are none, or they are not of this log as it is now.
    """
    try:
        folds = load(store.path(STATE_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(folds, Folds) or folds.code != code:
        return None
    try:
        return folds, LogReader(store.root, objects, hold_s, place=folds.place)
    except ValueError:
        return None


def contents_now(store: RunStore) -> Contents | None:
    """What the report shows of the log as it is now, without reading what the saved folds have of it.

    None: there are none. Raises ValueError for a damaged log, OSError.
    """
    from orchestrator.report.render import Contents, plain  # matplotlib takes a second to import

    if (found := kept(store, store_of(store.root), code_digest())) is None:
        return None
    folds, reader = found
    for block in reader.rest():
        folds.take(block)
    if reader.findings.unreadable:
        raise ValueError(reader.findings.unreadable[0])
    verdicts = folds.suite.verdicts()
    recipe = plain(store.read_text(RECIPE) or "")
    return Contents(folds.report, summarise(folds.accounts, recipe, verdicts), verdicts)


class RunAccounts:
    """Of the run in `store`, whose log is in `objects`. Only `finish` raises."""

    def __init__(self, recipe: Recipe, store: RunStore, objects: Objects, code: str) -> None:
        self._recipe, self._store, self._objects, self._code = recipe, store, objects, code
        self.tokens: tuple[int, int] | None = None  # (processed, committed), as of the newest look
        self.trouble = ""  # why the log is not followed at present
        self._ended = threading.Event()
        self._folds: Folds | None = None  # None: they have to be computed anew
        self._reader: LogReader | None = None
        self._thread = threading.Thread(target=self._follow, name="accounts", daemon=True)
        self._thread.start()

    def finish(self) -> dict[str, Any]:
        """The log is complete: read the rest of it, write the summary and the report. Returns the summary."""
        self._ended.set()
        self._thread.join()
        if self._folds is None or self._reader is None:  # it could not be followed: read it from the beginning
            self._begin()
        folds, reader = self._folds, self._reader
        assert folds is not None and reader is not None
        for block in reader.rest():
            folds.take(block)
        verdicts = folds.suite.verdicts()
        summary = summarise(folds.accounts, self._recipe, verdicts)
        self._store.write_json("summary.json", summary)
        self._save()
        self._report(folds, summary, verdicts)
        return summary

    def _report(self, folds: Folds, summary: dict[str, Any], verdicts: list[Any]) -> None:
        from orchestrator.report.render import Contents  # matplotlib takes a second to import

        folds.metrics.finish(folds.accounts.results().books)
        self._publish()
        attempt(self._store, Contents(folds.report, summary, verdicts))

    # -------------------------------------------------------------- in the thread

    def _follow(self) -> None:
        saved_at = time.monotonic()
        while not self._ended.wait(LOOK_S):
            try:
                self._look()
                self.trouble = ""
                if time.monotonic() - saved_at >= SAVE_S:
                    saved_at = time.monotonic()
                    self._save()
            except OSError as error:
                self.trouble = str(error)  # the next look goes on
            except Exception:  # the run goes on without; `finish` reads the log again
                self.trouble, self._folds = traceback.format_exc(), None
                return

    def _begin(self) -> None:
        """From the saved state, if there is one that these sources have written."""
        fresh = Folds(self._code, self._recipe.sync.codec), LogReader(self._store.root, self._objects, HOLD_S)
        self._folds, self._reader = kept(self._store, self._objects, self._code, HOLD_S) or fresh

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

    def _save(self) -> None:
        assert self._folds is not None and self._reader is not None
        self._folds.place = self._reader.place
        self._store.write_bytes(STATE_FILE, dump(self._folds))

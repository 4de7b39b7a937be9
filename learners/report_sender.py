"""Sends a learner's reports, and the facts that wait, in a thread of its own.

The training loop makes every report and goes on at once. Of several that wait only the newest goes out: it says all
that those before it said. The thread makes no report itself, so a report stays a sign of life of the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from outer.protocol.messages import Report


class ReportSender:
    """`send` sends one report; `begin` is called first in the thread."""

    def __init__(self, send: Callable[[Report], None], begin: Callable[[], None]) -> None:
        self._send, self._begin = send, begin
        self._changed = threading.Condition()
        self._newest: Report | None = None
        self._sending = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def put(self, report: Report) -> None:
        """Have this report sent. Raises what sending an earlier one raised."""
        with self._changed:
            if self._error is not None:
                raise self._error
            self._newest = report
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
                self._thread.start()

    def finish(self, timeout_s: float) -> bool:
        """Wait until the last report is sent. False if it is not within `timeout_s` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._newest is None and not self._sending, timeout_s)

    def _run(self) -> None:
        self._begin()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None)
                report, self._newest, self._sending = self._newest, None, True
            assert report is not None
            try:
                self._send(report)
            except BaseException as error:  # the loop raises it
                self._error = error
            finally:
                with self._changed:
                    self._sending = False
                    self._changed.notify_all()

"""How the process of a command is asked to end, and streams that it was started without."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM: this process was asked to end, and its run with it."""


def terminate(number: int, frame: Any) -> None:
    raise Terminated


def prepare_process() -> None:
    """Let SIGTERM and the end of the terminal interrupt, so that what was begun is cleaned up; open closed streams."""
    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else nohup's
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))

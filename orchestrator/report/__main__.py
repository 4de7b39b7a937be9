"""`python -m orchestrator.report RUN_DIR`: sum up a run whose log is complete, as summary.json and report.html."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from orchestrator.eventlog.reader import LogReader
from orchestrator.report.render import contents_of
from orchestrator.report.write import RECIPE, STORE_AWAY, SUMMARY, write
from orchestrator.store.run_store import RunStore


def main(run_dir: str) -> int:
    store = RunStore(Path(run_dir))
    try:
        contents = contents_of(LogReader(store.root).rest(), store.read_text(RECIPE) or "")
        store.write_json(SUMMARY, contents.summary)
    except OSError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return STORE_AWAY
    with contextlib.suppress(Exception):  # the run does not fail by it: `diloco report` tells why it is missing
        write(store, contents=contents)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""Run as a process: an epoch that commits as fast as it can, and says each commit once it is durable.

python -m tests.outer.journal.zombie FOLDER EPOCH
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from outer.journal.groups import Logged
from outer.journal.journal import StaleEpoch, StoredJournal
from outer.journal.object_store import Folder
from outer.protocol.facts import Committed, Participant
from outer.protocol.recovery import Entry


def main(folder: str, epoch: int) -> None:
    journal = StoredJournal(Folder(Path(folder)), "journal", epoch, 2)
    step = max(journal.open().found.versions)
    for sequence in range(100_000):
        step += 1
        one = Participant("a", 1, step, step - 1, 1, 8, 1.0, "d", 8 * step)
        record = Committed(step, step % 2, epoch, 0, (one,), 1, "d", 1.0, 8 * step, 0.1, 0.2, 0.3, "")
        try:
            entry, value = Entry(epoch, sequence, record), [np.full(1000, step, np.float32)]
            journal.write([Logged(entry, sequence, 1.0, value)])
            print("committed", step, flush=True)
            while journal.needs_compaction:
                journal.remove(journal.compact())
        except StaleEpoch as error:
            print("stale", error, flush=True)
            return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

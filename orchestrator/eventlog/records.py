"""The journal's records as the log has them: what a syncer starts from when its journal is damaged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from operator import itemgetter
from typing import get_args

from orchestrator.eventlog.block import Block
from outer.journal.groups import SYNCER
from outer.protocol.facts import Record

KINDS = get_args(Record)
REPEATED = 1024  # newest records that the first ones of an epoch are compared with; format 1 repeated the last few


def records(blocks: Iterable[Block]) -> Iterator[tuple[int, Record]]:
    """(epoch, record), in the syncer's order, each once."""
    newest: dict[Record, None] = {}
    for block in blocks:
        others = (each for each in block.others if each.event.writer == SYNCER and isinstance(each.event.fact, KINDS))
        for _, event in merge(others, block.committed(), key=itemgetter(0)):
            if event.fact in newest:
                continue
            newest[event.fact] = None
            if len(newest) > REPEATED:
                del newest[next(iter(newest))]
            yield event.incarnation, event.fact

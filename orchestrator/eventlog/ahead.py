"""Decodes a log's segments in other processes, a few ahead of the one that is read."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from types import TracebackType

from orchestrator.eventlog.chain_reader import Decoded, decoded
from orchestrator.eventlog.reader import SYNCER, LogReader, store_of


class Ahead:
    """A context in which a reader gets the syncer's segments from `jobs` other processes; none if `jobs` is 0."""

    def __init__(self, reader: LogReader, run_dir: Path, jobs: int) -> None:
        self._chain, self._run_dir, self._jobs = reader.syncer, run_dir, jobs
        self._pool: ProcessPoolExecutor | None = None
        self._coming: dict[int, Future[Decoded | None]] = {}

    def __enter__(self) -> None:
        if self._jobs:
            self._pool = ProcessPoolExecutor(self._jobs, multiprocessing.get_context("spawn"))
            self._chain.segment = self._segment

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _segment(self, number: int) -> Decoded | None:
        """As ChainReader.segment."""
        assert self._pool is not None
        for next_ in range(number, number + self._jobs + 1):
            if next_ not in self._coming:
                self._coming[next_] = self._pool.submit(_in_process, self._run_dir, next_)
        for before in [each for each in self._coming if each < number]:
            del self._coming[before]
        return self._coming.pop(number).result()


def _in_process(run_dir: Path, number: int) -> Decoded | None:
    return decoded(store_of(run_dir), SYNCER, number)

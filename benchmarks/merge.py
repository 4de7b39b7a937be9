"""How near is a merge to the limit of memory? One fragment, merged and stepped, against copying.

    python benchmarks/merge.py [--sizes-mb 4,32,256] [--learners 4,16,64] [--rules rda avg] [--codecs fp32 bf16]
                               [--threads 1] [--repeats 5] [--json]

`limit`: the seconds that copying takes for as many bytes as a merge must move at least: every payload and the
syncer's value, read once (twice for RDA, which needs the lengths before it can add), the velocity read, the new value
and the new velocity written. Copying is measured between arrays of 256 MB, far larger than the caches, before each
merge. `fraction`: that limit over the seconds of a merge with its outer step; `of_processor_time`: the same where both
are the process's own time, if something else runs. `seconds` and both of these are medians. Before each
repeat 64 MB of something else are read, so that no payload is in a cache. `extra_mb`: what the process grows by at
most, beyond the new value and velocity. `same_bits`: whether one and two threads agree.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from outer import heap  # noqa: E402
from outer.config import OuterConfig  # noqa: E402
from outer.numeric import codec as codecs  # noqa: E402
from outer.numeric.formats import NAMES, named  # noqa: E402
from outer.numeric.parameters import GlobalParameters  # noqa: E402
from outer.protocol.fragments import Fragment, Tensor  # noqa: E402

MB = 2**20
COPIED_MB = 256
BETWEEN = 320  # bytes between two return values of Ray 2.60
INPUTS_MAX = 0.6  # of the memory that is available


Times = tuple[float, float]  # seconds by the clock, and of the processor


class Copying:
    """Copies between two arrays, by one thread."""

    def __init__(self) -> None:
        self._source = np.ones(COPIED_MB * MB // 4, np.float32)
        self._target = np.zeros_like(self._source)
        self._flush = np.ones(64 * MB // 8)

    def bytes_s(self) -> Times:
        """Bytes read and written a second."""
        clock, processor = self.timed(lambda: np.copyto(self._target, self._source))
        return 2 * self._source.nbytes / clock, 2 * self._source.nbytes / processor

    def timed(self, work: Callable[[], object]) -> Times:
        self._flush.sum()
        begun = time.perf_counter(), time.process_time()
        work()
        return time.perf_counter() - begun[0], time.process_time() - begun[1]


def words(learners: int, rule: str, codec: str) -> float:
    """float32 words that one element costs at least."""
    form = named(codec)
    reads = learners * form.bits / 32 + (1 if form.absolute else 0)
    passes = 2 if rule == "rda" else 1
    return reads * passes + (0 if form.absolute else 1) + 3


def grown_mb(work: Callable[[], object]) -> float:
    """By how much the process's memory grows at most while this runs, sampled every millisecond."""
    process, over = psutil.Process(), threading.Event()
    before = peak = process.memory_info().rss

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.001):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    over.set()
    watcher.join()
    return (peak - before) / MB


def as_in_store(payloads: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """The same payloads as far from each other as Ray's object store puts return values."""
    room = np.empty(sum(each.nbytes + BETWEEN for each in payloads) + BETWEEN, np.uint8)
    at, found = -room.ctypes.data % BETWEEN, []
    for each in payloads:
        place = room[at : at + each.nbytes].view(each.dtype)
        place[:] = each
        found.append(place)
        at += each.nbytes + BETWEEN
    return found


def measure(
    copying: Copying, size_mb: int, learners: int, rule: str, codec: str, threads: int, repeats: int
) -> dict[str, Any]:
    elements, random = size_mb * MB // 4, np.random.default_rng(0)
    fragment = Fragment(0, (Tensor("w", (1024, elements // 1024), "float32"),))
    base = random.standard_normal(elements, np.float32)
    payloads = []
    for _ in range(learners):
        theta = random.standard_normal(elements, np.float32)
        theta *= np.float32(1e-2)
        theta += base
        payloads.append(codecs.encode(codec, theta, base))
    payloads = as_in_store(payloads)
    weights = [1.0 / learners] * learners

    def held(threads: int) -> GlobalParameters:
        return GlobalParameters([fragment], [base], OuterConfig(), codec, {"w": rule}, threads)

    one = held(threads)
    one.warm_up()
    one.warm_up_rest()
    proposal = one.propose(0, payloads, weights)
    one.install(proposal, 1)  # so that the value and the velocity are such as a run has
    needed = words(learners, rule, codec) * size_mb * MB
    rows = []
    for _ in range(repeats):
        copied = copying.bytes_s()
        taken = copying.timed(lambda: one.propose(0, payloads, weights))
        rows.append((*taken, copied[0], needed / copied[0] / taken[0], needed / copied[1] / taken[1]))
    seconds, _, speed, fraction, of_processor_time = map(statistics.median, zip(*rows, strict=True))
    extra = grown_mb(lambda: one.propose(0, payloads, weights)) - 2 * size_mb
    return {
        "size_mb": size_mb,
        "learners": learners,
        "rule": rule,
        "codec": codec,
        "threads": threads,
        "seconds": seconds,
        "copy_gb_s": speed / 1e9,
        "fraction": fraction,
        "of_processor_time": of_processor_time,
        "words": words(learners, rule, codec),
        "extra_mb": max(0.0, extra),
        "same_bits": held(2).propose(0, payloads, weights).digest == proposal.digest,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sizes-mb", type=_numbers, default=[4, 32, 256])
    arguments.add_argument("--learners", type=_numbers, default=[4, 16, 64])
    arguments.add_argument("--rules", nargs="+", choices=("rda", "avg"), default=["rda", "avg"])
    arguments.add_argument("--codecs", nargs="+", choices=NAMES, default=["fp32", "bf16"])
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    heap.keep_small()  # as in the syncer
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-max(1, options.threads) :])
    rows, copying = [], Copying()
    for size_mb in options.sizes_mb:
        for learners in options.learners:
            for codec in options.codecs:
                if size_mb * learners * MB > INPUTS_MAX * psutil.virtual_memory().available:
                    print(f"{size_mb} MB x {learners}: more than memory holds; left out", file=sys.stderr)
                    continue
                for rule in options.rules:
                    row = measure(copying, size_mb, learners, rule, codec, options.threads, options.repeats)
                    rows.append(row)
                    if not options.json:
                        print(
                            f"{size_mb:4} MB x {learners:2}, {codec}, {rule}: {row['seconds']:.4f} s, "
                            f"{row['words']:.1f} words at {row['copy_gb_s']:.1f} GB/s: {row['fraction']:.2f} of the "
                            f"limit, {row['of_processor_time']:.2f} by processor time; "
                            f"{row['extra_mb']:.0f} MB more; same bits: {row['same_bits']}",
                            flush=True,
                        )
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    main()

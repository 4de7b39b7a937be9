"""What do batches of token shards cost against bytes in memory, and how fast is text tokenized?

    python benchmarks/data.py [--repeats 5] [--megabytes 64] [--json]

`tokens_s`: tokens a second of one core for batches of 8 samples, of the demonstration's length and of a real model's,
from Python's own sources: `bytes` in memory, `tokens` from shards of bytes, whose blocks are checked when first read
(`first_tokens_s`: the first 200 batches of a process) and then only copied (`tokens_s`). `prepare`: MB of text in a
second of one worker, start of the process included, for bytes and for a trained byte-level BPE of 4,096 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from learners.config import DataConfig  # noqa: E402
from learners.training.data.byte_corpus import ByteCorpus  # noqa: E402
from learners.training.data.corpus import Corpus  # noqa: E402
from learners.training.data.token_corpus import TokenCorpus  # noqa: E402
from orchestrator.prepare.preparation import PrepareOptions, prepare  # noqa: E402

LENGTHS, SAMPLES, BATCHES, BPE = (96, 2048), 8, 200, 4096


def speed(corpus: Corpus, length: int, repeats: int) -> dict[str, float]:
    def tokens_s(first: int) -> float:
        begun = time.thread_time()
        for batch in range(first, first + BATCHES):
            corpus.batch(batch * SAMPLES, SAMPLES)
        return BATCHES * SAMPLES * length / (time.thread_time() - begun)

    first = tokens_s(0)
    return {"first_tokens_s": first, "tokens_s": statistics.median(tokens_s(0) for _ in range(repeats))}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        text, rows = Path(folder, "text"), []
        text.mkdir()
        whole = ByteCorpus(DataConfig(), 0).train
        size = options.megabytes * 10**6
        for index, begin in enumerate(range(0, size, 2**18)):  # again and again where the sources are fewer
            at = begin % max(1, len(whole) - 2**18)
            part = whole[at : at + 2**18].tobytes().decode(errors="replace")
            (text / f"{index:05}.txt").write_text(part)
        rates = {}
        prepare(PrepareOptions((str(text / "0000?.txt"),), Path(folder, "trained"), train_bpe=BPE), lambda *news: None)
        for name, file in (("bytes", None), ("bpe", Path(folder, "trained", "tokenizer.json"))):
            made = prepare(PrepareOptions((str(text),), Path(folder, name), tokenizer=file), lambda *news: None)
            rates[name] = made["mb_s"]
        for length in LENGTHS:
            for kind, path in (("bytes", text), ("tokens", Path(folder, "bytes"))):
                data = DataConfig(kind=kind, path=str(path), sequence_length=length)
                corpus = TokenCorpus(data, 0) if kind == "tokens" else ByteCorpus(data, 0)
                rows.append({"kind": kind, "length": length} | speed(corpus, length, options.repeats))
    return {"megabytes": options.megabytes, "prepare_mb_s": rates, "batches": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measured(options)
    if options.json:
        print(json.dumps(found))
        return
    for name, rate in found["prepare_mb_s"].items():
        print(f"prepare, {name:5}: {rate:6.1f} MB/s of a worker")
    for row in found["batches"]:
        told = f"{row['tokens_s'] / 1e6:7.1f} M tokens/s, first {row['first_tokens_s'] / 1e6:7.1f}"
        print(f"{row['kind']:6} L = {row['length']:4}: {told}")


if __name__ == "__main__":
    main()

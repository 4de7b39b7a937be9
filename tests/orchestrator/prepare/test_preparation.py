"""`diloco data prepare`: the same shards from any number of workers, and nothing is lost."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner

from learners.config import DataConfig
from learners.training.data.token_corpus import TokenCorpus
from orchestrator.cli.app import build
from orchestrator.prepare import preparation, sources
from orchestrator.prepare.preparation import PrepareOptions, prepare
from orchestrator.recipe.problems import InputError

BPE = 512


def quiet(stage: str, done: int, total: int) -> None: ...


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker is this process: to spawn another takes seconds. Tests of processes undo it."""
    monkeypatch.setattr(preparation, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))


def text_files(root: Path, count: int = 12) -> Path:
    random = np.random.default_rng(0)
    root.mkdir()
    for index in range(count):
        words = random.choice(["loss", "step", "merge", "café", "\n", "θ"], size=400)
        (root / f"{index:02}.txt").write_text(" ".join([f"document {index}", *words]))
    return root


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def texts_of(folder: Path, held_out: bool) -> list[bytes]:
    found = TokenCorpus(DataConfig(kind="tokens", path=str(folder), sequence_length=8), 0)
    stream = found.held_out if held_out else found.train
    tokens = stream.read(np.zeros(1, np.int64), stream.tokens)[0]
    ends = np.flatnonzero(tokens == found.manifest.end_of_document)
    assert ends[-1] == len(tokens) - 1
    file = folder / preparation.TOKENIZER
    decode = Tokenizer.from_file(str(file)).decode if file.exists() else lambda part: bytes(part[:-1]).decode()
    return [decode(part.tolist()).encode() for part in np.split(tokens, ends + 1)[:-1]]


def test_every_document_comes_back_once_on_one_side(tmp_path: Path) -> None:
    sources = text_files(tmp_path / "in")
    for train_bpe in (None, BPE):
        out = tmp_path / f"out{train_bpe}"
        made = prepare(PrepareOptions((str(sources),), out, train_bpe=train_bpe, held_out=0.3, part_bytes=5000), quiet)
        assert made["parts"] > 3 and made["unreadable"] == [] and not (out / "parts").exists()
        train, held_out = texts_of(out, False), texts_of(out, True)
        assert held_out and len(train) > len(held_out)
        assert sorted(train + held_out) == sorted(path.read_bytes() for path in sources.iterdir())
        assert made["vocabulary"] == (296 if train_bpe else 256)  # so few words have no more pairs
    (sources / "00a.txt").write_text("another document")
    prepare(PrepareOptions((str(sources),), tmp_path / "more", held_out=0.3), quiet)
    more = set(texts_of(tmp_path / "more", True)) - {b"another document"}
    assert more == set(held_out), "by its content, whatever is beside it"


def test_with_few_documents_the_end_of_the_last_is_held_out(tmp_path: Path) -> None:
    sources = text_files(tmp_path / "in", 3)
    for given, share in ((sources, 0.01), (sources / "00.txt", 0.25)):
        out = tmp_path / f"out-{given.name}"
        prepare(PrepareOptions((str(given),), out, held_out=share), quiet)
        found = TokenCorpus(DataConfig(kind="tokens", path=str(out), sequence_length=8), 0)
        size = sum(path.stat().st_size + 1 for path in (sources.iterdir() if given == sources else [given]))
        assert found.held_out.tokens == round(share * size)
        assert found.train.tokens + found.held_out.tokens == size


def test_jsonl_and_parquet_give_their_field_and_what_is_unreadable_is_named(tmp_path: Path) -> None:
    documents = [f"document {index} " + "of some text " * 20 for index in range(40)]
    lines = [json.dumps({"body": text}) for text in documents[:20]]
    lines[3:3] = ["{broken", json.dumps({"text": "elsewhere"})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n\n")
    table = pyarrow.table({"body": documents[20:], "more": list(range(20))})
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet", row_group_size=7)
    pyarrow.parquet.write_table(table.drop_columns(["body"]), tmp_path / "c.parquet")
    (tmp_path / "d.parquet").write_bytes(b"no parquet")
    (tmp_path / "e.txt").write_bytes(b"\xff\xfe")
    made = prepare(
        PrepareOptions((str(tmp_path),), tmp_path / "out", field="body", held_out=0.2, part_bytes=2000), quiet
    )
    assert sorted(texts_of(tmp_path / "out", False) + texts_of(tmp_path / "out", True)) == sorted(
        text.encode() for text in documents
    )
    said = {one["input"]: one["reason"] for one in made["unreadable"]}
    assert set(said) == {"a.jsonl", "c.parquet", "d.parquet", "e.txt"}
    assert "2 documents without text" in said["a.jsonl"] and "at byte" in said["a.jsonl"]
    assert said["c.parquet"] == "no column 'body'; there are more"


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_text_and_jsonl_are_read_as_they_are_and_what_is_torn_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(sources, "TEXT_BYTES", 3000)
    text = "".join(f"line {index} of θ\n" for index in range(1000))
    lines = [f"document {index}" for index in range(99)]
    (tmp_path / "in").mkdir()
    for name, content in (("a.txt", text), ("b.jsonl", "".join(json.dumps({"body": line}) + "\n" for line in lines))):
        with pyarrow.output_stream(str(tmp_path / "in" / (name + suffix))) as file:
            file.write(content.encode())
    (tmp_path / f"in/torn.md{suffix}").write_bytes((tmp_path / f"in/a.txt{suffix}").read_bytes()[:-20])
    (tmp_path / f"in/image.jpg{suffix}").write_bytes(b"")
    made = prepare(PrepareOptions((str(tmp_path / "in"),), tmp_path / "out", field="body", held_out=0.4), quiet)
    assert made["parts"] == 1 and made["others"] == {suffix: 1}
    [torn] = made["unreadable"]
    assert torn == {"input": f"torn.md{suffix}", "reason": "Truncated compressed stream"}
    found = [part.decode() for side in (False, True) for part in texts_of(tmp_path / "out", side)]
    assert set(lines) < set(found) and len(found) > len(lines) + 3
    assert sorted(line for part in {*found}.difference(lines) for line in part.splitlines()) == sorted(
        text.splitlines()
    )


def test_a_field_that_no_document_has_is_refused_with_those_that_hold_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "some text", "url": "x", "score": 1}\n')
    with pytest.raises(InputError, match="no text in a field 'text'; there is in: body, url"):
        prepare(PrepareOptions((str(tmp_path / "a.jsonl"),), tmp_path / "out"), quiet)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/a.log").touch()
    with pytest.raises(InputError, match=r"name files with text, by a glob such as 'FOLDER/\*\*/\*.log'"):
        prepare(PrepareOptions((str(tmp_path / "logs"),), tmp_path / "out"), quiet)


def test_a_dataset_that_the_library_datasets_saved_gives_its_field(tmp_path: Path) -> None:
    """That writes record batches as a stream; other programs write the file format."""
    documents = [f"document {index} " + "of some text " * 20 for index in range(50)]
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/dataset_info.json").write_text("{}")
    for name, kind, some in (
        ("data-00000-of-00001.arrow", pyarrow.ipc.new_stream, documents[:30]),
        ("other.arrow", pyarrow.ipc.new_file, documents[30:]),
    ):
        table = pyarrow.table({"body": pyarrow.array(some, pyarrow.large_string()), "more": list(range(len(some)))})
        with kind(str(tmp_path / "saved" / name), table.schema) as file:
            file.write_table(table, max_chunksize=7)
    (tmp_path / "saved/torn.arrow").write_bytes(b"no arrow at all")
    asked = PrepareOptions((str(tmp_path / "saved"),), tmp_path / "a", field="body", held_out=0.2, part_bytes=2000)
    made = prepare(asked, quiet)
    assert {one["input"] for one in made["unreadable"]} == {"torn.arrow"} and made["parts"] > 5
    assert sorted(texts_of(tmp_path / "a", False) + texts_of(tmp_path / "a", True)) == sorted(
        text.encode() for text in documents
    )
    with pytest.raises(InputError, match="column 'more' holds int64, not text"):
        prepare(replace(asked, out=tmp_path / "b", field="more"), quiet)


def test_text_as_it_comes_is_prepared_or_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_bytes(
        b"\xef\xbb\xbf" + b"".join(b'{"text": "line %d"}\n' % line for line in range(20)) + b'{"text": "\\ud83d"}\n'
        b'{"text": ' + b"[" * 100_000 + b'}\n{"text": "a\\u0000b"}\n{"text": "last"}\n'
    )
    (tmp_path / "in/b.txt").write_bytes(b"\xef\xbb\xbfmarked")
    (tmp_path / "in/c.txt").write_bytes(b"a\0b")
    rows = pyarrow.array([b"row 0", b"\xff", None, b"row 3"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), tmp_path / "in/d.parquet")
    (tmp_path / "in/e.txt.xz").write_bytes(b"")
    (tmp_path / "in/f.jpg").write_bytes(b"")
    os.symlink("nowhere", tmp_path / "in/g.txt")
    (tmp_path / "in/h.md").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "else").mkdir()
    (tmp_path / "else/i.txt").write_text("behind a link")
    os.symlink(tmp_path / "else", tmp_path / "in/linked")
    os.symlink(tmp_path / "in", tmp_path / "else/back")
    made = prepare(PrepareOptions((str(tmp_path / "in"),), tmp_path / "out", held_out=0.4), quiet)
    tokens = b"".join(path.read_bytes() for path in sorted((tmp_path / "out").glob("*.tokens")))
    wanted = {*(f"line {line}" for line in range(20)), "last", "marked", "row 0", "row 3", "behind a link"}
    assert made["documents"] == len(wanted)
    assert all(text.encode() + b"\0" in tokens for text in wanted) and len(tokens) == sum(map(len, wanted)) + len(
        wanted
    )
    said = {one["input"]: one["reason"] for one in made["unreadable"]}
    assert {name: said[name].split()[0] for name in said} == {
        "a.jsonl": "3", "c.txt": "1", "d.parquet": "1", "e.txt.xz": "is", "g.txt": "is", "h.md": "is",
    }  # fmt: skip
    assert made["others"] == {".jpg": 1}


def test_a_bpe_is_trained_on_short_runs_of_text_without_spaces() -> None:
    for text in ("x" * 10_000, " " * 1000 + "word " * 99, "a b", "", "y" * 256):
        pieces = list(preparation.in_short_runs(text))
        assert "".join(pieces) == text
        assert max(len(run) for piece in pieces for run in (*piece.split(), *re.findall(r"\s+", piece), "")) <= 256


def test_a_long_text_is_cut_at_ends_of_lines_and_loses_nothing(tmp_path: Path) -> None:
    text = "".join(f"line {index} of θ\n" for index in range(2000))
    (tmp_path / "long.txt").write_text(text)
    prepare(PrepareOptions((str(tmp_path / "long.txt"),), tmp_path / "out", held_out=0.4, part_bytes=3001), quiet)
    found = texts_of(tmp_path / "out", False) + texts_of(tmp_path / "out", True)
    assert len(found) > 8 and all(part.endswith(b"\n") for part in found)
    assert sorted(b"".join(found).splitlines()) == sorted(text.encode().splitlines())


def test_workers_in_processes_make_the_same_bits_and_one_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = text_files(tmp_path / "in", 40)
    options = PrepareOptions((str(sources),), tmp_path / "one", train_bpe=BPE, held_out=0.3, part_bytes=3000)
    assert prepare(options, quiet)["parts"] > 3
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "_joined", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(replace(options, out=tmp_path / "none"), quiet)
    killed = tmp_path / "three" / preparation.DRAFT
    killed.mkdir(parents=True)
    (killed / "parts").write_text("of a call that was killed")
    monkeypatch.setattr(preparation, "ProcessPoolExecutor", ProcessPoolExecutor)
    prepare(replace(options, out=tmp_path / "three", workers=3), quiet)
    assert content(tmp_path / "three") == content(tmp_path / "one")
    assert {path.name for path in tmp_path.iterdir()} == {"in", "one", "three"}


def test_folders_and_tokenizers_that_cannot_be_used_are_input_errors(tmp_path: Path) -> None:
    sources = text_files(tmp_path / "in", 3)
    for given, out, field in (
        ({}, tmp_path / "in", "--out"),
        ({"tokenizer": sources / "00.txt"}, tmp_path / "a", "--tokenizer"),
        ({"tokenizer": tmp_path / "none.json"}, tmp_path / "b", "--tokenizer"),
    ):
        with pytest.raises(InputError) as caught:
            prepare(PrepareOptions((str(sources),), out, **given), quiet)  # type: ignore[arg-type]
        assert [problem.field for problem in caught.value.problems] == [field]
    with pytest.raises(InputError, match="no such file"):
        prepare(PrepareOptions((str(tmp_path / "nowhere"),), tmp_path / "c"), quiet)


def test_the_commands_tell_what_they_made_and_what_they_left_out(tmp_path: Path) -> None:
    sources, out = text_files(tmp_path / "in"), tmp_path / "out"
    (sources / "bad.md").write_bytes(b"\xff")
    (sources / "more.log").write_text("not read")
    run = CliRunner()
    result = run.invoke(build(), ["data", "prepare", str(sources), "--out", str(out), "--held-out", "0.3", "--json"])
    assert result.exit_code == 5 and "left out: bad.md" in result.stderr
    assert ".log (1); to read them as text, name them by a glob such as 'FOLDER/**/*.log'" in result.stderr
    record = json.loads(result.stdout)
    assert record["documents"] == 12 and record["unreadable"][0]["input"] == "bad.md" and record["vocabulary"] == 256
    again = run.invoke(build(), ["data", "prepare", str(sources), "--out", str(out), "--held-out", "2"])
    assert again.exit_code == 2 and "--held-out" in again.stderr

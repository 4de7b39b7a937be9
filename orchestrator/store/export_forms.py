"""Forms of exported parameters beside one safetensors file: Hugging Face's layout, and an Orbax checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from learners.config import DataConfig
from learners.training import weights
from learners.training.data import corpus
from learners.training.models import huggingface
from learners.training.models.decoder_config import DecoderConfig
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store.export import Form, Model


def _save_huggingface(model: Model, folder: Path) -> None:
    """config.json and model.safetensors, which transformers loads, and the tokenizer where the data has one.

    Raises InputError for any model but a dense decoder.
    """
    task = model.task
    if task["task"] != huggingface.TASK:
        message = f"has no form for the model of {task['task']}"
        fix = f"only dense models of {huggingface.TASK} have one; leave --format out"
        raise InputError([Problem("--format", "huggingface", message, fix)])
    table = DecoderConfig(**task["model"]).settled(len(model.tensors["embed"]))
    if table["experts"]:
        message = "has no form for a mixture of experts"
        raise InputError([Problem("--format", "huggingface", message, "leave --format out, or give orbax")])
    data = DataConfig(**task["data"])
    fix = "put the run's data there, or leave --format out"
    try:
        tokenizer, end = corpus.tokenizer(data), corpus.end_of_document(data)
    except ValueError as error:
        raise InputError([Problem("--format", "huggingface", f"needs the data's tokenizer: {error}", fix)]) from error
    if tokenizer is not None and not tokenizer.is_file():
        raise InputError([Problem("--format", "huggingface", f"needs {tokenizer}, which is no file", fix)])
    folder.mkdir()
    about = huggingface.config_of(table, data.sequence_length, end)
    (folder / huggingface.CONFIG).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    named = huggingface.theirs(table, model.tensors)
    save_file(
        named, folder / huggingface.WEIGHTS, metadata=model.metadata | {"format": "pt"}
    )  # which transformers asks for
    if tokenizer is not None:
        shutil.copy(tokenizer, folder / "tokenizer.json")
        how = {"tokenizer_class": "PreTrainedTokenizerFast"}  # or transformers adds the usual tokens of Llama
        (folder / "tokenizer_config.json").write_text(json.dumps(how) + "\n", encoding="utf-8")


def _save_orbax(model: Model, folder: Path) -> None:
    """`params`, nested dictionaries by the parts of each path, and `about`, the metadata. Raises InputError."""
    ocp = _orbax()
    tree: dict[str, Any] = {}
    for name, values in model.tensors.items():
        *parents, leaf = name.split("/")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[leaf] = values
    items = ocp.args.Composite(params=ocp.args.PyTreeSave(tree), about=ocp.args.JsonSave(model.metadata))
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as saver:
        saver.save(folder.absolute(), items)


def _read_orbax(folder: Path) -> dict[str, weights.Flat]:
    ocp = _orbax()
    as_arrays = ocp.args.Composite(params=ocp.args.PyTreeRestore())
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
        return dict(_leaves(reader.restore(folder.absolute(), as_arrays).params))


def _leaves(tree: dict[str, Any], above: str = "") -> list[tuple[str, weights.Flat]]:
    found = []
    for name, value in tree.items():
        path = f"{above}{name}"
        found += _leaves(value, f"{path}/") if isinstance(value, dict) else [(path, np.asarray(value, np.float32))]
    return found


def _orbax() -> Any:
    try:
        import orbax.checkpoint
    except ImportError as error:
        fix = 'install the extra: pip install "decoupled-diloco[orbax]"'
        raise InputError([Problem("--format", "orbax", f"needs a package: {error}", fix)]) from error
    return orbax.checkpoint


FORMS = {"huggingface": Form(_save_huggingface, weights.read), "orbax": Form(_save_orbax, _read_orbax)}

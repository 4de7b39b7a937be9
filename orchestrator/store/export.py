"""A run's parameters, its last or a checkpoint's, written with where they come from: by default one safetensors file.

Tensors are float32, named by their path in the parameter tree. Starts no JAX and no Ray.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from learners.config import DataConfig
from learners.training import weights
from learners.training.data import corpus
from learners.training.models import huggingface
from learners.training.models.decoder_config import DecoderConfig
from orchestrator.recipe.config import Recipe
from orchestrator.recipe.problems import InputError, Problem
from orchestrator.store import checkpoints
from orchestrator.store.readers import object_of, recipe_of
from orchestrator.store.run_store import RunStore
from outer.journal import checkpoint_parts
from outer.journal.framing import Damaged
from outer.journal.object_store import Objects
from outer.numeric import codec as codecs
from outer.protocol.fragments import Fragment, Tensor

FORMAT = "decoupled-diloco/1"


@dataclass(frozen=True)
class ExportedModel:
    """Trained parameters, and what is needed to rebuild their task."""

    tensors: dict[str, weights.Flat]
    metadata: dict[str, str]  # as an exported file carries it; nested values as JSON

    @property
    def left_out(self) -> dict[str, str]:
        """The leaves of the model that are not here, as Tensor.described by name."""
        left_out: dict[str, str] = json.loads(self.metadata.get("left_out", "{}"))
        return left_out


NESTED = ("model", "data", "seed")
STARTED_FROM = ("init_from", "init_digest")


def of_run(store: RunStore) -> ExportedModel:
    """A run's final parameters, checked against their manifest. Raises InputError when there are none."""
    try:
        tensors = weights.read(store.root)
    except ValueError as error:
        message, _, fix = str(error).rpartition("; ")
        raise InputError([Problem("RUN", str(store), message, fix)]) from error
    recipe = recipe_of(store)
    manifest = store.read_json("final/manifest.json")
    return ExportedModel(tensors, _about(recipe, manifest, object_of(store, "summary.json") or {}, tensors))


def of_checkpoint(store: RunStore, kept: Objects, snapshot: int) -> ExportedModel:
    """The parameters of a checkpoint; fragments without a commit have their initial values.

    Raises Damaged where it is damaged or lacks the description of its fragments.
    """
    manifest = checkpoints.manifest_of(kept, snapshot)
    seal = next((part.seal for part in manifest.parts if part.part == checkpoint_parts.SYNCER), "")
    header, committed, initial = checkpoint_parts.read_values(kept, snapshot, seal)
    thetas = {fragment: arrays[0] for fragment, (_, arrays) in committed.items()}  # the outer optimizer's state follows
    thetas |= initial
    fragments = tuple(
        Fragment(index, tuple(Tensor(name, tuple(shape), *more) for name, shape, *more in tensors))
        for index, tensors in enumerate(header["tensors"])
    )
    if lacking := [each.index for each in fragments if each.index not in thetas] or not fragments:
        raise Damaged(f"{checkpoint_parts.SYNCER}: it has no values of fragments {lacking}")
    for index, digest in enumerate(header["kept"]["digests"]):
        if digest and codecs.digest(thetas[index]) != digest:
            raise Damaged(f"{checkpoint_parts.SYNCER}: fragment {index} has not the digest of its commit")
    values = [thetas[each.index] for each in fragments]
    tensors = {name: np.array(whole) for name, whole in weights.joined(fragments, values).items()}
    final = {"syncer_step": manifest.syncer_step, "tensors": _described(fragments), "left_out": header["left_out"]}
    final["fragments"] = [codecs.digest(theta) for theta in values]
    about = _about(recipe_of(store), final, {"tokens": {"committed": manifest.tokens_committed}}, tensors)
    return ExportedModel(tensors, about | {"checkpoint": str(snapshot)})


def _save(tensors: weights.Named, path: Path, metadata: dict[str, str]) -> None:
    """Write a safetensors file with the mode of any new file: the library makes it private."""
    save_file(dict(tensors), path, metadata=metadata)
    os.umask(mask := os.umask(0))
    path.chmod(0o666 & ~mask)


def _save_safetensors(model: ExportedModel, path: Path) -> None:
    _save(model.tensors, path, model.metadata)


def _save_huggingface(model: ExportedModel, folder: Path) -> None:
    """config.json and model.safetensors, which transformers loads, and the tokenizer where the data has one.

    Raises InputError for any model but the decoder.
    """
    about = model.metadata
    if about["task"] != huggingface.TASK:
        message = f"has no form for the model of {about['task']}"
        fix = f"only {huggingface.TASK} has one; leave --format out"
        raise InputError([Problem("--format", "huggingface", message, fix)])
    table = DecoderConfig(**json.loads(about["model"])).settled(len(model.tensors["embed"]))
    data = DataConfig(**json.loads(about["data"]))
    fix = "put the run's data there, or leave --format out"
    try:
        tokenizer, end = corpus.tokenizer(data), corpus.end_of_document(data)
    except ValueError as error:
        raise InputError([Problem("--format", "huggingface", f"needs the data's tokenizer: {error}", fix)]) from error
    if tokenizer is not None and not tokenizer.is_file():
        raise InputError([Problem("--format", "huggingface", f"needs {tokenizer}, which is no file", fix)])
    folder.mkdir()
    config = huggingface.config_of(table, data.sequence_length, end)
    (folder / huggingface.CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    named = huggingface.theirs(table, model.tensors)
    _save(named, folder / huggingface.WEIGHTS, model.metadata | {"format": "pt"})  # which transformers asks for
    if tokenizer is not None:
        shutil.copy(tokenizer, folder / "tokenizer.json")
        how = {"tokenizer_class": "PreTrainedTokenizerFast"}  # or transformers adds the usual tokens of Llama
        (folder / "tokenizer_config.json").write_text(json.dumps(how) + "\n", encoding="utf-8")


FORMS = {"safetensors": _save_safetensors, "huggingface": _save_huggingface}


def write(model: ExportedModel, path: Path, name: str = "safetensors") -> None:
    """Write a draft in one of FORMS, read it back, then rename it.

    Raises InputError when the path exists or cannot be written, or the form cannot hold the model; RuntimeError when
    the disk returns other bytes.
    """
    if path.exists():
        raise InputError([Problem("--out", str(path), "exists already", "give another --out; nothing was overwritten")])
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        FORMS[name](model, draft)
        if (found := weights.digest(weights.read(draft))) != model.metadata["digest"]:
            raise RuntimeError(f"{path} was written and reads back with digest {found}: the disk cannot be trusted")
        os.replace(draft, path)
    except (OSError, SafetensorError) as error:
        fix = "give a path in a folder that exists and that you may write to"
        raise InputError([Problem("--out", str(path), f"cannot be written: {error}", fix)]) from error
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        draft.unlink(missing_ok=True)


def _about(
    recipe: Recipe, manifest: Mapping[str, Any], summary: Mapping[str, Any], tensors: weights.Named
) -> dict[str, str]:
    """The file's metadata; the format takes text only."""
    canonical = recipe.canonical()
    about = {
        "format": FORMAT,
        "run": recipe.name,
        "config_hash": recipe.config_hash,
        "syncer_step": str(manifest["syncer_step"]),
        "tokens": str((summary.get("tokens") or {}).get("committed", "unknown")),
        "eval_loss": str(summary.get("eval_loss", "unknown")),
        "digest": weights.digest(tensors),
        "fragments": json.dumps(manifest["fragments"]),
        "dtypes": json.dumps({name: about["dtype"] for name, about in manifest["tensors"].items()}),
        "kinds": json.dumps({name: about["kind"] for name, about in manifest["tensors"].items()}),
        "left_out": json.dumps(manifest["left_out"]),  # leaves of the model that the file has not
        "task": recipe.task,
    }
    return about | {key: json.dumps(canonical.get(key)) for key in (*NESTED, *STARTED_FROM)}


# ------------------------------------------------------------------ the end of a run


def write_final(
    store: RunStore,
    syncer_step: int,
    fragments: Sequence[Fragment],
    thetas: Sequence[NDArray[np.float32]],
    left_out: Mapping[str, str] | None = None,
    unsent: Mapping[str, NDArray[np.float32]] | None = None,
) -> None:
    """Write `final/`: the run's parameters as plain NumPy arrays, no pickle. thetas: float32[n], one per fragment.

    parameters.npz: one float32 array per tensor, under its path in the parameter tree; numpy.load reads it.
    manifest.json, written last: syncer step, each fragment's digest, and per tensor its shape, its dtype in the model,
    its kind, its fragment (of one in pieces, the fragment of each piece) and SHA-256 of its float32 bytes. `left_out`:
    the leaves that are in no fragment, as Tensor.described by name; `unsent`: the initial values of those that can be
    written. The manifest says which are left out nevertheless.
    """
    arrays = weights.joined(fragments, thetas)
    described = _described(fragments)
    for name, values in (unsent or {}).items():
        arrays[name], form = values, (left_out or {})[name]
        described[name] = {"dtype": form.partition("[")[0], "fragment": None, "kind": form.rpartition(" ")[2]}
    for name, about in described.items():
        arrays[name] = np.asarray(arrays[name], order="C")
        about |= {"shape": list(arrays[name].shape), "sha256": weights.sha256(arrays[name])}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # as numpy.savez, which cannot take every name
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, values, allow_pickle=False)
    store.path("final").mkdir(exist_ok=True)
    store.path("final/parameters.npz").write_bytes(buffer.getvalue())
    missing = {name: form for name, form in (left_out or {}).items() if name not in arrays}
    manifest = {"syncer_step": syncer_step, "tensors": described, "left_out": missing}
    manifest["fragments"] = [codecs.digest(theta) for theta in thetas]
    store.write_json("final/manifest.json", manifest)


def _described(fragments: Sequence[Fragment]) -> dict[str, dict[str, Any]]:
    """Each tensor's dtype, kind and fragment; of one in pieces, their fragments by the pieces' names."""
    described: dict[str, dict[str, Any]] = {}
    for fragment in fragments:
        for tensor in fragment.tensors:
            about = described.setdefault(tensor.path, {"dtype": tensor.dtype, "fragment": None, "kind": tensor.kind})
            if tensor.cut is None:
                about["fragment"] = fragment.index
            else:
                about.setdefault("pieces", {})[tensor.name] = fragment.index
    return described

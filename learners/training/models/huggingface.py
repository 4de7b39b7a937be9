"""The decoder's parameters in the layout of transformers' LlamaForCausalLM and Qwen3ForCausalLM.

A folder holds config.json and safetensors, in one file or in several with an index. Does not import JAX.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TASK = "learners.training.models.causal_lm:CausalLM"  # whose parameters these are
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}  # by model_type

Flat = NDArray[np.float32]

_SAME = {  # [model] key: config.json's
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_width": "head_dim",
    "hidden": "intermediate_size",
    "vocabulary": "vocab_size",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}
_BLOCK = {  # our name: theirs
    "attention/norm": "input_layernorm",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/out": "self_attn.o_proj",
    "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm",
    "mlp/norm": "post_attention_layernorm",
    "mlp/gate": "mlp.gate_proj",
    "mlp/up": "mlp.up_proj",
    "mlp/down": "mlp.down_proj",
}


def is_folder(path: Path) -> bool:
    """Whether it is a folder in this layout."""
    return (path / CONFIG).is_file()


def model_table(folder: Path) -> dict[str, Any]:
    """The [model] keys that config.json describes, as DecoderConfig.settled has them.

    Raises ValueError, with the fix, for an architecture that the decoder does not compute, and for a damaged file.
    """
    try:
        given = json.loads((folder / CONFIG).read_text(encoding="utf-8-sig"))
        about = {key: value for key, value in given.items() if value is not None}
        if wrong := list(_unlike_ours(about)):
            raise ValueError(f"{CONFIG}: {', '.join(wrong)}: the decoder computes no such thing; give another model")
        heads = about["num_attention_heads"]
        usual = {
            "num_key_value_heads": heads,
            "head_dim": 128 if about["model_type"] == "qwen3" else about["hidden_size"] // heads,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
        }
        table = {ours: (usual | about)[theirs] for ours, theirs in _SAME.items()}
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{CONFIG} cannot be read: {type(error).__name__}: {error}; give a folder that transformers saved"
        ) from error
    inside = about.get("rope_parameters") or {}
    theta = inside.get("rope_theta", about.get("rope_theta", 10_000.0))
    if about.get("rope_theta", theta) != theta:
        raise ValueError(f"{CONFIG} names two bases, rope_theta = {about['rope_theta']} and {theta}; leave one")
    return table | {"rope_theta": float(theta), "qk_norm": about["model_type"] == "qwen3"}


def weight_files(folder: Path) -> list[Path]:
    """Its safetensors files. Raises ValueError, with the fix, where one is missing, or the index is damaged."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise ValueError(f"the folder has neither {WEIGHTS} nor {INDEX}; save the model with safe_serialization=True")
    try:
        names = sorted(
            {str(name) for name in json.loads((folder / INDEX).read_text(encoding="utf-8-sig"))["weight_map"].values()}
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{INDEX} cannot be read: {type(error).__name__}: {error}; give a folder that transformers saved"
        ) from error
    if missing := [name for name in names if Path(name).name != name or not (folder / name).is_file()]:
        raise ValueError(f"{INDEX} names {', '.join(missing)}, no files of the folder; copy the folder whole")
    return [folder / name for name in names]


def ours(folder: Path, theirs: Mapping[str, Flat]) -> dict[str, Flat]:
    """The decoder's tensors, views where possible, of those in the folder. Raises ValueError for missing and others."""
    table, left = model_table(folder), dict(theirs)
    named, missing = {}, []
    for name, other in _names(table):
        if (values := left.pop(other, None)) is None:
            missing.append(other)
        else:
            named[name] = values.T if _turned(name) else values
    if table["tied"]:
        left.pop("lm_head.weight", None)
    surplus = [name for name in left if not name.endswith("rotary_emb.inv_freq")]  # old files have it; it is computed
    if missing or surplus:
        parts = [f"{', '.join(missing)} missing"] * bool(missing) + [f"{', '.join(surplus)} unknown"] * bool(surplus)
        raise ValueError(f"tensors do not fit {CONFIG}: {'; and '.join(parts)}; give a folder that transformers saved")
    return named


def theirs(table: Mapping[str, Any], named: Mapping[str, Flat]) -> dict[str, Flat]:
    """Tensors under transformers' names, contiguous, of the decoder's; `table`: DecoderConfig.settled."""
    return {
        other: np.ascontiguousarray(named[name].T if _turned(name) else named[name]) for name, other in _names(table)
    }


def config_of(table: Mapping[str, Any], length: int, end: int | None = None) -> dict[str, Any]:
    """The content of config.json.

    `table`: DecoderConfig.settled; `length`: tokens of a sample; `end`: the token after a document.
    """
    kind = "qwen3" if table["qk_norm"] else "llama"
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        **{other: table[name] for name, other in _SAME.items()},
        "rope_theta": table["rope_theta"],  # transformers 4 reads this, and 5 what follows
        "rope_parameters": {"rope_type": "default", "rope_theta": table["rope_theta"]},
        "max_position_embeddings": length,
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": end,
    }


def _names(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(our name, theirs) of every tensor."""
    yield "embed", "model.embed_tokens.weight"
    for layer in range(table["layers"]):
        for name, other in _BLOCK.items():
            if table["qk_norm"] or not name.endswith(("query_norm", "key_norm")):
                yield f"blocks/{layer}/{name}", f"model.layers.{layer}.{other}.weight"
    yield "norm", "model.norm.weight"
    if not table["tied"]:
        yield "head", "lm_head.weight"


def _turned(name: str) -> bool:
    """Whether ours is [in, out] where theirs is [out, in]."""
    return not name.endswith(("norm", "embed"))


def _unlike_ours(about: Mapping[str, Any]) -> Iterator[str]:
    """List the settings of config.json that the decoder does not compute."""
    if about["model_type"] not in ARCHITECTURES:
        yield f"model_type = {about['model_type']!r} (known: {', '.join(ARCHITECTURES)})"
    for key in ("attention_bias", "mlp_bias", "use_sliding_window", "quantization_config"):
        if about.get(key):
            yield f"{key} = {about[key]!r}"
    if about.get("hidden_act", "silu") != "silu":
        yield f"hidden_act = {about['hidden_act']!r}"
    rope = about.get("rope_scaling") or about.get("rope_parameters") or {}
    if (kind := rope.get("rope_type", rope.get("type", "default"))) != "default":
        yield f"rope_type = {kind!r}"

"""The decoder's parameters in the layout of transformers: the architectures below.

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
# By model_type: transformers' name, and the [model] keys that set it apart. The first that has the keys is written.
ARCHITECTURES: dict[str, tuple[str, dict[str, bool]]] = {
    "qwen3": ("Qwen3ForCausalLM", {"qk_norm": True}),
    "qwen2": ("Qwen2ForCausalLM", {"qkv_bias": True}),
    "llama": ("LlamaForCausalLM", {}),  # SmolLM too
    "mistral": ("MistralForCausalLM", {}),
    "phi3": ("Phi3ForCausalLM", {}),
}
PLAIN = {"qk_norm": False, "qkv_bias": False}
SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")  # rope_type llama3

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
    "attention/norm": "input_layernorm.weight",
    "attention/query": "self_attn.q_proj.weight",
    "attention/key": "self_attn.k_proj.weight",
    "attention/value": "self_attn.v_proj.weight",
    "attention/out": "self_attn.o_proj.weight",
    "mlp/norm": "post_attention_layernorm.weight",
    "mlp/gate": "mlp.gate_proj.weight",
    "mlp/up": "mlp.up_proj.weight",
    "mlp/down": "mlp.down_proj.weight",
}
_MORE = {  # of the blocks of models with this key
    "qk_norm": {
        "attention/query_norm": "self_attn.q_norm.weight",
        "attention/key_norm": "self_attn.k_norm.weight",
    },
    "qkv_bias": {f"attention/{ours}_bias": f"self_attn.{ours[0]}_proj.bias" for ours in ("query", "key", "value")},
}


def is_folder(path: Path) -> bool:
    """Whether it is a folder in this layout."""
    return (path / CONFIG).is_file()


def model_table(folder: Path) -> dict[str, Any]:
    """The [model] keys that config.json describes, as DecoderConfig.settled has them.

    Raises ValueError, with the fix, for an architecture that the decoder does not compute, and for a damaged file.
    """
    about = _config(folder)
    try:
        if wrong := list(_unlike_ours(about)):
            raise ValueError(f"{CONFIG}: {', '.join(wrong)}: the decoder computes no such thing; give another model")
        heads = about["num_attention_heads"]
        usual = {
            "num_key_value_heads": heads,
            "head_dim": 128 if about["model_type"] == "qwen3" else about["hidden_size"] // heads,
            "tie_word_embeddings": False,
        }
        table = {ours: (usual | about)[theirs] for ours, theirs in _SAME.items()}
        rope = _rope(about)
        scaling = [rope[key] for key in SCALING] if rope["rope_type"] == "llama3" else []
        theta = float(rope.get("rope_theta", about.get("rope_theta", 10_000.0)))
    except (KeyError, TypeError) as error:
        raise _unreadable(error) from error
    if about.get("rope_theta", theta) != theta:
        raise ValueError(f"{CONFIG} names two bases, rope_theta = {about['rope_theta']} and {theta}; leave one")
    table |= {"rope_theta": theta, "rope_scaling": scaling}
    return table | PLAIN | ARCHITECTURES[about["model_type"]][1]


def window(folder: Path) -> int | None:
    """How many positions a token sees at most, which the decoder does not limit; None: all. Raises ValueError."""
    about = _config(folder)
    return about.get("sliding_window") if about.get("use_sliding_window", True) else None


def _config(folder: Path) -> dict[str, Any]:
    try:
        given = json.loads((folder / CONFIG).read_text(encoding="utf-8-sig"))
        return {key: value for key, value in given.items() if value is not None}
    except (AttributeError, json.JSONDecodeError) as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> ValueError:
    why = f"{type(error).__name__}: {error}"
    return ValueError(f"{CONFIG} cannot be read: {why}; give a folder that transformers saved")


def _rope(about: Mapping[str, Any]) -> dict[str, Any]:
    """Of rotary positions, as transformers 5 or 4 says it."""
    found = {**(about.get("rope_parameters") or about.get("rope_scaling") or {})}
    return found | {"rope_type": found.get("rope_type", found.get("type", "default"))}


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
    table = model_table(folder)
    left = _apart(table, theirs)
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


def _apart(table: Mapping[str, Any], theirs: Mapping[str, Flat]) -> dict[str, Flat]:
    """These tensors, with Phi-3's joined matrices as those that they are made of."""
    heads, keys = (table[name] * table["head_width"] for name in ("heads", "kv_heads"))
    joined = {
        "qkv_proj": (("q_proj", "k_proj", "v_proj"), (heads, heads + keys)),
        "gate_up_proj": (("gate_proj", "up_proj"), (table["hidden"],)),
    }
    found: dict[str, Flat] = {}
    for name, values in theirs.items():
        block, _, last = name.removesuffix(".weight").rpartition(".")
        if last in joined:
            names, at = joined[last]
            parts = zip(names, np.split(values, at), strict=True)
            found |= {f"{block}.{each}.weight": part for each, part in parts}
        else:
            found[name] = values
    return found


def theirs(table: Mapping[str, Any], named: Mapping[str, Flat]) -> dict[str, Flat]:
    """Tensors under transformers' names, contiguous, of the decoder's; `table`: DecoderConfig.settled."""
    return {
        other: np.ascontiguousarray(named[name].T if _turned(name) else named[name]) for name, other in _names(table)
    }


def config_of(table: Mapping[str, Any], length: int, end: int | None = None) -> dict[str, Any]:
    """The content of config.json.

    `table`: DecoderConfig.settled; `length`: tokens of a sample; `end`: the token after a document.
    """
    kind, (name, _) = next(each for each in ARCHITECTURES.items() if all(table[key] for key in each[1][1]))
    scaling = table["rope_scaling"]
    rope: dict[str, Any] = {"rope_type": "default"}
    if scaling:
        rope = {"rope_type": "llama3", **dict(zip(SCALING, scaling, strict=True))}
    return {
        "architectures": [name],
        "model_type": kind,
        **{other: table[name] for name, other in _SAME.items()},
        "rope_theta": table["rope_theta"],  # transformers 4 reads this, and 5 what follows
        **({"rope_scaling": rope} if scaling else {}),
        "rope_parameters": rope | {"rope_theta": table["rope_theta"]},
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
    block = _BLOCK | {name: other for key, more in _MORE.items() if table[key] for name, other in more.items()}
    for layer in range(table["layers"]):
        for name, other in block.items():
            yield f"blocks/{layer}/{name}", f"model.layers.{layer}.{other}"
    yield "norm", "model.norm.weight"
    if not table["tied"]:
        yield "head", "lm_head.weight"


def _turned(name: str) -> bool:
    """Whether ours is [in, out] where theirs is [out, in]."""
    return not name.endswith(("norm", "bias", "embed"))


def _unlike_ours(about: Mapping[str, Any]) -> Iterator[str]:
    """List the settings of config.json that the decoder does not compute."""
    if about["model_type"] not in ARCHITECTURES:
        yield f"model_type = {about['model_type']!r} (known: {', '.join(ARCHITECTURES)})"
    for key in ("attention_bias", "mlp_bias", "use_sliding_window", "quantization_config"):
        if about.get(key):
            yield f"{key} = {about[key]!r}"
    if about.get("hidden_act", "silu") != "silu":
        yield f"hidden_act = {about['hidden_act']!r}"
    rope = _rope(about)
    if nested := [key for key, value in rope.items() if isinstance(value, dict)]:
        yield f"positions of {', '.join(nested)} alone"
    if rope["rope_type"] not in ("default", "llama3"):
        yield f"rope_type = {rope['rope_type']!r}"
    if (part := rope.get("partial_rotary_factor", about.get("partial_rotary_factor", 1.0))) != 1.0:
        yield f"partial_rotary_factor = {part!r}"

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

from learners.training.models.decoder_config import ARCHITECTURES, LOCAL_LAYERS

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TASK = "learners.training.models.causal_lm:CausalLM"  # whose parameters these are
# By model_type: transformers' name, and the architecture that computes it too.
MODELS = {
    "llama": ("LlamaForCausalLM", "llama"),  # SmolLM too
    "mistral": ("MistralForCausalLM", "llama"),
    "phi3": ("Phi3ForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "olmo2": ("Olmo2ForCausalLM", "olmo2"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3_text": ("Gemma3ForCausalLM", "gemma3_text"),
}
HEAD_WIDTHS = {"qwen3": 128, "gemma2": 256, "gemma3_text": 256}  # where config.json has none
WINDOW = 4096  # of Gemma, unless samples are longer
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
    "attention/query": "self_attn.q_proj.weight",
    "attention/key": "self_attn.k_proj.weight",
    "attention/value": "self_attn.v_proj.weight",
    "attention/out": "self_attn.o_proj.weight",
    "mlp/gate": "mlp.gate_proj.weight",
    "mlp/up": "mlp.up_proj.weight",
    "mlp/down": "mlp.down_proj.weight",
}
_BEFORE = {"attention/norm": "input_layernorm.weight", "mlp/norm": "post_attention_layernorm.weight"}
_AFTER = {"attention/after": "post_attention_layernorm.weight", "mlp/after": "post_feedforward_layernorm.weight"}
_NORMS = {
    "before": _BEFORE,
    "after": _AFTER,
    "both": _BEFORE | _AFTER | {"mlp/norm": "pre_feedforward_layernorm.weight"},
}
_QK_NORMS = {"attention/query_norm": "self_attn.q_norm.weight", "attention/key_norm": "self_attn.k_norm.weight"}
_BIASES = {f"attention/{ours}_bias": f"self_attn.{ours[0]}_proj.bias" for ours in ("query", "key", "value")}


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
        kind, heads = about["model_type"], about["num_attention_heads"]
        usual = {
            "num_key_value_heads": heads,
            "head_dim": HEAD_WIDTHS.get(kind, about["hidden_size"] // heads),
            "tie_word_embeddings": _is_gemma(kind),
        }
        table = {ours: (usual | about)[theirs] for ours, theirs in _SAME.items()}
        rope = _rope(about)
        scaling = [rope[key] for key in SCALING] if rope["rope_type"] == "llama3" else []
        theta = float(rope.get("rope_theta", about.get("rope_theta", 1e6 if kind == "gemma3_text" else 1e4)))
    except (KeyError, TypeError) as error:
        raise _unreadable(error) from error
    if about.get("rope_theta", theta) != theta:
        raise ValueError(f"{CONFIG} names two bases, rope_theta = {about['rope_theta']} and {theta}; leave one")
    return table | {"rope_theta": theta, "rope_scaling": scaling, "architecture": MODELS[kind][1]}


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
    if (theta := ARCHITECTURES[MODELS[about["model_type"]][1]].local_theta) is not None:
        near = found.pop("sliding_attention", None)
        found = found.get("full_attention", found) if near in (None, _plain(theta)) else {"sliding_attention": near}
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
            named[name] = _laid(table, name, values, 1.0)
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
    return {other: np.ascontiguousarray(_laid(table, name, named[name], -1.0)) for name, other in _names(table)}


def config_of(table: Mapping[str, Any], length: int, end: int | None = None) -> dict[str, Any]:
    """The content of config.json.

    `table`: DecoderConfig.settled; `length`: tokens of a sample; `end`: the token after a document.
    """
    kind, scaling, theta = table["architecture"], table["rope_scaling"], table["rope_theta"]
    rope, local = _plain(theta), ARCHITECTURES[kind].local_theta
    if scaling:
        rope |= {"rope_type": "llama3", **dict(zip(SCALING, scaling, strict=True))}
    return {
        "architectures": [MODELS[kind][0]],
        "model_type": kind,
        **{other: table[name] for name, other in _SAME.items()},
        "rope_theta": theta,  # transformers 4 reads this, and 5 what follows
        **({"rope_scaling": {key: rope[key] for key in ("rope_type", *SCALING)}} if scaling else {}),
        "rope_parameters": rope if local is None else {"full_attention": rope, "sliding_attention": _plain(local)},
        "max_position_embeddings": length,
        **_fixed(kind, table["head_width"]),
        **_local(kind, table["layers"]),
        **({"sliding_window": max(length, WINDOW)} if _is_gemma(kind) else {}),
        "attention_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": end,
    }


def _plain(theta: float) -> dict[str, Any]:
    """Rotary positions that are not scaled, as transformers 5 says it."""
    return {"rope_type": "default", "rope_theta": theta}


def _names(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(our name, theirs) of every tensor."""
    yield "embed", "model.embed_tokens.weight"
    family = ARCHITECTURES[table["architecture"]]
    block = _BLOCK | _NORMS[family.norms] | (_QK_NORMS if family.qk_norm else {}) | (_BIASES if family.qkv_bias else {})
    for layer in range(table["layers"]):
        for name, other in block.items():
            yield f"blocks/{layer}/{name}", f"model.layers.{layer}.{other}"
    yield "norm", "model.norm.weight"
    if not table["tied"]:
        yield "head", "lm_head.weight"


def _laid(table: Mapping[str, Any], name: str, values: Flat, more: float) -> Flat:
    """In the other layout: matrices are [in, out] here and [out, in] there, and Gemma has gains of norms less one."""
    if name.endswith(("norm", "after")):
        return values + np.float32(more) if _is_gemma(table["architecture"]) else values
    return values if name.endswith(("bias", "embed")) else values.T


def _is_gemma(kind: str) -> bool:
    return kind.startswith("gemma")


def _fixed(kind: str, head_width: int | None) -> dict[str, Any]:
    """Settings of config.json that the decoder does not have otherwise; None: not there."""
    if not _is_gemma(kind):
        return {"hidden_act": "silu"}
    family = ARCHITECTURES[kind]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": head_width,
        "attn_logit_softcapping": family.cap,
        "final_logit_softcapping": family.output_cap,
    }


def _local(kind: str, layers: int) -> dict[str, Any]:
    """How config.json says, for transformers 4 and 5, that most layers have rotary positions of their own."""
    if (theta := ARCHITECTURES[kind].local_theta) is None:
        return {}
    every = LOCAL_LAYERS + 1
    kinds = ["sliding_attention" if number % every else "full_attention" for number in range(1, layers + 1)]
    return {"rope_local_base_freq": theta, "sliding_window_pattern": every, "layer_types": kinds}


def _unlike_ours(about: Mapping[str, Any]) -> Iterator[str]:
    """List the settings of config.json that the decoder does not compute."""
    if (kind := about["model_type"]) not in MODELS:
        yield f"model_type = {kind!r} (known: {', '.join(MODELS)})"
        return
    for key in (
        "attention_bias",
        "mlp_bias",
        "use_sliding_window",
        "quantization_config",
        "use_bidirectional_attention",
    ):
        if about.get(key):
            yield f"{key} = {about[key]!r}"
    fixed = _fixed(kind, about.get("head_dim", HEAD_WIDTHS.get(kind)))
    local = _local(MODELS[kind][1], about["num_hidden_layers"])
    for key, value in [*fixed.items(), *((key, value) for key, value in local.items() if key in about)]:
        if about.get(key) != value:
            yield f"{key} = {about[key]!r}" if key in about else f"no {key}"
    rope = _rope(about)
    if nested := [key for key, value in rope.items() if isinstance(value, dict)]:
        yield f"positions of {', '.join(nested)} alone"
    if rope["rope_type"] not in ("default", "llama3"):
        yield f"rope_type = {rope['rope_type']!r}"
    if (part := rope.get("partial_rotary_factor", about.get("partial_rotary_factor", 1.0))) != 1.0:
        yield f"partial_rotary_factor = {part!r}"

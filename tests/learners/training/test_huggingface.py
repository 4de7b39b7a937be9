"""Hugging Face's layout: the decoder computes transformers' logits, and what it writes is what it read.

The folders in huggingface/, with the logits of transformers, are made by the script beside them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from learners.config import DataConfig
from learners.training import tree, weights
from learners.training.models import decoder, huggingface
from learners.training.models.causal_lm import CausalLM

FOLDERS = Path(__file__).parent / "huggingface"
KINDS = ("gemma2", "gemma3_text", "llama", "llama3", "mistral", "olmo2", "phi3", "qwen2", "qwen3")


def task_of(folder: Path) -> CausalLM:
    return CausalLM(DataConfig(sequence_length=12), 0, **huggingface.model_table(folder))


@pytest.mark.parametrize("kind", KINDS)
def test_the_decoder_computes_the_logits_of_transformers(kind: str) -> None:
    task, stored = task_of(FOLDERS / kind), np.load(FOLDERS / kind / "logits.npz")
    built, named = tree.ParameterTree.of(task), weights.read(FOLDERS / kind)
    params = built.placed([named[tensor.name] for tensor in built.tensors], None)

    @jax.jit
    def logits(params: Any, tokens: Any) -> Any:
        found = decoder.features(params, tokens, task.config)
        return decoder.logits(found, decoder.head(params), task.config.family.output_cap)

    assert float(np.abs(stored["logits"]).max()) > 1.0
    np.testing.assert_allclose(logits(params, stored["tokens"]), stored["logits"], atol=2e-5)


def test_what_llama_computes_too_is_written_as_its_model() -> None:
    for kind in ("mistral", "phi3"):
        table, named = huggingface.model_table(FOLDERS / kind), weights.read(FOLDERS / kind)
        assert huggingface.config_of(table, 64)["model_type"] == "llama"
        assert huggingface.window(FOLDERS / kind) == 32
        again = huggingface.ours(FOLDERS / kind, huggingface.theirs(table, named))
        assert all(np.array_equal(again[name], named[name]) for name in named | again)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("mistral", "phi3")])
def test_what_is_read_and_written_again_is_the_same_model(kind: str) -> None:
    folder = FOLDERS / kind
    table, about = huggingface.model_table(folder), json.loads((folder / "config.json").read_text())
    stored = {name: one for file in huggingface.weight_files(folder) for name, one in weights.read(file).items()}
    again = huggingface.theirs(table, weights.read(folder))
    assert again.keys() == stored.keys()
    for name, values in stored.items():  # Gemma's gains less one, which are rounded
        np.testing.assert_allclose(again[name], values, rtol=0, atol=1e-7 if name.endswith("norm.weight") else 0)
    written = huggingface.config_of(table, 64)
    same = written.keys() & about.keys() - {"bos_token_id", "eos_token_id", "sliding_window"}
    assert {key: about[key] for key in same} == {key: written[key] for key in same}
    assert written["rope_parameters"] == about["rope_parameters"]
    assert written["bos_token_id"] is None and written["eos_token_id"] is None, (
        "transformers has tokens of its own else"
    )


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("{}", "index.json cannot be read: KeyError"),
        ("[", "index.json cannot be read: JSONDecodeError"),
        ('{"weight_map": {"a": "b.safetensors"}}', "names b.safetensors, no files of the folder; copy"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "names ../model.safetensors, no files"),
    ],
)
def test_an_index_that_cannot_be_followed_is_refused(tmp_path: Path, index: str, words: str) -> None:
    shutil.copy(FOLDERS / "llama" / "config.json", tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError) as caught:
        huggingface.weight_files(tmp_path)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query_pre_attn_scalar": 16}, "query_pre_attn_scalar = 16"),
        ({"hidden_activation": None}, "no hidden_activation"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
        ({"layer_types": ["full_attention"] * 7}, "layer_types = ['full_attention'"),
        ({"rope_local_base_freq": 2e4}, "rope_local_base_freq = 20000.0"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 2e4}}}, "positions of sliding_attention alone"),
    ],
)
def test_a_gemma_of_other_settings_is_refused_by_name(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    assert words in refused(tmp_path, "gemma3_text", change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"model_type": "gpt2"},
            "model_type = 'gpt2' (known: llama, mistral, phi3, qwen2, qwen3, olmo2, gemma2, gemma3_text)",
        ),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type = 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "cannot be read: KeyError: 'factor'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "positions of full_attention alone"),
        ({"rope_parameters": {"rope_theta": [1]}}, "config.json cannot be read: TypeError"),
        ({"rms_norm_eps": None}, "config.json cannot be read: KeyError"),
        ({"partial_rotary_factor": 0.75}, "partial_rotary_factor = 0.75"),
        ({"hidden_size": None}, "config.json cannot be read"),
        ({"tie_word_embeddings": True, "num_hidden_layers": 1}, "model.layers.1.input_layernorm.weight"),
        ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight"),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "names two bases"),
    ],
)
def test_what_the_decoder_does_not_compute_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    assert words in refused(tmp_path, "llama", change)


def refused(tmp_path: Path, kind: str, change: dict[str, Any]) -> str:
    """What is said of a folder with this change of its config.json."""
    shutil.copytree(FOLDERS / kind, tmp_path / "other")
    about = json.loads((tmp_path / "other" / "config.json").read_text()) | change
    (tmp_path / "other" / "config.json").write_text(json.dumps(about))
    with pytest.raises(ValueError) as caught:
        weights.read(tmp_path / "other")
    assert "; " in str(caught.value)
    return str(caught.value)

"""Makes the checkpoints beside it, random and tiny, with the logits that transformers computes for them.

Run in an environment of its own, since the project needs neither:

    pip install torch==2.14.1 transformers==5.23.0
    python tests/learners/training/huggingface/make.py

LlamaForCausalLM is written in several files with an index and an output of its own; Qwen3ForCausalLM in one, tied;
llama3 has Llama 3's scaled positions; Phi3ForCausalLM joins matrices; Gemma 3 has layers of both kinds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

HERE = Path(__file__).parent
SIZES = {
    "vocab_size": 256,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def make(name: str, model: torch.nn.Module, shard: str) -> None:
    with torch.no_grad():
        for tensor in model.parameters():  # norms too, which begin at one
            tensor.add_(0.2 * torch.randn_like(tensor))
        tokens = torch.randint(0, SIZES["vocab_size"], (1, 12))
        logits = model(tokens).logits
    model.save_pretrained(HERE / name, max_shard_size=shard)
    (HERE / name / "generation_config.json").unlink(missing_ok=True)
    np.savez(HERE / name / "logits.npz", tokens=tokens.numpy().astype(np.int32), logits=logits.numpy())


torch.manual_seed(0)
make("llama", LlamaForCausalLM(LlamaConfig(**SIZES, rms_norm_eps=1e-5, rope_theta=5e5)), "20KB")
tied = Qwen3Config(**SIZES, head_dim=8, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True)
make("qwen3", Qwen3ForCausalLM(tied), "1MB")

torch.manual_seed(1)
scaled = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
scaled["original_max_position_embeddings"] = 8
make("llama3", LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=scaled, tie_word_embeddings=True)), "1MB")
make("mistral", MistralForCausalLM(MistralConfig(**SIZES, sliding_window=32, tie_word_embeddings=True)), "1MB")
make("phi3", Phi3ForCausalLM(Phi3Config(**SIZES, pad_token_id=None, sliding_window=32)), "1MB")
make("qwen2", Qwen2ForCausalLM(Qwen2Config(**SIZES, rope_theta=1e6)), "1MB")

torch.manual_seed(2)
gemma = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 32, "attn_implementation": "eager"}
make("gemma2", Gemma2ForCausalLM(Gemma2Config(**SIZES | gemma)), "1MB")
make("gemma3_text", Gemma3ForCausalLM(Gemma3TextConfig(**SIZES | gemma | {"num_hidden_layers": 7})), "1MB")
make("olmo2", Olmo2ForCausalLM(Olmo2Config(**SIZES, pad_token_id=None, eos_token_id=None, rope_theta=5e5)), "1MB")

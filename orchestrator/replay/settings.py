"""Which settings of a log may reach a process: a run's folder may come from anybody, and XLA's flags name files too.

Let through is what is known to decide devices or numbers, in words that can be no path. Whoever has set the very same
in an environment of their own has allowed it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from learners.training.device import SETTINGS
from orchestrator.replay.incarnation import TapeError

_SWITCH = "(?i:true|false|yes|no|on|off|[tfyn01])"
VALUES = {  # of the settings that are one value, as regular expressions
    "JAX_ENABLE_X64": _SWITCH,
    "JAX_DISABLE_JIT": _SWITCH,
    "JAX_THREEFRY_PARTITIONABLE": _SWITCH,
    "JAX_DEFAULT_PRNG_IMPL": "threefry2x32|rbg|unsafe_rbg",
    "JAX_DEFAULT_MATMUL_PRECISION": "default|high|highest|bfloat16|bfloat16_3x|tensorfloat32|float32|[A-Z0-9_]+",
    "NVIDIA_TF32_OVERRIDE": "[01]",
}
_FLAG = re.compile(  # of XLA and of libtpu
    r"""--(?:
    xla_(?:
        allow_excess_precision | backend_optimization_level | disable_all_hlo_passes | disable_hlo_passes |
        enable_async_all_gather | enable_async_collective_permute | force_host_platform_device_count |
        llvm_disable_expensive_passes | reduce_window_rewrite_base_length
    )
    | xla_cpu_(?:
        copy_insertion_use_region_analysis | enable_concurrency_optimized_scheduler | enable_fast_math |
        enable_fast_min_max | fast_math_honor_division | fast_math_honor_functions | fast_math_honor_infs |
        fast_math_honor_nans | max_isa | multi_thread_eigen | parallel_codegen_split_count | prefer_vector_width
        | strict_dot_conv_math | use_acl | use_fusion_emitters | use_onednn | use_thunk_runtime | use_xnnpack
    )
    | xla_gpu_(?:
        all_gather_combine_threshold_bytes | all_reduce_combine_threshold_bytes | autotune_gemm_rtol |
        autotune_level | cublas_fallback | cudnn_gemm_fusion_level | cudnn_gemm_max_plans |
        default_to_alg_dot_bf16_bf16_f32 | deterministic_ops | deterministic_reductions |
        enable_async_collectives | enable_bf16_3way_gemm | enable_bf16_6way_gemm | enable_command_buffer |
        enable_cublaslt | enable_cudnn_fmha | enable_cudnn_layer_norm | enable_fast_min_max |
        enable_highest_priority_async_stream | enable_latency_hiding_scheduler | enable_pipelined_all_gather |
        enable_pipelined_all_reduce | enable_pipelined_reduce_scatter | enable_priority_fusion |
        enable_reduction_epilogue_fusion | enable_scatter_determinism_expander | enable_split_k_autotuning |
        enable_triton_gemm | enable_triton_softmax_fusion | enable_while_loop_double_buffering |
        exclude_nondeterministic_ops | force_conv_nchw | force_conv_nhwc | ftz | gemm_rewrite_size_threshold |
        graph_level | normalize_layouts | reduce_scatter_combine_threshold_bytes | simplify_all_fp_conversions |
        strict_conv_algorithm_picker | triton_gemm_any | use_random_streams | use_runtime_fusion
    )
    | xla_tpu_(?:
        data_parallel_opt_different_sized_ops | enable_async_collective_fusion |
        enable_async_collective_fusion_fuse_all_gather | enable_async_collective_fusion_multiple_steps |
        enable_data_parallel_all_reduce_opt | enable_latency_hiding_scheduler | megacore_fusion_allow_ags |
        overlap_compute_collective_tc | scoped_vmem_limit_kib
    )
    )(?: = [A-Za-z0-9_.,+-]* )?
    """,
    re.VERBOSE,
)
# XLA reads the name of a file where the first word is no flag, and nothing from a later word on that is none.
INERT = "intra_op_parallelism_threads=1"  # of those, the one that a learner's own flags end with


def permitted(settings: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """The settings of a log, for the environment of a process that is to be like its learners.

    What is recorded of nobody is left out. Raises TapeError for a value that names it, unless `inherited`, the
    environment of whoever asks, has the very same.
    """
    kept = {name: value for name, value in settings.items() if name in SETTINGS}
    for name, value in kept.items():
        if value != inherited.get(name) and (refused := _refused(name, value)) is not None:
            raise TapeError(
                f"its learners had {name} with {refused!r}, which is not known to be harmless: files that flags name "
                f"would be read or written here. If you trust it, set {name} to the same yourself: {value!r}"
            )
    return kept


def _refused(name: str, value: str) -> str | None:
    """The first word of a setting that is not let through."""
    if name in VALUES:
        return None if re.fullmatch(VALUES[name], value) else value
    words = re.findall(r"[^ \t\r\n]+", value)
    return next((word for word in words if not _FLAG.fullmatch(word) and (word != INERT or word is words[0])), None)

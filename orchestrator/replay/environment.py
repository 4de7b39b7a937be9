"""The environment that a replay needs for bit-equal results, and how this machine differs from it.

Processor and packages cannot be chosen here; differences in them become hints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from learners.protocol.facts import DeviceTaken
from learners.training.devices.device import SETTINGS
from orchestrator.replay.incarnation import TapeError, named
from orchestrator.replay.tape import Tape

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"  # a step's matrix products use one thread then
COUNT = "--xla_force_host_platform_device_count"
PACKAGES = ("optax", "code")  # recorded for the run, not for each incarnation


@dataclass(frozen=True)
class Environment:
    """The environment of the run's learners, from their DeviceTaken facts."""

    platform: str
    cores: int
    settings: Mapping[str, str]

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Variables for a process with the same JAX settings. Raises TapeError for an unsafe setting."""
        kept = {name: value for name, value in inherited.items() if name not in (*SETTINGS, "JAX_PLATFORMS")}
        return kept | permitted(self.settings, inherited) | ({"JAX_PLATFORMS": "cpu"} if self.platform == "cpu" else {})


def needed(tape: Tape) -> Environment | None:
    """Return what one process needs to replay the tape; None if nothing was recorded. Raises TapeError."""
    kinds = {_kind(device): (key, device) for key, device in sorted(tape.devices.items(), reverse=True)}
    if not kinds:
        return None
    if len(kinds) > 1:
        found = "; ".join(f"{name} {number} on {_in_words(device)}" for (name, number), device in kinds.values())
        raise TapeError(
            f"its learners computed on devices of {len(kinds)} kinds ({found}), and one process can be like one only"
        )
    key, device = next(iter(kinds.values()))
    if device.devices < 1 or device.cores < 0:
        raise TapeError(f"{named(key)} computed on {device.devices} devices and {device.cores} cores, by its own word")
    settings = alike(device)
    if device.platform == "cpu" and (most := max(each.devices for each in tape.devices.values())) > 1:
        settings["XLA_FLAGS"] = taken_for(most, settings)
    return Environment(device.platform, device.cores, settings)


def taken_for(devices: int, settings: Mapping[str, str]) -> str:
    """XLA_FLAGS by which a CPU is taken for so many devices."""
    words = settings.get("XLA_FLAGS", "").split()
    counted = [f"{COUNT}={devices}"] if devices > 1 else []  # in front: XLA stops reading at a word without a hyphen
    return " ".join([*counted, *(word for word in words if not word.startswith(f"{COUNT}="))])


def alike(device: DeviceTaken) -> dict[str, str]:
    """Its settings, but for the number of devices that a CPU is taken for: of those, one process can have many."""
    settings = dict(device.settings)
    if device.platform == "cpu" and "XLA_FLAGS" in settings:
        settings["XLA_FLAGS"] = taken_for(1, settings)
    return settings


def hints(tape: Tape, here: DeviceTaken, packages: Mapping[str, str]) -> list[str]:
    """Differences between the recorded environment and this one, in words."""
    found: dict[str, None] = {}
    for recorded in tape.devices.values():
        for name in ("platform", "device", "devices", "cores", "processor", "instructions"):
            if name != "devices" or recorded.platform != "cpu":
                _note(found, name, getattr(recorded, name), getattr(here, name))
        then, now = alike(recorded), alike(here)
        for name in sorted(then.keys() | now.keys()):
            _note(found, name, then.get(name, "unset"), now.get(name, "unset"))
        for name, version in recorded.versions.items():
            _note(found, name, version, here.versions.get(name))
    for name in PACKAGES:
        if tape.started is not None and name in tape.started.versions:
            _note(found, name, tape.started.versions[name], packages.get(name))
    if not tape.devices:
        found["on what its learners computed was not recorded"] = None
    return list(found)


def _note(found: dict[str, None], name: str, then: object, here: object) -> None:
    if then != here:
        found[f"{name}: {then} in the run, {here} here"] = None


def _kind(device: DeviceTaken) -> tuple[object, ...]:
    threads = 1 if ONE_THREAD in device.settings.get("XLA_FLAGS", "") else device.cores
    devices = 0 if device.platform == "cpu" else device.devices
    return (device.platform, device.device, devices, threads, *sorted(alike(device).items()))


def _in_words(device: DeviceTaken) -> str:
    settings = " ".join(f"{name}={value!r}" for name, value in sorted(device.settings.items()))
    return f"{device.devices} x {device.device} with {device.cores} cores {settings}".rstrip()


# ------------------------------------------------------------------ which settings are passed on

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
    """The settings of a log that may be passed on to the process that replays it; unknown names are left out.

    A run's folder may come from anybody, and XLA's flags name files too. So only flags that are known to decide devices
    or numbers pass, with values that can be no path. Raises TapeError for any other, unless the user's own environment,
    `inherited`, has the same value.
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
    """The first word of a setting that may not be passed on; None if there is none."""
    if name in VALUES:
        return None if re.fullmatch(VALUES[name], value) else value
    words = re.findall(r"[^ \t\r\n]+", value)
    return next((word for word in words if not _FLAG.fullmatch(word) and (word != INERT or word is words[0])), None)

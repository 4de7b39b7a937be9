"""Whether the devices that JAX took are the right ones, and compute the same bits every time, at a learner's start."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learners.training.devices.device import (
    REHEARSED,
    DeviceFinding,
    asked,
    refuse,
    use_compile_cache,
)
from learners.training.models import decoder
from learners.training.models.decoder_config import DecoderConfig

# By platform: the word for one, this project's extra, and how the names of the packages with JAX's plugin begin and end
KINDS = {"gpu": ("NVIDIA GPU", "cuda", "jax-cuda", "-plugin"), "tpu": ("TPU chip", "tpu", "libtpu", "")}
GOOGLE = "0x1ae0"  # its PCI vendor id
DETERMINISTIC = ("xla_gpu_deterministic_ops", "xla_gpu_exclude_nondeterministic_ops")


def at_start(platform: str, granted: Sequence[str] | None = None) -> dict[str, str]:
    """Check a learner's devices once `fit` was called; returns the warnings, by check. Raises WrongDevice.

    Learners on CPUs only check the platform. On others it takes a second, and a compilation the first time.
    """
    taken = asked(platform)
    refuse(platform_taken(taken, granted if taken == platform == "gpu" else None))
    use_compile_cache()
    if taken == "cpu":
        return {}
    refuse(found := burn_in(jax.local_devices()[0]))
    return {found.name: f"{found.found}; fix: {found.fix}"} if found.status == "warning" else {}


# ------------------------------------------------------------------ the platform


def platform_taken(platform: str, granted: Sequence[str] | None = None) -> DeviceFinding:
    """Whether JAX's default devices are of this platform, and as many as Ray grants."""
    try:
        devices = jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that a platform was found
        return judged_platform(platform, None, str(error) or "JAX found no platform", os.environ)
    found, kind, count = devices[0].platform, devices[0].device_kind, len(devices)
    if found == platform and granted is not None and count != len(granted):
        fix = "check that the node's GPUs are all healthy (nvidia-smi -L), and that Ray was started with their number"
        return DeviceFinding("platform", "failure", f"JAX sees {count} GPUs, but Ray grants {len(granted)}", fix)
    if found == platform:
        return DeviceFinding("platform", "ok", f"{platform}: {count} x {kind}")
    return judged_platform(platform, found, "", os.environ)


def judged_platform(
    platform: str,
    found: str | None,
    error: str,
    environ: Mapping[str, str],
    seen: bool | None = None,
    plugin: bool | None = None,
) -> DeviceFinding:
    """The failure when JAX has another platform than was asked for, with its reason and the fix.

    `found`: JAX's, None if it has none because of `error`; `seen`: whether the machine has such a device, and
    `plugin`: whether JAX's part for it is installed, both by default as on this machine.
    """
    name, chosen = "platform", environ.get("JAX_PLATFORMS", "")
    words = f"asked for {platform}, and JAX has {found or 'nothing'}"

    def failure(reason: str, fix: str) -> DeviceFinding:
        return DeviceFinding(name, "failure", f"{words}: {reason}", fix)

    if platform == "cpu":
        fix = f"unset JAX_PLATFORMS ({chosen!r}), or ask for GPU or TPU in the pool's resources"
        return failure("the pool's resources ask for CPUs only", fix)
    device, extra, _, _ = KINDS[platform]
    if chosen and not {platform, {"gpu": "cuda"}.get(platform)} & set(chosen.split(",")):
        fix = f"unset JAX_PLATFORMS; to rehearse without {device}s, set {REHEARSED}=cpu"
        return failure(f"JAX_PLATFORMS = {chosen!r} excludes it", fix)
    if not (_has_plugin(platform) if plugin is None else plugin):
        return failure("JAX's plugin for it is not installed", f"in the checkout: pip install -e '.[{extra}]'")
    if not (_is_seen(platform) if seen is None else seen):
        fix = "install its driver (nvidia-smi shows it); start containers with docker run --gpus all"
        if platform == "tpu":
            fix = "start on a TPU VM; start containers with --privileged"
        return failure(f"this process sees no {device} below /dev", fix)
    if environ.get("CUDA_VISIBLE_DEVICES") == "":
        return failure("CUDA_VISIBLE_DEVICES is empty", "unset CUDA_VISIBLE_DEVICES")
    return failure(error or "JAX does not say why", "see that the driver is new enough for the plugin: nvidia-smi")


def _has_plugin(platform: str) -> bool:
    """Whether JAX's part for this platform is installed."""
    _, _, begin, end = KINDS[platform]
    names = ((entry.metadata["Name"] or "").lower() for entry in importlib.metadata.distributions())
    return any(name.startswith(begin) and name.endswith(end) for name in names)


def _is_seen(platform: str) -> bool:
    """Whether this process sees such a device, found without a driver or JAX."""
    if any(Path("/dev").glob({"gpu": "nvidia[0-9]*", "tpu": "accel[0-9]*"}[platform])):
        return True
    # TPU chips of newer VMs are handed to user space as VFIO groups, like other devices too.
    groups = Path("/dev/vfio").glob("[0-9]*") if platform == "tpu" else ()
    vendors = (Path("/sys/kernel/iommu_groups", group.name, "devices").glob("*/vendor") for group in groups)
    return any(path.read_text().strip() == GOOGLE for found in vendors for path in found)


# ------------------------------------------------------------------ burn-in


# The step that is compared: a transformer's in float32 and bfloat16, with plain gradient descent.
MODEL = DecoderConfig(layers=2, width=512, heads=4)
LENGTH, BATCH, STEPS = 256, 8, 4


def burn_in(device: jax.Device) -> DeviceFinding:
    """Run the same compiled step twice, and compare the bits of all parameters."""
    params = jax.device_put(decoder.init(jax.random.key(0), MODEL, 256), device)
    tokens = jax.device_put(np.arange(BATCH * (LENGTH + 1)).reshape(BATCH, -1) * 7919 % 251, device)
    step: Any = jax.jit(_step)

    def run() -> str:
        now = params
        for _ in range(STEPS):
            now = step(now, tokens)
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(jax.device_get(now)):
            digest.update(leaf.tobytes())
        return digest.hexdigest()[:16]

    return judged_bits(run(), run(), os.environ.get("XLA_FLAGS", ""))


def judged_bits(first: str, second: str, flags: str) -> DeviceFinding:
    """`first`, `second`: digests of the two runs."""
    if first == second:
        return DeviceFinding("burn-in", "ok", f"two runs agree in all bits: {first}")
    found = "two runs of one compiled step differ in their bits"
    health = "examine the device, and take it out of the cluster"
    if any(flag in flags for flag in DETERMINISTIC):
        return DeviceFinding("burn-in", "failure", f"{found}, although XLA was told to be deterministic", health)
    fix = f"set XLA_FLAGS=--{DETERMINISTIC[0]}=true, without which replay is not bit-equal; else {health}"
    return DeviceFinding("burn-in", "warning", found, fix)


def _step(params: Any, tokens: Any) -> Any:
    def loss(params: Any) -> jax.Array:
        half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
        both: jax.Array = decoder.loss(params, tokens, MODEL) + decoder.loss(half, tokens, MODEL)
        return both

    return jax.tree.map(lambda leaf, gradient: leaf - 0.1 * gradient, params, jax.grad(loss)(params))

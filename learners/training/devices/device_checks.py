"""Whether the devices that JAX took are the right ones, and compute the same bits every time.

A learner calls `at_start`. As a program (`python -m learners.training.devices.device_checks gpu`) it prints a finding a
line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learners.training.devices.accelerators import KINDS, accelerators, has_plugin, nvidia_smi
from learners.training.devices.device import (
    REHEARSED,
    DeviceFinding,
    asked,
    fit,
    memory_fraction,
    refuse,
    use_compile_cache,
    visible_devices,
)
from learners.training.models import language

OTHERS_MOST = 0.05  # of a GPU's memory that other processes may hold before that is a warning
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
    refuse(found := burn_in(jax.local_devices()[:1], LARGE))
    return {found.name: f"{found.found}; fix: {found.fix}"} if found.status == "warning" else {}


def findings(platform: str) -> Iterator[DeviceFinding]:
    """Thorough checks, those of the program. After a failure nothing more is tried."""
    if platform == "gpu":
        yield (visible := visible_devices(os.environ, None))
        yield (fraction := memory_fraction(os.environ))
        yield others_memory(nvidia_smi("memory.used", "memory.total"))
        if "failure" in (visible.status, fraction.status):
            return
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # learners may be using the device
    fit(None, platform)
    yield (taken := platform_taken(platform))
    if taken.status == "failure":
        return
    kept = use_compile_cache()
    fix = "" if kept else "set JAX_COMPILATION_CACHE_DIR, so that a learner that comes back need not compile"
    found = kept or "JAX_COMPILATION_CACHE_DIR is not set: only runs on this machine keep compiled programs"
    yield DeviceFinding("compile cache", "ok" if kept else "warning", found, fix)
    yield burn_in(jax.local_devices(), SMALL if platform == "cpu" else LARGE)


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
    if not (has_plugin(platform) if plugin is None else plugin):
        return failure("JAX's plugin for it is not installed", f"in the checkout: pip install -e '.[{extra}]'")
    if not (any(each.platform == platform for each in accelerators()) if seen is None else seen):
        fix = "install its driver (nvidia-smi shows it); start containers with docker run --gpus all"
        if platform == "tpu":
            fix = "start on a TPU VM; start containers with --privileged"
        return failure(f"this process sees no {device} below /dev", fix)
    if environ.get("CUDA_VISIBLE_DEVICES") == "":
        return failure("CUDA_VISIBLE_DEVICES is empty", "unset CUDA_VISIBLE_DEVICES")
    return failure(error or "JAX does not say why", "see that the driver is new enough for the plugin: nvidia-smi")


def others_memory(rows: Sequence[Sequence[str]]) -> DeviceFinding:
    """Whether other processes hold memory of the GPUs, from rows of (used, total) in MiB before JAX starts."""
    name = "device memory"
    try:
        held = [(float(used), float(total)) for used, total in rows]
    except ValueError:
        held = []
    if not held:
        return DeviceFinding(
            name, "warning", "nvidia-smi does not answer", "install the driver's tools, or mend the driver"
        )
    found = ", ".join(f"{used / 1024:.1f} of {total / 1024:.1f} GiB" for used, total in held) + " in use"
    if any(used > OTHERS_MOST * total for used, total in held):
        fix = "end the other processes (nvidia-smi lists them), or set XLA_CLIENT_MEM_FRACTION to what they leave"
        return DeviceFinding(name, "warning", found, fix)
    return DeviceFinding(name, "ok", found)


# ------------------------------------------------------------------ burn-in


@dataclass(frozen=True)
class BurnIn:
    """The step that is compared: a transformer's in float32 and bfloat16, with plain gradient descent."""

    layers: int
    width: int
    length: int
    batch: int
    steps: int


SMALL, LARGE = BurnIn(1, 32, 32, 2, 2), BurnIn(2, 512, 256, 8, 4)


def burn_in(devices: Sequence[jax.Device], size: BurnIn) -> DeviceFinding:
    """Run the same compiled step twice on each device, and compare all parameters' bits with the first's."""
    digests = {f"{device.device_kind} {device.id}": _bits(device, size) for device in devices}
    return judged_bits(digests, os.environ.get("XLA_FLAGS", ""))


def judged_bits(digests: Mapping[str, Sequence[str]], flags: str) -> DeviceFinding:
    """`digests`: by device, of each run."""
    name, first = "burn-in", next(iter(digests.values()))[0]
    health = "examine the device (dcgmi diag -r 3; nvidia-smi -q -d ECC), and take it out of the cluster"
    if unequal := [device for device, runs in digests.items() if len(set(runs)) > 1]:
        found = f"two runs of one compiled step differ in their bits on {', '.join(unequal)}"
        if any(flag in flags for flag in DETERMINISTIC):
            return DeviceFinding(name, "failure", f"{found}, although XLA was told to be deterministic", health)
        fix = f"set XLA_FLAGS=--{DETERMINISTIC[0]}=true, without which replay is not bit-equal; else {health}"
        return DeviceFinding(name, "warning", found, fix)
    if different := [device for device, runs in digests.items() if runs[0] != first]:
        found = f"{', '.join(different)} computes other bits than {next(iter(digests))}"
        fix = (
            "set XLA_FLAGS=--xla_gpu_autotune_level=0, since kernels are chosen by timing them; if they still differ, "
        )
        return DeviceFinding(name, "warning", found, fix + health)
    return DeviceFinding(name, "ok", f"{sum(map(len, digests.values()))} runs agree in all bits: {first}")


def _bits(device: jax.Device, size: BurnIn) -> list[str]:
    """Digests of the parameters after each of two runs."""
    params = jax.device_put(language.init(jax.random.key(0), _config(size), 256), device)
    tokens = jax.device_put(np.arange(size.batch * (size.length + 1)).reshape(size.batch, -1) * 7919 % 251, device)
    step = _step(size)

    def run() -> str:
        now = params
        for _ in range(size.steps):
            now = step(now, tokens)
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(jax.device_get(now)):
            digest.update(leaf.tobytes())
        return digest.hexdigest()[:16]

    return [run(), run()]


def _config(size: BurnIn) -> language.TransformerConfig:
    return language.TransformerConfig(layers=size.layers, width=size.width, heads=4)


@cache
def _step(size: BurnIn) -> Callable[[Any, Any], Any]:
    """The compiled step: (params, tokens) -> params."""
    config = _config(size)

    def loss(params: Any, tokens: Any) -> jax.Array:
        half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
        both: jax.Array = language.loss(params, tokens, config) + language.loss(half, tokens, config)
        return both

    def step(params: Any, tokens: Any) -> Any:
        gradients = jax.grad(loss)(params, tokens)
        return jax.tree.map(lambda leaf, gradient: leaf - 0.1 * gradient, params, gradients)

    compiled: Callable[[Any, Any], Any] = jax.jit(step)
    return compiled


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("platform", choices=("cpu", *KINDS))
    for finding in findings(arguments.parse_args().platform):
        print(json.dumps(asdict(finding)), flush=True)


if __name__ == "__main__":
    main()

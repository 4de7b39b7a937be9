"""JAX's settings for a process's device, and the fact that records device, host and settings.

Call `fit` before JAX is imported, and the rest after. What JAX found is judged in device_checks.py.
"""

from __future__ import annotations

import hashlib
import os
import platform as host
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from learners.protocol.facts import DeviceTaken
from learners.training.devices import cores
from outer import heap

# Environment variables that XLA and JAX read at start and that can change numbers.
SETTINGS = (
    "XLA_FLAGS",
    "LIBTPU_INIT_ARGS",
    "JAX_ENABLE_X64",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_DEFAULT_PRNG_IMPL",
    "JAX_THREEFRY_PARTITIONABLE",
    "JAX_DISABLE_JIT",
    "NVIDIA_TF32_OVERRIDE",
)

COMPILE_S = 3600.0  # for the ranks of a learner to compile
CPU_FLAGS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"  # one thread
PACKAGES = ("jax", "jaxlib", "numpy")
_VECTORS = ("avx", "amx", "fma", "f16c", "asimd", "sve", "fphp", "bf16")  # prefixes of instruction set names


# JAX's backends by platform. JAX fails if the plugin of one that is named does not work. The second serves callbacks.
BACKENDS = {"gpu": "cuda,cpu", "tpu": "tpu,cpu"}
REHEARSED = "DILOCO_PLATFORM"  # if set, learners take this platform whatever their pools ask for
FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")  # of a GPU's memory; the second is older


@dataclass(frozen=True)
class DeviceFinding:
    """One check of this machine: what was found and, unless all is well, the fix."""

    name: str
    status: Literal["ok", "warning", "failure"]
    found: str
    fix: str = ""


class WrongDevice(RuntimeError):
    """This process does not have the devices that it needs, or one of them computes wrongly."""


def refuse(finding: DeviceFinding) -> None:
    """Raise WrongDevice for a failure."""
    if finding.status == "failure":
        raise WrongDevice(f"{finding.name}: {finding.found}; fix: {finding.fix}")


def asked(platform: str) -> str:
    """The platform to take where a pool asks for this one. Raises WrongDevice if a setting names none."""
    taken = os.environ.get(REHEARSED) or platform
    if taken not in ("cpu", *BACKENDS):
        raise WrongDevice(f"{REHEARSED} = {taken!r} is not one of cpu, gpu, tpu; fix: set one of them, or unset it")
    return taken


def fit(core: int | None, platform: str, devices: int = 1, granted: Sequence[str] | None = None) -> None:
    """Set the environment for JAX. Accelerators keep JAX's defaults.

    On CPUs: one thread, pinned to `core` if given, and a heap that keeps large blocks.

    `platform`: cpu, gpu or tpu. `devices` above 1 on CPUs: XLA simulates that many devices, each with its own thread
    on any core. `granted`: the GPUs that Ray grants. Raises WrongDevice if the environment contradicts them.
    """
    if core is not None and devices == 1:
        cores.pin(core)
    if (taken := asked(platform)) == "cpu":
        flags = os.environ.setdefault("XLA_FLAGS", CPU_FLAGS)
        if devices > 1:
            # In front, because XLA stops reading at a word without a leading hyphen.
            os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices} {flags}"
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        heap.keep_large()
        return
    if taken == "gpu":
        refuse(visible_devices(os.environ, granted))
        refuse(memory_fraction(os.environ))
    os.environ.setdefault("JAX_PLATFORMS", BACKENDS[taken])


def visible_devices(environ: Mapping[str, str], granted: Sequence[str] | None) -> DeviceFinding:
    """Whether CUDA_VISIBLE_DEVICES shows the GPUs that Ray grants; without Ray (None), whether it shows any."""
    name, shown = "visible devices", environ.get("CUDA_VISIBLE_DEVICES")
    ids = [each.strip() for each in (shown or "").split(",") if each.strip()]
    found = "CUDA_VISIBLE_DEVICES is not set" if shown is None else f"CUDA_VISIBLE_DEVICES = {shown!r}"
    unset = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
    if environ.get(unset, "").lower() in ("1", "true"):
        fix = f"unset {unset} on the nodes: learners of one node would all take the same GPUs"
        if granted is None or sorted(ids) != sorted(granted):
            return DeviceFinding(name, "failure", f"{unset} is set, and {found}", fix)
    if granted is None:
        if shown is not None and (not ids or ids[0] in ("-1", "NoDevFiles")):
            return DeviceFinding(name, "failure", f"{found}: it hides every GPU", "unset CUDA_VISIBLE_DEVICES")
        return DeviceFinding(name, "ok", found + ("" if ids else ": every GPU is seen"))
    if sorted(ids) == sorted(granted):
        return DeviceFinding(name, "ok", f"{found}, as Ray grants")
    fix = "leave it to Ray: remove CUDA_VISIBLE_DEVICES from the job's runtime environment and the task's code"
    return DeviceFinding(name, "failure", f"{found}, but Ray grants {','.join(granted) or 'no GPU'}", fix)


def memory_fraction(environ: Mapping[str, str]) -> DeviceFinding:
    """The share of each GPU that XLA takes at its start, as the environment says."""
    name, given = "memory fraction", {each: environ[each] for each in FRACTIONS if environ.get(each)}
    if len(given) > 1:
        found = " and ".join(f"{each} = {value}" for each, value in given.items())
        return DeviceFinding(name, "failure", f"{found} are both set, and XLA refuses that", f"unset {FRACTIONS[1]}")
    if environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "").lower() in ("false", "0"):
        return DeviceFinding(name, "ok", "XLA_PYTHON_CLIENT_PREALLOCATE is off: memory is taken as it is needed")
    if not given:
        return DeviceFinding(name, "ok", "not set: XLA takes 0.75 of each GPU; learners get a fraction from their pool")
    ((each, value),) = given.items()
    if re.fullmatch(r"0?\.\d+|1(\.0*)?", value) and float(value) > 0.0:
        return DeviceFinding(name, "ok", f"{each} = {value}")
    return DeviceFinding(name, "failure", f"{each} = {value!r}", "set a number above 0, and at most 1, such as 0.9")


# ------------------------------------------------------------------ after JAX is imported


def meet(address: str, ranks: int, rank: int, deadline_s: float) -> None:
    """Make this process one of several that are one learner; rank 0 listens at `address`. Call it before any device
    is taken. Raises what JAX raises if not all have come in time.
    """
    import jax

    config: Any = jax.config  # which JAX leaves untyped
    config.update("jax_enable_preemption_service", False)  # it would take the signal by which a learner leaves
    bind = address if address.startswith("127.") else None  # JAX's own choice is every interface
    deadline = max(1, int(deadline_s))
    jax.distributed.initialize(address, ranks, rank, coordinator_bind_address=bind, initialization_timeout=deadline)


def wait_for_ranks() -> None:
    """Wait until every process of this learner is here. Raises what JAX raises if one has ended, or does not come.

    Without a collective: on CPUs those wait for 30 s at most.
    """
    from jax._src import distributed  # there is no public way

    client: Any = distributed.global_state.client
    client.wait_at_barrier("ranks", int(1e3 * COMPILE_S))


def use_compile_cache() -> str | None:
    """Keep compiled programs apart by hardware kind below JAX_COMPILATION_CACHE_DIR. Returns where; None if not set.

    JAX's own key leaves out the CPU's instruction sets; a program for others can end the process (SIGILL).
    """
    base = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if not base:
        return None
    import jax

    device = jax.local_devices()[0]
    folder = cache_folder(base, device.platform, device.device_kind)
    config: Any = jax.config  # which JAX leaves untyped
    config.update("jax_compilation_cache_dir", folder)
    return folder


def cache_folder(base: str, platform: str, device: str) -> str:
    """A folder below `base`, a path or URI, for this host kind, unless `base` ends with it, and this device kind."""
    kind = re.sub(r"[^A-Za-z0-9.]+", "-", platform if device == platform else f"{platform}-{device}").strip("-")
    base = base.rstrip("/")
    return f"{base}/{kind}" if base.endswith(f"/{host_kind()}") else f"{base}/{host_kind()}/{kind}"


def host_kind() -> str:
    """jaxlib's version, the architecture, and a digest of the CPU's instruction sets."""
    digest = hashlib.sha256(_processor()[1].encode()).hexdigest()[:8]
    return f"jaxlib-{version('jaxlib')}-{host.machine()}-{digest}"


def device_taken(devices: int | None, warnings: Mapping[str, str] | None = None) -> DeviceTaken:
    """Describe this process for the log. `devices`: how many local devices a step is spread over; None: all."""
    import jax

    found = jax.local_devices()
    processor, instructions = _processor()
    return DeviceTaken(
        platform=found[0].platform,
        device=found[0].device_kind,
        devices=len(found) if devices is None else devices,
        cores=len(os.sched_getaffinity(0)),
        processor=processor,
        instructions=instructions,
        settings={name: os.environ[name] for name in SETTINGS if name in os.environ},
        versions={"python": host.python_version()} | {name: version(name) for name in PACKAGES},
        warnings=dict(warnings or {}),
    )


def _processor() -> tuple[str, str]:
    """(name, vector instruction sets) of the processor from /proc/cpuinfo; its architecture if that is missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return fields.get("model name", host.machine()), " ".join(sorted(f for f in flags if f.startswith(_VECTORS)))

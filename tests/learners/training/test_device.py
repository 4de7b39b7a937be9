"""Settings for a process's device and cores, and the checks of a learner's start."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import jax
import pytest

from learners.training.devices import cores, device, device_checks
from learners.training.devices.device import FRACTIONS, DeviceFinding, WrongDevice, cache_folder, host_kind
from learners.training.models.decoder_config import DecoderConfig
from tests.learners.training.children import python
from tests.waiting import DEADLINE_S

NOSET = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"


@pytest.fixture(autouse=True)
def _without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*FRACTIONS, NOSET, "CUDA_VISIBLE_DEVICES", "DILOCO_PLATFORM", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


# ------------------------------------------------------------------ before JAX


@pytest.mark.parametrize(
    ("environ", "granted", "status"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, ["0"], "ok"),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, ["1", "3"], "ok"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5e0,GPU-77a"}, ["GPU-5e0", "GPU-77a"], "ok"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ["0"], "failure"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["0"], "failure"),
        ({}, ["0"], "failure"),
        ({NOSET: "1"}, ["0"], "failure"),
        ({NOSET: "1", "CUDA_VISIBLE_DEVICES": "0"}, ["0"], "ok"),
        ({}, None, "ok"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, None, "ok"),
        ({"CUDA_VISIBLE_DEVICES": ""}, None, "failure"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, None, "failure"),
        ({NOSET: "1"}, None, "failure"),
    ],
)
def test_the_gpus_that_are_visible_are_those_that_ray_grants(
    environ: Mapping[str, str], granted: list[str] | None, status: str
) -> None:
    finding = device.visible_devices(environ, granted)
    assert finding.status == status
    assert bool(finding.fix) == (status == "failure")


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({}, "ok"),
        ({FRACTIONS[0]: "0.225"}, "ok"),
        ({FRACTIONS[1]: ".5"}, "ok"),
        ({FRACTIONS[0]: "1.0"}, "ok"),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "ok"),
        ({FRACTIONS[0]: "0.5", FRACTIONS[1]: "0.5"}, "failure"),
        ({FRACTIONS[0]: "90"}, "failure"),
        ({FRACTIONS[0]: "0.0"}, "failure"),
        ({FRACTIONS[0]: "half"}, "failure"),
    ],
)
def test_a_memory_fraction_that_xla_would_refuse_is_found_before_it_starts(
    environ: Mapping[str, str], status: str
) -> None:
    assert device.memory_fraction(environ).status == status


def prepared(platform: str, granted: list[str] | None, **environ: str) -> CompletedProcess[str]:
    """Call `fit`, then the checks of a learner's start, in a process of its own."""
    code = (
        "import os\nfrom learners.training.devices.device import fit\n"
        f"fit(None, {platform!r}, 1, {granted!r})\n"
        "print(os.environ['JAX_PLATFORMS'], flush=True)\n"
        "from learners.training.devices.device_checks import at_start\n"
        f"print(at_start({platform!r}, {granted!r}))\n"
    )
    return python("-c", code, without=("XLA_", "JAX_"), **environ)


def test_a_learner_that_asks_for_a_gpu_does_not_start_on_the_cpu() -> None:
    done = prepared("gpu", ["0"], CUDA_VISIBLE_DEVICES="0")
    assert done.stdout.split() == ["cuda,cpu"]
    assert "WrongDevice: platform: asked for gpu, and JAX has" in done.stderr and "fix: " in done.stderr


def test_settings_that_exclude_the_gpu_or_show_another_end_the_start() -> None:
    done = prepared("gpu", ["0"], CUDA_VISIBLE_DEVICES="0", JAX_PLATFORMS="cpu")
    assert "JAX_PLATFORMS = 'cpu' excludes it; fix: unset JAX_PLATFORMS" in done.stderr
    done = prepared("gpu", ["1"], CUDA_VISIBLE_DEVICES="0,1")
    assert "CUDA_VISIBLE_DEVICES = '0,1', but Ray grants 1" in done.stderr and not done.stdout


def test_a_rehearsal_takes_cpus_and_a_learner_on_cpus_starts_without_warnings() -> None:
    for done in (prepared("gpu", ["0"], DILOCO_PLATFORM="cpu"), prepared("cpu", [])):
        assert done.stdout.split("\n")[:2] == ["cpu", "{}"], done.stderr
    assert "DILOCO_PLATFORM = 'gpus' is not one of" in prepared("gpu", ["0"], DILOCO_PLATFORM="gpus").stderr


# ------------------------------------------------------------------ the platform


@pytest.mark.parametrize(
    ("environ", "seen", "plugin", "words", "fix"),
    [
        ({"JAX_PLATFORMS": "cpu"}, True, True, "JAX_PLATFORMS = 'cpu' excludes it", "unset JAX_PLATFORMS"),
        ({"JAX_PLATFORMS": "cuda,cpu"}, True, False, "plugin for it is not installed", "pip install -e '.[cuda]'"),
        ({}, False, True, "sees no NVIDIA GPU below /dev", "docker run --gpus all"),
        ({"CUDA_VISIBLE_DEVICES": ""}, True, True, "CUDA_VISIBLE_DEVICES is empty", "unset CUDA_VISIBLE_DEVICES"),
        ({}, True, True, "no kernel image", "driver is new enough"),
    ],
)
def test_a_wrong_platform_is_explained(
    environ: Mapping[str, str], seen: bool, plugin: bool, words: str, fix: str
) -> None:
    finding = device_checks.judged_platform("gpu", "cpu", "no kernel image", environ, seen, plugin)
    assert finding.status == "failure"
    assert finding.found.startswith("asked for gpu, and JAX has cpu") and words in finding.found
    assert fix in finding.fix


def test_a_pool_of_cpus_refuses_a_gpu_and_a_pool_of_gpus_another_number_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gpu:
        platform, device_kind = "gpu", "NVIDIA H100"

    monkeypatch.setattr(jax, "local_devices", lambda: [Gpu(), Gpu()])
    assert device_checks.platform_taken("gpu", ["0", "1"]).found == "gpu: 2 x NVIDIA H100"
    assert device_checks.platform_taken("gpu").status == "ok"
    assert device_checks.platform_taken("gpu", ["0"]).status == "failure"
    assert "ask for CPUs only" in device_checks.platform_taken("cpu").found
    with pytest.raises(WrongDevice, match="fix"):
        device_checks.at_start("cpu")


def test_a_platform_that_jax_cannot_start_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(jax, "local_devices", fails)
    assert "JAX has nothing" in device_checks.platform_taken("gpu").found


# ------------------------------------------------------------------ the compile cache


def test_compiled_programs_are_kept_apart_by_host_and_device_kind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = host_kind()
    assert cache_folder("/c/", "gpu", "NVIDIA H100 80GB HBM3") == f"/c/{host}/gpu-NVIDIA-H100-80GB-HBM3"
    assert cache_folder(f"/c/{host}", "cpu", "cpu") == f"/c/{host}/cpu"
    assert cache_folder("gs://bucket/c", "tpu", "TPU v6 lite") == f"gs://bucket/c/{host}/tpu-TPU-v6-lite"
    monkeypatch.setattr(device, "_processor", lambda: ("another", "avx"))
    assert host_kind() != host
    assert device.use_compile_cache() is None
    before = jax.config.jax_compilation_cache_dir
    try:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
        assert device.use_compile_cache() == jax.config.jax_compilation_cache_dir == f"{tmp_path}/{host_kind()}/cpu"
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


# ------------------------------------------------------------------ burn-in


@pytest.mark.parametrize(
    ("second", "flags", "status", "fix"),
    [
        ("a", "", "ok", ""),
        ("b", "", "warning", "--xla_gpu_deterministic_ops=true"),
        ("b", "--xla_gpu_deterministic_ops=true", "failure", "examine the device"),
    ],
)
def test_a_step_whose_bits_differ_is_named_with_the_setting_that_mends_it(
    second: str, flags: str, status: str, fix: str
) -> None:
    finding = device_checks.judged_bits("a", second, flags)
    assert finding.status == status and fix in finding.fix


def test_a_step_is_computed_twice_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_checks, "MODEL", DecoderConfig(layers=1, width=32))
    for name in ("LENGTH", "BATCH", "STEPS"):
        monkeypatch.setattr(device_checks, name, 2)
    assert device_checks.burn_in(jax.local_devices()[0]).status == "ok"


def test_a_start_on_an_accelerator_returns_its_warnings_and_refuses_a_defective_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: dict[str, Any] = {"bits": DeviceFinding("burn-in", "warning", "differ", "set a flag")}
    monkeypatch.setattr(device_checks, "platform_taken", lambda *_: DeviceFinding("platform", "ok", "gpu"))
    monkeypatch.setattr(device_checks, "burn_in", lambda *_: found["bits"])
    assert device_checks.at_start("gpu", ["0"]) == {"burn-in": "differ; fix: set a flag"}
    found["bits"] = DeviceFinding("burn-in", "failure", "differ", "take it out")
    with pytest.raises(WrongDevice, match="burn-in: differ; fix: take it out"):
        device_checks.at_start("gpu", ["0"])


# ------------------------------------------------------------------ standbys: what they do ahead, at a low priority


AHEAD = """
import os, sys
from types import SimpleNamespace
from learners.preparation import Preparation

Preparation(SimpleNamespace(core=None, platform="gpu", devices=None), ["0"]).ahead()
from jax._src import xla_bridge

before = set(sys.modules)
from learners.fragment_io import FragmentIO
from learners.training.devices import device_checks
from learners.training.task import load
from learners.training.trainer import Trainer
from learners.training.tree import deal, left_out

print(sorted(set(sys.modules) - before), xla_bridge._backends)
"""


def test_on_an_accelerator_a_standby_imports_everything_and_takes_no_device() -> None:
    done = python("-c", AHEAD, without=("XLA_", "JAX_"), CUDA_VISIBLE_DEVICES="0")
    assert (done.returncode, done.stdout.strip()) == (0, "[] {}"), done.stderr


# ------------------------------------------------------------------ cores


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_the_step_has_its_core_and_other_threads_have_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_others", set())
    monkeypatch.setattr(cores, "_step", set())
    everything = os.sched_getaffinity(0)
    core, other, seen = min(everything), max(everything), {}
    release, moved = threading.Event(), threading.Event()

    def stay() -> None:
        assert release.wait(DEADLINE_S)
        seen["before"] = os.sched_getaffinity(0)
        cores.move(other)
        seen["moved"] = os.sched_getaffinity(0)

    def pinned() -> None:
        cores.pin(core)
        seen["step"] = os.sched_getaffinity(0)
        inheriting = threading.Thread(target=lambda: seen.update(after=os.sched_getaffinity(0)))
        leaving = threading.Thread(target=lambda: (cores.leave(), seen.update(left=os.sched_getaffinity(0))))
        for thread in (inheriting, leaving):
            thread.start()
            thread.join()
        release.set()
        assert moved.wait(DEADLINE_S)
        seen["step moved"] = os.sched_getaffinity(0)

    threads: list[Any] = [threading.Thread(target=stay), threading.Thread(target=pinned)]
    try:
        threads[0].start()
        threads[1].start()
        threads[0].join()
        moved.set()
        threads[1].join()
    finally:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # another test's thread, ended since it was listed
                os.sched_setaffinity(int(thread), everything)
    others = everything - {core}
    assert seen == {
        "before": others, "step": {core}, "after": {core}, "left": others,
        "moved": everything - {other}, "step moved": {other},
    }  # fmt: skip

"""The environment that a replay needs for bit-equal results, and how this machine differs from it.

Processor and packages cannot be chosen here; differences in them become hints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from learners.protocol.facts import DeviceTaken
from learners.training.devices.device import CPU_FLAGS, SETTINGS
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


def permitted(settings: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """The settings of a log that may be passed on to the process that replays it; unknown names are left out.

    A run's folder may come from anybody, and XLA's flags name files too. So only what learners on CPUs set themselves
    is passed on. Raises TapeError for anything else, unless the user's own environment, `inherited`, has the same.
    """
    kept = {name: value for name, value in settings.items() if name in SETTINGS}
    for name, value in kept.items():
        own = name == "XLA_FLAGS" and re.fullmatch(rf"({COUNT}=\d+)? ?({re.escape(CPU_FLAGS)})?", value)
        if not own and value != inherited.get(name):
            raise TapeError(
                f"its learners had {name} = {value!r}, which may have files read or written here. If you trust it, set "
                f"{name} to the same yourself"
            )
    return kept

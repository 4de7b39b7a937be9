"""What a process must be like to get the bits that the run's learners got, and how far this one is from that.

Pure: compares records. The processor and the packages cannot be chosen here; where they differ, that is a hint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from learners.protocol.facts import DeviceTaken
from learners.training.device import SETTINGS
from orchestrator.replay.incarnation import TapeError, named
from orchestrator.replay.settings import permitted
from orchestrator.replay.tape import Tape

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"  # a step's bits do not depend on cores then
PACKAGES = ("optax", "code")  # of what the run's own record names, what an incarnation's does not


@dataclass(frozen=True)
class Environment:
    """A learner's, as its device was recorded."""

    platform: str
    cores: int
    settings: Mapping[str, str]

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """For a process whose JAX is to have the same settings. Raises TapeError for one that may do more."""
        kept = {name: value for name, value in inherited.items() if name not in (*SETTINGS, "JAX_PLATFORMS")}
        return kept | permitted(self.settings, inherited) | ({"JAX_PLATFORMS": "cpu"} if self.platform == "cpu" else {})


def needed(tape: Tape) -> Environment | None:
    """What one process needs to replay all of the tape; None where none of it was recorded. Raises TapeError."""
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
    return Environment(device.platform, device.cores, device.settings)


def hints(tape: Tape, here: DeviceTaken, packages: Mapping[str, str]) -> list[str]:
    """What is otherwise here than it was in the run, by its record; what was not recorded is named as that."""
    found: dict[str, None] = {}
    for recorded in tape.devices.values():
        for name in ("platform", "device", "devices", "cores", "processor", "instructions"):
            _note(found, name, getattr(recorded, name), getattr(here, name))
        for name in sorted(recorded.settings.keys() | here.settings.keys()):
            _note(found, name, recorded.settings.get(name, "unset"), here.settings.get(name, "unset"))
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
    return (device.platform, device.device, device.devices, threads, *sorted(device.settings.items()))


def _in_words(device: DeviceTaken) -> str:
    settings = " ".join(f"{name}={value!r}" for name, value in sorted(device.settings.items()))
    return f"{device.devices} x {device.device} with {device.cores} cores {settings}".rstrip()

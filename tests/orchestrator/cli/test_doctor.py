"""What doctor finds on a machine, and when it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from learners.training.devices.accelerators import accelerators
from orchestrator.cli import doctor
from tests.orchestrator.calling import invoke


def test_doctor_reports_every_matter() -> None:
    result = invoke("doctor", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["ok"]) == (0, True)
    assert {"authentication", "memory", "cores", "accelerators", "packages"} <= {
        finding["name"] for finding in report["findings"]
    }


def test_doctor_judges_authentication(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    token = tmp_path / "token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    for mode, bits, status in (
        ("", None, "warning"),
        ("disabled", None, "warning"),
        ("token", None, "failure"),
        ("", 0o644, "warning"),
        ("token", 0o644, "failure"),
        ("token", 0o600, "ok"),
        ("tokn", 0o600, "failure"),
    ):
        if mode:
            monkeypatch.setenv("RAY_AUTH_MODE", mode)
        else:
            monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
        if bits is not None:
            token.write_text("secret")
            token.chmod(bits)
        found = [each.status for each in doctor.findings(tmp_path) if each.name == "authentication"]
        assert found == [status], (mode, bits)


def test_doctor_finds_accelerators_and_what_jax_lacks_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev" / "vfio").mkdir(parents=True)
    assert accelerators(tmp_path, ["jax"]) == []
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "vfio/7", "vfio/8", "vfio/vfio"):
        (tmp_path / "dev" / name).touch()
    for group, vendor in (("7", "0x1ae0"), ("8", "0x15b3")):  # a TPU, and a network card
        device = tmp_path / "sys/kernel/iommu_groups" / group / "devices" / "0000:00:05.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
    found = accelerators(tmp_path, ["jax", "jax-cuda13-plugin"])
    assert [(one.kind, one.count, one.usable) for one in found] == [("NVIDIA GPU", 2, True), ("TPU chip", 1, False)]
    monkeypatch.setattr(doctor, "accelerators", lambda: found)
    (finding,) = [entry for entry in doctor.findings(tmp_path) if entry.name == "accelerators"]
    assert (finding.status, finding.fix) == ("warning", "in the checkout: pip install -e '.[tpu]'")
    assert "2 NVIDIA GPUs, 1 TPU chip" in finding.found


def test_doctor_gpu_fails_with_the_reason_on_a_machine_without_one() -> None:
    result = invoke("doctor", "--gpu", "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)["findings"]}
    assert result.exit_code == 2
    assert rows["platform"]["found"].startswith("asked for gpu, and JAX has")
    assert rows["platform"]["fix"] and "burn-in" not in rows


def test_doctor_reports_devices_that_do_not_answer_and_a_process_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    line = '{"name": "platform", "status": "ok", "found": "gpu: 1 x H100", "fix": ""}\n'
    run = doctor.subprocess.run

    def started(code: str) -> None:
        """The process that takes the devices runs this code instead."""
        monkeypatch.setattr(doctor.subprocess, "run", lambda command, **how: run([command[0], "-u", "-c", code], **how))

    started(f"import time; print({line!r}, end=''); time.sleep(60)")
    first, second = doctor.device_findings("gpu", deadline_s=3.0)
    assert (first.found, second.status, second.found) == ("gpu: 1 x H100", "failure", "no answer within 3 s")
    started("import os, sys; print('CUDA_ERROR_ILLEGAL_ADDRESS', file=sys.stderr); sys.stderr.flush(); os.abort()")
    (finding,) = doctor.device_findings("gpu")
    assert finding.status == "failure" and "code -6: CUDA_ERROR_ILLEGAL_ADDRESS" in finding.found

"""Certificates of a cluster's nodes: what deploy/tls/make-certs.sh writes."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

from tests.tools import needs

DEPLOY = Path(__file__).parents[2] / "deploy"


def openssl(*arguments: str | Path) -> str:
    return subprocess.run(["openssl", *arguments], check=True, capture_output=True, text=True).stdout


@needs("openssl", package="openssl")
def test_certificates_verify_name_their_nodes_and_keep_their_keys_private(tmp_path: Path) -> None:
    script, folder = DEPLOY / "tls" / "make-certs.sh", tmp_path / "certs"
    subprocess.run([script, folder, "10.0.0.2,ray-head.example.com"], check=True)
    first = (folder / "10.0.0.2" / "node.crt").read_bytes()
    subprocess.run([script, folder, "10.0.0.2", "fd00::1"], check=True)  # another node, later
    assert (folder / "10.0.0.2" / "node.crt").read_bytes() == first
    names = {"10.0.0.2": "IP Address:10.0.0.2, DNS:ray-head.example.com", "fd00::1": "IP Address:FD00:0:0:0:0:0:0:1"}
    for node, expected in names.items():
        certificate = folder / node / "node.crt"
        assert ": OK" in openssl("verify", "-CAfile", folder / node / "ca.crt", certificate)
        said = openssl("x509", "-in", certificate, "-noout", "-ext", "subjectAltName,extendedKeyUsage")
        assert f"{expected}, IP Address:127.0.0.1, DNS:localhost" in said
        assert "TLS Web Server Authentication, TLS Web Client Authentication" in said
        assert stat.S_IMODE((folder / node / "node.key").stat().st_mode) == 0o600
        assert stat.S_IMODE((folder / node).stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "ca.key").stat().st_mode) == 0o600
    refused = subprocess.run([script, folder, "a b"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "NODE = a b" in refused.stderr
    assert not (folder / "a b").exists()

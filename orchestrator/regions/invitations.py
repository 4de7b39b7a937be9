"""Who may do what through a door: its certificate, and a token for each region. They lie in FOLDER/.door.

.door/certificate    the private key and the self-signed certificate, made once
.door/regions/eu     the SHA-256 of the token of region eu; without the file the region may do nothing
.door/address        where the door said last that it can be reached
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import hmac
import os
import re
import secrets
import ssl
import uuid
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from orchestrator.regions.mail import FOLDER
from outer.journal.door import SECRET
from outer.journal.object_store import Folder

CONTROL = "control"  # the region of the syncer and the orchestrator, which may do everything
RIGHTS = "read everything, write its own mail, and create learners' parts of checkpoints"  # of any other
LEARNERS_PART = re.compile(r"(?:.+/)?checkpoints/\d{6}/[^/]+\.\d+")
CERTIFICATE, ADDRESS = "certificate", "address"


class Invitations:
    """The certificate and the tokens of one door."""

    def __init__(self, folder: Path) -> None:
        """Makes the certificate if there is none. Raises OSError."""
        self._root = folder / ".door"
        (self._root / "regions").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root.chmod(0o700)
        try:
            content = (self._root / CERTIFICATE).read_bytes()
        except FileNotFoundError:
            content = _certificate()
            try:
                Folder(self._root).create(CERTIFICATE, [content])
            except FileExistsError:  # another process was faster
                content = (self._root / CERTIFICATE).read_bytes()
        certificate = x509.load_pem_x509_certificate(content)
        self.fingerprint = certificate.fingerprint(hashes.SHA256()).hex()

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self._root / CERTIFICATE)
        return context

    @property
    def address(self) -> str:
        """HOST:PORT as the door said it last."""
        try:
            return (self._root / ADDRESS).read_text()
        except FileNotFoundError:
            return "HOST:PORT"

    @address.setter
    def address(self, address: str) -> None:
        self._write(ADDRESS, address)

    def invite(self, region: str) -> str:
        """Make a token for a region, in place of an earlier one. Return what its processes need. Raises ValueError."""
        secret = secrets.token_urlsafe(32)
        invitation = f"{region}:{secret}:{self.fingerprint}"
        if not SECRET.fullmatch(invitation):
            raise ValueError("must be lower-case letters, digits and `-`, at most 63")
        self._write(f"regions/{region}", _digest(secret))
        return invitation

    def region(self, authorization: str) -> str:
        """Return the region whose token this is. Raises PermissionError."""
        region, _, secret = authorization.removeprefix("Bearer ").partition(":")
        if not SECRET.fullmatch(f"{region}:{secret}:{self.fingerprint}"):
            raise PermissionError(errno.EACCES, "a request without a token; see `diloco invite`")
        try:
            expected = (self._root / "regions" / region).read_text()
        except FileNotFoundError:
            raise PermissionError(errno.EACCES, f"no region {region} is invited; see `diloco invite`") from None
        if not hmac.compare_digest(expected, _digest(secret)):
            raise PermissionError(errno.EACCES, f"this is not the newest token of region {region}")
        return region

    def _write(self, name: str, text: str) -> None:
        draft = self._root / f".{uuid.uuid4().hex}"
        draft.write_text(text)
        os.replace(draft, self._root / name)


def require(region: str, method: str, name: str) -> None:
    """Raises PermissionError where a region may not do that."""
    if region == CONTROL or method == "GET" or (method == "PUT" and LEARNERS_PART.fullmatch(name)):
        return
    _, mail, place = f"/{name}".partition(f"/{FOLDER}/")
    to, _, rest = place.partition("/")
    if mail and (rest.startswith(f"{region}/") or (to == region and method == "DELETE")):
        return
    verb = {"PUT": "create", "DELETE": "remove"}.get(method, method)
    raise PermissionError(errno.EACCES, f"region {region} may not {verb} this: it may {RIGHTS}")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _certificate() -> bytes:
    """A private key and its certificate, in PEM. Clients know it by its fingerprint, so names and dates say nothing."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "diloco door")])
    begin = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    made = (
        x509.CertificateBuilder(subject_name=name, issuer_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin.replace(year=2120))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + made.public_bytes(serialization.Encoding.PEM)

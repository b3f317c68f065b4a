"""Certificates for the server and keys for nodes. Private keys are made where they are used and never travel."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.flower.deploy.processes import require_flower

CA, CERTIFICATE, KEY, AUTHORITY_KEY = "ca.crt", "server.pem", "server.key", "ca.key"
YEARS = 3


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Make an authority and a certificate for these host names and addresses, signed by it."""
    require_flower()
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    if not hosts:
        raise PotluckError(
            "The certificate needs a name; pass --host with what nodes will call this machine."
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = name("Potluck federation")
    key_usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    root = (
        _certificate(issuer, issuer, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
    )
    leaf = (
        _certificate(name(hosts[0]), issuer, server.public_key())
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
        )
    )
    _write_certificate(folder / CA, root, authority)
    _write_certificate(folder / CERTIFICATE, leaf, authority)
    _write_key(folder / AUTHORITY_KEY, authority)
    _write_key(folder / KEY, server)


def make_node_key(path: Path, name: str) -> Path:
    """Make a node's key pair in Flower's form; return the public half, which tells the server the node's name."""
    require_flower()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    _write_secret(path, private)
    public = path.with_name(path.name + ".pub")
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        + f" {name}\n".encode()
    )
    return public


def name_in_key(public_key: Path) -> str:
    """Return the name that a node gave with its public key: the only one under which this key may take part."""
    try:
        _, _, name = public_key.read_text(encoding="utf-8").strip().split(" ", 2)
    except (OSError, ValueError):
        raise PotluckError(
            f"{str(public_key)!r} is no public key with a name; use the file that potluck node init wrote, or pass "
            "--name with the name of its node.toml."
        ) from None
    return name


def _certificate(subject: Any, issuer: Any, key: Any) -> Any:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
    )


def _host(text: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _write_certificate(path: Path, builder: Any, key: Any) -> None:
    from cryptography.hazmat.primitives import hashes, serialization

    signed = builder.sign(key, hashes.SHA384())
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def _write_key(path: Path, key: Any) -> None:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.PKCS8
    _write_secret(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _write_secret(path: Path, data: bytes) -> None:
    if path.exists():
        raise PotluckError(
            f"{str(path)!r} exists already; a key is never overwritten, so move it away first."
        )
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)

"""A certificate authority for tests, and server certificates that it signs."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Issued:
    certificate: Path
    key: Path


class Authority:
    """Its own certificate is at `ca_file`."""

    def __init__(self, directory: Path, name: str = "Test CA") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        certificate = builder(self._name, self._name, self._key.public_key(), timedelta(days=30))
        certificate = certificate.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._certificate = certificate.sign(self._key, hashes.SHA256())
        self.ca_file = directory / f"{name.replace(' ', '-')}.pem"
        self.ca_file.write_bytes(pem(self._certificate))

    def issue(self, *hosts: str, days: float = 30, file: str = "server") -> Issued:
        """A certificate for host names and addresses, and its key with the mode 0600. Replaces files of that name."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = builder(_name("server"), self._name, key.public_key(), timedelta(days=days))
        certificate = certificate.add_extension(alternative_names(hosts), critical=False)
        issued = Issued(self._directory / f"{file}.pem", self._directory / f"{file}.key")
        issued.certificate.write_bytes(pem(certificate.sign(self._key, hashes.SHA256())))
        issued.key.touch(mode=0o600)
        issued.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return issued


def builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=60))
        .not_valid_after(now + life)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def alternative_names(hosts: Iterable[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(list(map(_host, hosts)))


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)

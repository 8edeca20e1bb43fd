"""The certificate authority of an installation, and the certificates for servers' names and addresses that it signs.

`cryptography` is imported where a certificate is made: a start with an authority that exists does not load it.
"""

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_CA_NAME = "Trainyard of this machine"
_LEAF_NAME = "Trainyard server"
"""The common name of a certificate for an address, which OpenSSL would take for a host name."""

_CA_LIFETIME = timedelta(days=3650)
_LIFETIME = timedelta(days=7)
_SKEW = timedelta(hours=1)
_BEGIN = "-----BEGIN CERTIFICATE-----"
_NO_DOMAIN, _NO_ADDRESSES = "invalid", [ipaddress.ip_network("0.0.0.0/32"), ipaddress.ip_network("::/128")]
"""Those that nobody has. An authority without a constraint of a kind may sign every name of that kind."""

_KEY_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


class OwnAuthority:
    """An authority for names below `domains` and the addresses among them alone, made once: key and certificate are in
    `file`, which only its owner can read. `names` may have addresses too.

    `refresh` gives `context` a certificate for `names` of seven days, and a new one after half of them. Servers with
    the same file have certificates of the same authority. It is for several threads. Raises OSError, ValueError for a
    file that is not ours.
    """

    def __init__(self, file: Path, domains: Sequence[str], names: Sequence[str]) -> None:
        self._file = file
        self._names = names
        if not file.exists():
            _make(file, domains)
        text = file.read_text("ascii")
        self.ca = text[text.index(_BEGIN) :]
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._renew_at = datetime.min.replace(tzinfo=UTC)
        self._lock = Lock()

    def refresh(self, now: datetime) -> None:
        """Renew the certificate if half of its time is over. Connections that are open keep theirs. Raises ValueError,
        TypeError for a file that is not ours."""
        with self._lock:
            if now >= self._renew_at:
                self._renew(now)
                self._renew_at = now + _LIFETIME / 2

    def _renew(self, now: datetime) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        text = self._file.read_bytes()
        signer = serialization.load_pem_private_key(text, None)
        if not isinstance(signer, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{self._file} has a key of another kind")
        issuer, key = x509.load_pem_x509_certificate(text).subject, ec.generate_private_key(ec.SECP256R1())
        leaf = (
            _builder(self._names[0] if _address(self._names[0]) is None else _LEAF_NAME, issuer, key, now, _LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(list(map(_subject, self._names))), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
            .sign(signer, hashes.SHA256())
        )
        with tempfile.NamedTemporaryFile(dir=self._file.parent, prefix=".leaf-") as file:  # mode 0600
            file.write(_pem(key, leaf))
            file.flush()
            self.context.load_cert_chain(file.name)


def _make(file: Path, domains: Sequence[str]) -> None:
    """Write a new authority. Of servers that start at the same time the first one's stays."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _CA_NAME)])
    uses = dict.fromkeys(_KEY_USES, False) | {"key_cert_sign": True, "crl_sign": True}
    certificate = (
        _builder(_CA_NAME, name, key, datetime.now(UTC), _CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**uses), critical=True)
        .add_extension(x509.NameConstraints(_constraints(domains), None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(_pem(key, certificate))
            opened.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(draft, file)
    finally:
        Path(draft).unlink()


def _subject(name: str) -> "x509.GeneralName":
    from cryptography import x509

    address = _address(name)
    return x509.DNSName(name) if address is None else x509.IPAddress(address)


def _constraints(domains: Sequence[str]) -> "list[x509.GeneralName]":
    """The names and addresses that an authority may sign: of a kind that it has none of, none."""
    from cryptography import x509

    addresses = [address for domain in domains if (address := _address(domain)) is not None]
    names = [domain for domain in domains if _address(domain) is None] or [_NO_DOMAIN]
    networks = [ipaddress.ip_network(address) for address in addresses] or _NO_ADDRESSES
    return [*map(x509.DNSName, names), *map(x509.IPAddress, networks)]


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _builder(
    subject: str, issuer: "x509.Name", key: "ec.EllipticCurvePrivateKey", now: datetime, life: timedelta
) -> "x509.CertificateBuilder":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
    )


def _pem(key: "ec.EllipticCurvePrivateKey", certificate: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives import serialization

    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)

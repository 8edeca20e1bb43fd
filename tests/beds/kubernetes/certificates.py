"""The bed's own authority, and certificates that name people, programs and machines of Kubernetes."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """Writes `NAME.crt` and `NAME.key` into a directory; its own certificate is `ca.crt`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trainyard-bed")])
        builder = self._builder(self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = directory / "ca.crt"
        self.certificate.write_bytes(self._signed(builder))

    def issue(self, file: str, user: str, group: str = "", hosts: tuple[str, ...] = ()) -> None:
        """A certificate for a client, and for a server at `hosts`: names and addresses."""
        key = self.key(file)
        names = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
        if group:
            names.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = self._builder(x509.Name(names), key.public_key())
        if hosts:
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        (self._directory / f"{file}.crt").write_bytes(self._signed(builder))

    def key(self, file: str) -> ec.EllipticCurvePrivateKey:
        """A new key, as `NAME.key` and `NAME.pub`."""
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        path = self._directory / f"{file}.key"
        path.touch(mode=0o600)
        path.write_bytes(private)
        path.with_suffix(".pub").write_bytes(public)
        return key

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + 30 * _DAY)
        )

    def _signed(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)

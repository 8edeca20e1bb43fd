"""The bed's own authority, and certificates that name people, programs and machines of Kubernetes."""

from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from beds.certificates import alternative_names, builder, pem

_LIFE = timedelta(days=30)


class Authority:
    """Writes `NAME.crt` and `NAME.key` into a directory; its own certificate is `ca.crt`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trainyard-bed")])
        certificate = builder(self._name, self._name, self._key.public_key(), _LIFE)
        certificate = certificate.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = directory / "ca.crt"
        self.certificate.write_bytes(pem(certificate.sign(self._key, hashes.SHA256())))

    def issue(self, file: str, user: str, group: str = "", hosts: tuple[str, ...] = ()) -> None:
        """A certificate for a client, and for a server at `hosts`: names and addresses."""
        key = self.key(file)
        names = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
        if group:
            names.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = builder(x509.Name(names), self._name, key.public_key(), _LIFE)
        if hosts:
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
            certificate = certificate.add_extension(alternative_names(hosts), critical=False)
        certificate = certificate.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        (self._directory / f"{file}.crt").write_bytes(pem(certificate.sign(self._key, hashes.SHA256())))

    def key(self, file: str) -> ec.EllipticCurvePrivateKey:
        """A new key, as `NAME.key` and `NAME.pub`."""
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        path = self._directory / f"{file}.key"
        path.touch(mode=0o600)
        path.write_bytes(private)
        path.with_suffix(".pub").write_bytes(public)
        return key

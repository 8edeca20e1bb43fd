"""The server's certificate and private key, for TLS."""

import logging
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.net.private_files import exposure_of

if TYPE_CHECKING:
    from cryptography import x509

_SOON = timedelta(days=14)
_DAY = timedelta(days=1)

logger = logging.getLogger(__name__)


class Certificate:
    """A certificate with its key, in a context for connections. Their files are read again when they change.

    `names` are the host names in the certificate when it was first read. Raises InvalidArgument for files that cannot
    be used, or a key that others can read.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self._loaded = self._stamp()
        self._refused: object = None
        self._warn_at = datetime.min.replace(tzinfo=UTC)
        self.context = _context(certificate, key)
        parsed = _parsed(certificate)
        self.names = _names(parsed)
        self._expires = parsed.not_valid_after_utc

    def refresh(self, now: datetime) -> None:
        """Read the files again if they have changed, and warn once a day of a certificate that ends soon.

        New connections have the new certificate. Files that cannot be used are logged once; the old ones stay in use.
        """
        stamp = self._stamp()
        if stamp not in (self._loaded, self._refused):
            try:
                # A pair that does not match would break the one in use.
                _context(self._certificate, self._key)
                expires = _parsed(self._certificate).not_valid_after_utc
                self.context.load_cert_chain(self._certificate, self._key, password=_refuse_encrypted)
            except (InvalidArgument, OSError, ValueError) as error:
                self._refused = stamp
                message = error.message if isinstance(error, InvalidArgument) else str(error)
                logger.error("The old certificate stays in use. %s", message)  # noqa: TRY400 - says what to do
            else:
                self._loaded, self._refused, self._expires = stamp, None, expires
                self._warn_at = now
                logger.info("Read the certificate %s again: valid until %s.", self._certificate, expires)
        if now >= self._warn_at:
            self._warn_at = now + _DAY
            if self._expires - now < _SOON:
                state = "has expired" if self._expires <= now else "expires soon"
                logger.warning("The certificate %s %s: %s.", self._certificate, state, self._expires)

    def _stamp(self) -> tuple[object, ...]:
        return tuple(map(_stamp, (self._certificate, self._key)))


def _stamp(path: Path) -> object:
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_ino, status.st_mtime_ns, status.st_size


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Raises InvalidArgument."""
    try:
        with key.open("rb") as file:
            status = os.fstat(file.fileno())
        exposure = exposure_of(key, status.st_mode, status.st_uid == os.geteuid())
    except OSError as error:
        raise InvalidArgument(f"--tls-key: {key} cannot be read: {error.strerror}.") from error
    if exposure is not None and exposure.is_grave:
        raise InvalidArgument(f"--tls-key: {exposure.message}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_refuse_encrypted)
    except ssl.SSLError as error:
        raise InvalidArgument(_what_is_wrong(certificate, key, error)) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        name = f"--tls-cert: {certificate} cannot be read" if isinstance(error, OSError) else f"--tls-key: {key}"
        raise InvalidArgument(f"{name}: {reason}.") from error
    return context


def _what_is_wrong(certificate: Path, key: Path, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"The key {key} (--tls-key) is not that of the certificate {certificate} (--tls-cert)."
    return (
        f"--tls-cert {certificate} and --tls-key {key} must be PEM files: the server's certificate and then those "
        f"of its authorities in the first, its key without a password in the second ({error.reason or error})."
    )


def _refuse_encrypted() -> NoReturn:
    raise ValueError("the key is encrypted, and nobody is asked for its password. Remove it: openssl pkey -in KEY")


def _parsed(certificate: Path) -> "x509.Certificate":
    """The server's own certificate, the first in the file. Raises InvalidArgument."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"--tls-cert: {certificate} cannot be read: {error}.") from error


def _names(certificate: "x509.Certificate") -> tuple[str, ...]:
    from cryptography import x509

    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound as error:
        raise InvalidArgument(
            "--tls-cert: the certificate names no host (it has no subjectAltName), so no client accepts it."
        ) from error
    return tuple(extension.value.get_values_for_type(x509.DNSName))

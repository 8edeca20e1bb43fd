"""Trust in a server's certificate: which authorities clients accept, and what to do about a certificate that fails."""

import ssl
from pathlib import Path

from trainyard_protocol.errors import InvalidArgument

CA_FILE_VARIABLE = "TRAINYARD_CA_FILE"

_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAME, _OTHER_ADDRESS = 62, 64
_UNKNOWN_ISSUER = (2, 18, 19, 20, 21)
_NO_TLS = frozenset(
    ("HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "WRONG_VERSION_NUMBER")
)
"""Reasons of OpenSSL for an answer that is not TLS."""

_BROKEN_OFF = (ssl.SSLEOFError, ssl.SSLSyscallError, ssl.SSLZeroReturnError)
"""A connection that ends within TLS: the network, or a server that ends. Trying again may help."""


def client_context(ca_file: Path | None = None) -> ssl.SSLContext:
    """The TLS settings of a client: it accepts the authorities of `ca_file` alone, or those of the operating system
    (on Linux of SSL_CERT_FILE and SSL_CERT_DIR, where set). Raises InvalidArgument for a file without certificates."""
    if ca_file is None:
        import truststore

        context: ssl.SSLContext = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The server's own certificate may be given as well.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # SSLError is one
            reason = "it holds no certificate in PEM form" if isinstance(error, ssl.SSLError) else error.strerror
            raise InvalidArgument(f"The CA file {ca_file} cannot be used: {reason}.") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def tls_failure(error: BaseException, url: str, ca_file: Path | None) -> str:
    """Message about a failure of TLS, with what to do, from a client's exception; "" if it is about something else,
    such as a network that breaks off."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"The certificate of the server at {url} is not accepted: {_reason(cause, ca_file)}"
    if not isinstance(cause, ssl.SSLError) or isinstance(cause, _BROKEN_OFF):
        return ""
    if cause.reason in _NO_TLS:
        return f"There is no TLS at {url} ({cause.reason}): does the server there speak http:// only?"
    return f"TLS with the server at {url} fails ({cause.reason or cause})."


def _reason(error: ssl.SSLCertVerificationError, ca_file: Path | None) -> str:
    match error.verify_code:
        case code if code in _UNKNOWN_ISSUER:
            if ca_file is not None:
                return f"the authorities in {ca_file} have not signed it. Get the right CA file from its operator."
            return (
                "no authority that this machine trusts has signed it. Get the CA certificate from the server's "
                f"operator and give it with --ca-file FILE or {CA_FILE_VARIABLE}, or add it to the operating system's."
            )
        case code if code in (_OTHER_NAME, _OTHER_ADDRESS):
            return f"{error.verify_message.rstrip('.')}. Use a name that it has, or have one made for this name."
        case code if code == _EXPIRED:
            return "it has expired. Have the server's operator renew it; the clock of this machine may also be wrong."
        case code if code == _NOT_YET_VALID:
            return "it is not valid yet. Check the clocks of this machine and of the server."
        case _:
            return f"{error.verify_message or error}."

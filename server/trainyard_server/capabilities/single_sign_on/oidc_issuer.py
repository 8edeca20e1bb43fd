"""Client of an OpenID Connect issuer: its metadata and keys, and the exchange of a code for an ID token."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from trainyard_protocol.errors import Unauthenticated, Unavailable
from trainyard_protocol.net.trust import client_context
from trainyard_server.capabilities.single_sign_on.oidc import ALGORITHMS, Attempt, authorization_url
from trainyard_server.capabilities.single_sign_on.options import OidcOptions
from trainyard_server.storage.agent_liveness import Stopwatch

_T = TypeVar("_T")

_METADATA_PATH = "/.well-known/openid-configuration"
_KEEP_S = 3600.0
_KEYS_AGAIN_S = 60.0  # at most so often for a token with an unknown key
_TIMEOUT_S = 10.0
_MAX_ANSWER = 2**20
_KEY_TYPES = ("RSA", "EC", "OKP")

_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class IssuerFailed(Unavailable):
    """The issuer did not answer, or not as OpenID Connect requires."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The issuer of single sign-on cannot be used now: {reason}. Try again, or use a token.")


@dataclass(frozen=True, slots=True)
class _Metadata:
    """Description of the issuer by itself (OpenID Connect Discovery 1.0)."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    secret_in_body: bool


@dataclass(slots=True)
class _Kept(Generic[_T]):
    """A value that was read at a time of the stopwatch."""

    value: _T
    at: float


class OidcIssuer:
    """One issuer. Requests block for 10 seconds at most. Thread-safe."""

    def __init__(self, options: OidcOptions, stopwatch: Stopwatch) -> None:
        self._options = options
        self._stopwatch = stopwatch
        self._lock = threading.Lock()
        self._metadata: _Kept[_Metadata] | None = None
        self._keys: _Kept[KeySet] | None = None

    def authorization_url(self, attempt: Attempt) -> str:
        """The issuer's sign-in page for the attempt. Raises IssuerFailed."""
        options = self._options
        endpoint = self._read_metadata().authorization_endpoint
        return authorization_url(endpoint, options.client_id, options.redirect_url, attempt)

    def claims(self, code: str, attempt: Attempt) -> Mapping[str, Any]:
        """The claims of the ID token for a code, with its signature checked, and nothing else.

        Raises Unauthenticated for a refused code or an invalid token, IssuerFailed.
        """
        metadata = self._read_metadata()
        return self._verified(self._exchange(metadata, code, attempt), metadata)

    def _exchange(self, metadata: _Metadata, code: str, attempt: Attempt) -> str:
        options = self._options
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": options.redirect_url,
            "client_id": options.client_id,
            "code_verifier": attempt.verifier,
        }
        auth = None
        if options.client_secret and metadata.secret_in_body:
            form["client_secret"] = options.client_secret
        elif options.client_secret:
            auth = httpx.BasicAuth(_quoted(options.client_id), _quoted(options.client_secret))
        status, answer = self._call("POST", metadata.token_endpoint, data=form, auth=auth)
        if status == 400 and answer.get("error") == "invalid_grant":
            raise Unauthenticated("The issuer did not accept this sign-in: it was used before, or took too long.")
        if status != 200:
            raise IssuerFailed(f"its token endpoint answered {status}{_reason(answer)}")
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise Unauthenticated("The issuer gave no ID token that can be used. Sign in again.")
        return token

    def _verified(self, token: str, metadata: _Metadata) -> Mapping[str, Any]:
        for again in (False, True):  # with the newest keys, if it is signed by an unknown one
            try:
                return jwt.decode(token, self._read_keys(metadata, again), algorithms=list(ALGORITHMS)).claims
            except (JoseError, ValueError, TypeError, RecursionError) as error:
                problem = error
        raise Unauthenticated(
            "The issuer's ID token cannot be used: its signature is not by a key of the issuer. Sign in again."
        ) from problem

    def _read_metadata(self) -> _Metadata:
        with self._lock:
            kept = self._metadata
        if kept is not None and self._stopwatch() - kept.at < _KEEP_S:
            return kept.value
        value = self._fetched_metadata()
        with self._lock:
            self._metadata = _Kept(value, self._stopwatch())
        return value

    def _fetched_metadata(self) -> _Metadata:
        issuer = self._options.issuer
        status, metadata = self._call("GET", issuer.rstrip("/") + _METADATA_PATH)
        if status != 200:
            raise IssuerFailed(f"{issuer.rstrip('/')}{_METADATA_PATH} answered {status}")
        if metadata.get("issuer") != issuer:
            raise IssuerFailed(f"it calls itself {metadata.get('issuer')!r:.200}, and --oidc-issuer is {issuer!r}")
        endpoints = {name: metadata.get(name) for name in _ENDPOINTS}
        # An issuer of this machine may have http:// endpoints.
        schemes = ("https://", "http://") if issuer.startswith("http://") else "https://"
        for name, url in endpoints.items():
            if not isinstance(url, str) or not url.startswith(schemes):
                raise IssuerFailed(f"its {name} is not an https:// address")
        methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        in_body = "client_secret_basic" not in methods and "client_secret_post" in methods
        return _Metadata(**{name: str(url) for name, url in endpoints.items()}, secret_in_body=in_body)

    def _read_keys(self, metadata: _Metadata, again: bool) -> KeySet:
        with self._lock:
            kept = self._keys
        age = _KEEP_S if kept is None else self._stopwatch() - kept.at
        if kept is not None and age < (_KEYS_AGAIN_S if again else _KEEP_S):
            return kept.value
        status, document = self._call("GET", metadata.jwks_uri)
        listed = document.get("keys")
        if status != 200 or not isinstance(listed, list):
            raise IssuerFailed(f"its keys cannot be read (status {status})")
        public = [key for key in listed if isinstance(key, dict) and _signs(key)]
        try:
            keys = KeySet.import_key_set({"keys": public})
        except (JoseError, ValueError, TypeError) as error:
            raise IssuerFailed("its keys cannot be read") from error
        with self._lock:
            self._keys = _Kept(keys, self._stopwatch())
        return keys

    def _call(self, method: Literal["GET", "POST"], url: str, **given: Any) -> tuple[int, dict[str, Any]]:
        """The status and the JSON object of an answer, {} for another one. Raises IssuerFailed."""
        try:
            given.setdefault("auth", None)
            headers = {"Accept": "application/json"}
            with (
                httpx.Client(timeout=_TIMEOUT_S, headers=headers, verify=client_context()) as client,
                client.stream(method, url, **given) as answer,
            ):
                return answer.status_code, _object(answer)
        except httpx.HTTPError as error:
            raise IssuerFailed(f"{url} does not answer ({type(error).__name__})") from error


def _object(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer; {} if it is none, or too large."""
    body = bytearray()
    for part in answer.iter_bytes():
        body += part
        if len(body) > _MAX_ANSWER:
            return {}
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _signs(key: Mapping[str, Any]) -> bool:
    """Whether the key can check signatures. One for another purpose or of an unknown type would spoil the set."""
    return key.get("kty") in _KEY_TYPES and key.get("use", "sig") == "sig" and "d" not in key


def _reason(answer: Mapping[str, Any]) -> str:
    error = answer.get("error")
    return f" ({error!r:.100})" if isinstance(error, str) else ""


def _quoted(text: str) -> str:
    """An id or secret as RFC 6749, section 2.3.1 has it in the Authorization header."""
    return quote(text, safe="")

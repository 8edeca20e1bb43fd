"""An OpenID Connect issuer on loopback for tests: who asks is signed in, as the account that the test has set."""

import json
import secrets
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, KeyParameters, KeySet, RSAKey
from joserfc.util import urlsafe_b64encode

CLIENT = "trainyard client"  # a space: the Authorization header has it encoded
SECRET = "a secret: of the issuer"


@dataclass
class Issuer:
    """`account`: the claims of the next ID token. `spoil`: replaces claims, `headers` the token's header. `answers`:
    replaces the JSON of a path."""

    url: str = ""
    account: dict[str, Any] = field(default_factory=lambda: {"email": "carl@example.com", "email_verified": True})
    spoil: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    public: bool = False
    now: float = 0
    calls: list[str] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rotate("RS256")

    def rotate(self, algorithm: str) -> None:
        """New signing key; the old one is gone."""
        kid = secrets.token_hex(4)
        parameters: KeyParameters = {"kid": kid, "use": "sig"}
        key = (
            RSAKey.generate_key(2048, parameters=parameters)
            if algorithm.startswith("RS")
            else ECKey.generate_key("P-256", parameters=parameters)
        )
        self.keys = {"key": key, "alg": algorithm, "kid": kid}

    def authorize(self, url: str) -> str:
        """The address that the issuer's page sends the browser back to."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(8)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?code={code}&state={asked['state']}"

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize?tenant=1",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
        }

    def key_set(self) -> dict[str, Any]:
        """The public keys, and keys for other purposes, as issuers have."""
        mine = KeySet([self.keys["key"]]).as_dict(private=False)["keys"]
        return {"keys": [{"kty": "new"}, {"kty": "RSA", "use": "enc", "n": "AQAB", "e": "AQAB"}, *mine]}

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        if not self.public:
            user, _, secret = b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
            if (unquote(user), unquote(secret)) != (CLIENT, SECRET):
                return 401, {"error": "invalid_client"}
        asked = self.codes.pop(form["code"], None)
        if asked is None:
            return 400, {"error": "invalid_grant"}
        challenge = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).decode()
        assert challenge == asked["code_challenge"]
        assert form["redirect_uri"] == asked["redirect_uri"]
        claims = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": "17",
            "iat": int(self.now),
            "exp": int(self.now) + 300,
            "nonce": asked["nonce"],
            **self.account,
            **self.spoil,
        }
        header = {"alg": self.keys["alg"], "kid": self.keys["kid"], **self.headers}
        key = self.keys["key"] if header["alg"] == self.keys["alg"] else self.keys["other"]
        id_token = jwt.encode(header, claims, key, algorithms=[header["alg"]])
        return 200, {"id_token": id_token, "token_type": "Bearer", "access_token": "x"}

    def answer(self, method: str, path: str, body: bytes, authorization: str) -> tuple[int, Any]:
        self.calls.append(path)
        if path in self.answers:
            return self.answers[path]
        if (method, path) == ("POST", "/token"):
            form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            return self.token(form, authorization)
        return 200, {"/.well-known/openid-configuration": self.metadata, "/keys": self.key_set}[path]()


@contextmanager
def issuing(now: float) -> Iterator[Issuer]:
    issuer = Issuer(now=now)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def _serve(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            authorization = self.headers.get("authorization", "")
            status, answer = issuer.answer(method, self.path, body, authorization)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing: tests look at `calls`."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()

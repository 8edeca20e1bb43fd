"""Connection to a cluster: address, certificates and credentials, of a kubeconfig or of a pod's service account."""

import base64
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_EXEC_S = 60.0
_TOKEN_S = 60.0  # a service account's token is replaced in its file
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_REFUSED = {
    "auth-provider": "auth-provider was removed from Kubernetes; use an exec plugin",
    "username": "password authentication was removed from Kubernetes",
    "as": "impersonation is not supported",
}


class BadKubeconfig(Exception):
    """A kubeconfig that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class KubeConnection:
    """Address and credentials of an API server. `namespace` is that of the kubeconfig's context, or of the pod."""

    server: str
    tls: ssl.SSLContext
    auth: httpx.Auth | None
    namespace: str


class TokenAuth(httpx.Auth):
    """A bearer token, asked for again when it was refused or has expired. `fetch` returns it with the (wall-clock) time
    until which it is used."""

    def __init__(self, fetch: Callable[[], tuple[str, float]]) -> None:
        self._fetch = fetch
        self._token, self._until = "", 0.0

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        is_new = self._refresh(time.time() >= self._until)
        request.headers["Authorization"] = f"Bearer {self._token}"
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED and not is_new:
            self._refresh(True)
            request.headers["Authorization"] = f"Bearer {self._token}"
            yield request

    def _refresh(self, needed: bool) -> bool:
        if needed:
            self._token, self._until = self._fetch()
        return needed


def connect(kubeconfig: Path | None, context: str = "") -> KubeConnection:
    """The connection of a kubeconfig's context ("": its current one); without a file that of the pod which this is.

    Raises BadKubeconfig.
    """
    if kubeconfig is None:
        return _of_pod()
    try:
        config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        return _of_context(config, context, kubeconfig.absolute().parent)
    except (OSError, yaml.YAMLError, ssl.SSLError, ValueError) as error:
        raise BadKubeconfig(f"{kubeconfig}: {error}") from error
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise BadKubeconfig(f"{kubeconfig} is no kubeconfig: {error!r}") from error


def _of_pod() -> KubeConnection:
    host, port = (os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
    if not host or not SERVICE_ACCOUNT.is_dir():
        raise BadKubeconfig("This is no pod with a service account. Name a file with --kubeconfig.")
    tls = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
    namespace = (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    host = f"[{host}]" if ":" in host else host
    return KubeConnection(f"https://{host}:{port}", tls, _token_file(SERVICE_ACCOUNT / "token"), namespace)


def _of_context(config: Mapping[str, Any], name: str, directory: Path) -> KubeConnection:
    name = name or config.get("current-context") or ""
    context = _named(config, "contexts", name)["context"]
    cluster = _named(config, "clusters", context["cluster"])["cluster"]
    user = _named(config, "users", context["user"])["user"] or {}
    if cluster.get("insecure-skip-tls-verify"):
        raise ValueError("insecure-skip-tls-verify is refused: give the cluster's certificate-authority")
    if cluster.get("proxy-url"):
        raise ValueError("proxy-url is not supported")
    server = str(cluster["server"])
    if not server.startswith("https://"):
        raise ValueError(f"the address of cluster {context['cluster']} is not https: {server}")
    for field, why in _REFUSED.items():
        if user.get(field):
            raise ValueError(f"{field}: {why}")
    tls = _tls(cluster, user, directory)
    return KubeConnection(server.rstrip("/"), tls, _auth(user, directory), context.get("namespace") or "default")


def _named(config: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    matching: list[dict[str, Any]] = [entry for entry in config.get(kind) or () if entry["name"] == name]
    if not matching:
        names = ", ".join(entry["name"] for entry in config.get(kind) or ()) or "none"
        raise ValueError(f"there is no {kind.rstrip('s')} {name!r} (there is: {names})")
    return matching[0]


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], directory: Path) -> ssl.SSLContext:
    authority = _content(cluster, "certificate-authority", directory)
    tls = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
    certificate, key = (_content(user, field, directory) for field in ("client-certificate", "client-key"))
    if certificate and key:
        with tempfile.TemporaryDirectory(prefix="trainyard-") as private:  # Python reads them from files only
            pair = Path(private, "pair.pem")
            pair.touch(mode=0o600)
            pair.write_bytes(certificate.rstrip() + b"\n" + key)
            tls.load_cert_chain(pair)
    return tls


def _content(part: Mapping[str, Any], field: str, directory: Path) -> bytes:
    """The bytes of FIELD-data, or of the file FIELD; empty if neither is there."""
    if data := part.get(f"{field}-data"):
        return base64.b64decode(data)
    return (directory / part[field]).read_bytes() if part.get(field) else b""


def _auth(user: Mapping[str, Any], directory: Path) -> httpx.Auth | None:
    if user.get("token"):
        token = str(user["token"])
        return TokenAuth(lambda: (token, float("inf")))
    if user.get("tokenFile"):
        return _token_file(directory / user["tokenFile"])
    if plugin := user.get("exec"):
        if plugin.get("apiVersion") not in _EXEC_VERSIONS:
            raise ValueError(f"exec: the apiVersion must be one of {', '.join(_EXEC_VERSIONS)}")
        return TokenAuth(lambda: _run_plugin(plugin, directory))
    return None


def _token_file(path: Path) -> TokenAuth:
    def read() -> tuple[str, float]:
        try:
            return path.read_text(encoding="utf-8").strip(), time.time() + _TOKEN_S
        except OSError as error:  # it is being replaced
            raise httpx.TransportError(f"the token cannot be read: {error}") from error

    return TokenAuth(read)


def _run_plugin(plugin: Mapping[str, Any], directory: Path) -> tuple[str, float]:
    """Run a credential plugin, such as that of a cloud."""
    words = [str(plugin["command"]), *map(str, plugin.get("args") or ())]
    if "/" in words[0]:
        words[0] = str(directory / words[0])
    added = {str(variable["name"]): str(variable["value"]) for variable in plugin.get("env") or ()}
    info = {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential", "spec": {"interactive": False}}
    environment = {**os.environ, **added, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    try:
        answer = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=_EXEC_S, check=True)
        status = json.loads(answer.stdout)["status"]
        ends = status.get("expirationTimestamp")
        until = datetime.fromisoformat(ends.replace("Z", "+00:00")).timestamp() if ends else float("inf")
        return str(status["token"]), until
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()[-1:] or [f"exit code {error.returncode}"]
        raise httpx.TransportError(f"the credential plugin {words[0]} failed: {lines[0]}") from error
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise httpx.TransportError(f"the credential plugin {words[0]} gave no token: {error}") from error

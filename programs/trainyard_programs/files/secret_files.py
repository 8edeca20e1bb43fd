"""Recognises files that hold a secret of their owner: keys, tokens, passwords.

The name decides where one means nothing else (`.env`). Elsewhere the content decides, so that neither a program that
handles keys nor a public certificate is taken for one.
"""

import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

_MAX_BYTES = 2**16
"""What is read of a file. Larger ones hold data."""

_SMALLEST = 12
_MOST_OBJECTS = 20

_EXAMPLES = frozenset({"example", "examples", "sample", "template", "tmpl", "tpl", "dist", "default", "defaults"})
_CODE = frozenset(
    {".py", ".pyi", ".pyx", ".ipynb", ".c", ".h", ".cc", ".cpp", ".cu", ".cuh", ".hpp", ".rs", ".go", ".java", ".js"}
    | {".ts", ".jsx", ".tsx", ".rb", ".lua", ".jl", ".r", ".scala", ".kt", ".swift", ".sh", ".bash", ".md", ".rst"}
    | {".html", ".css", ".svg", ".xml", ".csv", ".tsv", ".jsonl", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp"}
    | {".npy", ".npz", ".pt", ".pth", ".bin", ".safetensors", ".parquet", ".wav", ".mp3", ".flac", ".mp4", ".zip"}
    | {".gz", ".tar", ".whl", ".so", ".pkl", ".h5", ".tfrecord", ".diff", ".patch", ".lock", ".log"}
)
"""Endings of programs, pages and data, in which a key would be an example or a line of text."""

_PRIVATE_KEY = re.compile(
    r"^-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----[ \t]*\r?\n"
    r"(?:[A-Za-z-]+: .*\r?\n)*\s*[A-Za-z0-9+/=]{16,}|^---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----",
    re.M,
)
_OF_KEYS = re.compile(
    r"-----BEGIN |---- BEGIN SSH2|Bag Attributes|subject=|issuer=|(?:RSA )?Private-Key|Certificate:"
    r"|PuTTY-User-Key-File-"
)
_PUTTY = re.compile(r"PuTTY-User-Key-File-\d:.*^Private-Lines: \d", re.S | re.M)
_AGE = re.compile(r"^AGE-SECRET-KEY-1[A-Z0-9]{20,}", re.M)
_WIREGUARD = re.compile(r"^\[Interface\]\s.*?^PrivateKey\s*=\s*[A-Za-z0-9+/]{42,}=", re.S | re.M)
_TOKEN = re.compile(
    r"\s*(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|sk-[\w-]{20,}"
    r"|xox[abprs]-[\w-]{20,}|ya29\.[\w.-]{20,}|hvs\.[\w-]{20,}|dckr_pat_[\w-]{20,}|npm_\w{30,}|pypi-[\w-]{40,})\s*"
)
_HUGGING_FACE = re.compile(r"^\s*hf_token\s*=\s*hf_", re.M)
_AWS = re.compile(r"^\s*aws_secret_access_key\s*=\s*\S{16,}", re.M | re.I)
_NETRC = re.compile(r"(?:^|\s)(?:machine\s+\S+|default)\s(?:[^#]*?\s)?password\s+\S", re.S)
_PASSWORD = re.compile(r"^\s*(?:password|passwd|api_?key|secret_?key|secret|token)\s*[=:]\s*[^\s$<{]", re.M | re.I)
_NPM = re.compile(r"^[^#;\n]*(?:_authToken|_auth|_password|npmAuthToken)\s*[=:]\s*[\"']?[^\s\"'$]", re.M)
_GIT_CREDENTIALS = re.compile(r"^https?://[^\s:/@]+:[^\s@]+@", re.M)
_PGPASS = re.compile(r"^[^#:\s]+:[^:]*:[^:]*:[^:]+:.+", re.M)
_BOTO = re.compile(r"^\s*(?:gs_oauth2_refresh_token|gs_secret_access_key|aws_secret_access_key)\s*=\s*\S", re.M)
_RCLONE = re.compile(r"^\s*(?:secret_access_key|token|pass|client_secret|service_account_credentials)\s*=\s*\S", re.M)
_KUBECONFIG = re.compile(
    r"^\s*-?\s*(?:client-key-data|token|password|id-token|refresh-token):[ \t]*[\"']?[^\s\"'{$<]", re.M
)
_OF_KUBERNETES = re.compile(r"(?=.*^kind:[ \t]*[\"']?Config\b)(?=.*^(?:clusters|users):)", re.M | re.S)
_VARIABLE = re.compile(
    r"^\s*(?:export\s+)?\w*(?:SECRET|TOKEN|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIAL)\w*\s*=\s*"
    r"[\"']?[^\s\"'$<#]",
    re.M | re.I,
)

_BY_NAME: Mapping[str, tuple[str, "re.Pattern[str]"]] = {
    ".netrc": ("passwords of hosts", _NETRC),
    "_netrc": ("passwords of hosts", _NETRC),
    ".pypirc": ("credentials of a package index", _PASSWORD),
    ".npmrc": ("credentials of a package index", _NPM),
    ".yarnrc.yml": ("credentials of a package index", _NPM),
    ".git-credentials": ("credentials of git", _GIT_CREDENTIALS),
    ".pgpass": ("passwords of a database", _PGPASS),
    ".my.cnf": ("passwords of a database", _PASSWORD),
    ".boto": ("cloud credentials", _BOTO),
    ".s3cfg": ("cloud credentials", _PASSWORD),
    "rclone.conf": ("cloud credentials", _RCLONE),
    "secrets.toml": ("passwords and tokens", _VARIABLE),
    "stored_tokens": ("token", _HUGGING_FACE),
    ".envrc": ("environment file", _VARIABLE),
}
"""What files of these names are, if their content says it too."""


def secret_in(path: str, status: os.stat_result) -> str:
    """The kind of secret that a regular file looks like: `environment file`, `private key`; "" for none."""
    name = path.rpartition("/")[2]
    if _is_environment_file(name):
        return "environment file"
    stem, dot, ending = name.rpartition(".")
    suffix = f".{ending.lower()}" if stem and dot else ""
    is_of_size = _SMALLEST <= status.st_size <= _MAX_BYTES
    if not is_of_size or (suffix in _CODE and name not in _BY_NAME):
        return ""
    return _by_content(path, name, suffix, (status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev))


def _is_environment_file(name: str) -> bool:
    """Whether a name is that of a file of variables, and not of an example of one."""
    if name != ".env" and not name.startswith(".env."):
        return False
    return not _EXAMPLES.intersection(name.split("."))


@lru_cache(maxsize=200_000)
def _by_content(path: str, name: str, suffix: str, _version: tuple[int, ...]) -> str:
    """The kind by the content, which is read once for each version of a file."""
    data = _head(path)
    text = _text(data)
    if text is None:
        return _in_binary(data, name, suffix)
    if _holds_private_key(text, suffix):
        return "private key"
    if _TOKEN.fullmatch(text):
        return "token"
    if text.lstrip().startswith(("{", "[{")):
        return _in_json(text, name)
    kind, pattern = _BY_NAME.get(name, ("", _TOKEN))
    if kind and pattern.search(text):
        return kind
    if _AWS.search(text):
        return "cloud credentials"
    if suffix == ".env" and not _EXAMPLES.intersection(re.split(r"[\W_]", name)) and _VARIABLE.search(text):
        return "environment file"
    if _OF_KUBERNETES.search(text) and _KUBECONFIG.search(text):
        return "credentials of a cluster"
    return ""


def _head(path: str) -> bytes:
    """The beginning of a file; empty where it cannot be read: who sends it says so."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _MAX_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _text(data: bytes) -> str | None:
    """The text of a file; None for a binary one."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    if b"\0" in data:
        return None
    return data.decode("utf-8-sig", errors="replace")


def _holds_private_key(text: str, suffix: str) -> bool:
    """Whether a text is a file of keys, and one of them is private."""
    if suffix == ".ovpn":
        return _PRIVATE_KEY.search(text) is not None
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith(("#", ";", "//"))), "")
    if _OF_KEYS.match(first) or suffix in (".pem", ".key"):
        return _PRIVATE_KEY.search(text) is not None or _PUTTY.search(text) is not None
    return _AGE.match(first) is not None or _WIREGUARD.search(text) is not None


def _in_binary(data: bytes, name: str, suffix: str) -> str:
    """The kind of a file that is no text."""
    if suffix in (".p12", ".pfx") and data.startswith(b"\x30"):
        return "private key"
    is_of_gcloud = name in ("credentials.db", "access_tokens.db") and data.startswith(b"SQLite format 3")
    return "cloud credentials" if is_of_gcloud else ""


def _in_json(text: str, name: str) -> str:
    """The kind of an object of JSON, or of a list of some."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    objects = content if isinstance(content, list) else [content]
    checked = [part for part in objects[:_MOST_OBJECTS] if isinstance(part, dict)]
    return next((kind for part in checked for kind, holds in _JSON_KINDS if holds(part, name)), "")


def _has(content: Mapping[str, Any], *names: str) -> bool:
    """Whether an object has a text for each of the names, which is no place for one (`${TOKEN}`, `<token>`)."""
    values = [content.get(name) for name in names]
    return all(isinstance(value, str) and value and not value.startswith(("$", "<", "{")) for value in values)


def _is_login(content: Mapping[str, Any], name: str) -> bool:
    """Credentials of a user or a client of a cloud: Google's, AWS's, Azure's."""
    clients = [part for key in ("installed", "web") if isinstance(part := content.get(key), dict)]
    keys = [content, *(part for part in content.values() if isinstance(part, dict))]
    return (
        any(_has(part, "client_id", "client_secret") for part in (content, *clients))
        or _has(content, "refresh_token", "client_id")
        or _has(content, "clientId", "clientSecret")
        or any(_has(part, "SecretAccessKey", "AccessKeyId") for part in keys)
        or any(_has(part, "secretAccessKey", "accessKeyId") for part in keys)
        or (name in _OF_AZURE and bool(content))
    )


_OF_AZURE = frozenset({"accessTokens.json", "msal_token_cache.json", "azureProfile.json"})


def _is_docker_login(content: Mapping[str, Any], _: str) -> bool:
    logins = content.get("auths")
    entries = logins.values() if isinstance(logins, dict) else ()
    return any(isinstance(entry, dict) and (_has(entry, "auth") or _has(entry, "identitytoken")) for entry in entries)


def _is_private_jwk(content: Mapping[str, Any], _: str) -> bool:
    keys = content.get("keys")
    parts = [content, *(keys if isinstance(keys, list) else ())]
    return any(isinstance(part, dict) and _has(part, "kty", "d") for part in parts)


_KEY = "PRIVATE KEY"
_JSON_KINDS: tuple[tuple[str, Callable[[Mapping[str, Any], str], bool]], ...] = (
    ("key of a service account", lambda content, _: _has(content, "private_key") and _KEY in content["private_key"]),
    ("private key", _is_private_jwk),
    ("cloud credentials", _is_login),
    ("credentials of an image registry", _is_docker_login),
    ("credentials of Kaggle", lambda content, name: name == "kaggle.json" and _has(content, "username", "key")),
)

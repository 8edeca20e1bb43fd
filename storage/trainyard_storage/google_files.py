"""Files for Google's clients: the key, certificates, variables, and a configuration of gcloud."""

import json
import os
import shlex
import shutil
import sqlite3
import ssl
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard_protocol.errors import FailedPrecondition

if TYPE_CHECKING:
    from trainyard_protocol.answers.google import GoogleKey

CONFIGURATION = "trainyard"
"""The name of gcloud's configuration."""

_MARK = "# Made by `trainyard connect google`; `trainyard disconnect google` removes it."
_ROOTS = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "HTTPLIB2_CA_CERTS",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
)
"""Variables that name a file of authorities: of Python's ssl, requests, curl, httplib2, gRPC and gcloud."""
_SYSTEM_ROOTS = (
    Path("/etc/ssl/certs/ca-certificates.crt"),
    Path("/etc/pki/tls/certs/ca-bundle.crt"),
    Path("/etc/ssl/cert.pem"),
)
_PROXIES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


@dataclass(frozen=True, slots=True)
class GoogleRecord:
    """Record of a connection, for its undoing. `server`: where the keys were made; `number`: that of the newest;
    `earlier`: those of the others, which programs may still use; `made`: directories of gcloud that were not there,
    the innermost last; `hosts`: whether names were added to the hosts file."""

    server: str
    number: str
    domain: str
    local: bool
    configuration: str
    made: tuple[str, ...] = ()
    hosts: bool = False
    earlier: tuple[str, ...] = ()

    @property
    def numbers(self) -> tuple[str, ...]:
        return (*self.earlier, self.number)


class GoogleFiles:
    """The files in one directory, which only its owner can read."""

    def __init__(self, directory: Path, environment: Mapping[str, str] = os.environ) -> None:
        self._directory = directory
        self._environment = environment
        self._record = directory / "connection.json"
        self.key = directory / "key.json"
        self.gcloud_key = directory / "gcloud-key.json"
        self.ca = directory / "ca.pem"
        self.roots = directory / "roots.pem"
        self.env = directory / "env"

    def record(self) -> GoogleRecord | None:
        """The connection there is. Raises FailedPrecondition for a file that cannot be read."""
        try:
            data = json.loads(self._record.read_text(encoding="utf-8"))
            fields = {**data, "made": tuple(data["made"]), "earlier": tuple(data.get("earlier", ()))}
            return GoogleRecord(**fields)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise FailedPrecondition(f"{self._record} is damaged: remove it, and connect again.") from error

    def save(self, record: GoogleRecord) -> None:
        self._write(self._record, json.dumps(asdict(record), indent=2))

    def write(self, key: "GoogleKey", server: str, project: str, *, local: bool, storage: str = "") -> GoogleRecord:
        """Write all files, and return the record of it. `storage`: the address of gs:// for google-cloud-storage, which
        takes a universe from no variable; with a secret. Raises FailedPrecondition where somebody else's is in the
        way, OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        account = {
            "type": "service_account",
            "project_id": project,
            "private_key_id": key.key_id,
            "private_key": key.private_key,
            "client_email": key.email,
            "client_id": key.number,
            "token_uri": key.token_uri,
        }
        self._write(self.key, json.dumps({**account, "universe_domain": key.domain}, indent=2))
        # gcloud asks Google about a universe that it does not know; it has the addresses from its configuration.
        self._write(self.gcloud_key, json.dumps(account, indent=2))
        self._write(self.ca, key.ca)
        self._write(self.roots, f"{system_roots(self._environment, self.roots)}\n{key.ca}")
        exports = (
            f"export {name}={shlex.quote(value)}" for name, value in self._variables(key, project, storage).items()
        )
        self._write(self.env, "\n".join(exports))
        gcloud = self._gcloud_directory()
        _forget_tokens(gcloud / "access_tokens.db", key.email)
        configuration = gcloud / "configurations" / f"config_{CONFIGURATION}"
        made = self._write_configuration(configuration, key, project)
        record = GoogleRecord(server, key.number, key.domain, local, str(configuration), made)
        self.save(record)
        return record

    def remove(self, record: GoogleRecord) -> None:
        """Remove all files, and the directories that were made for them and are empty."""
        configuration = Path(record.configuration)
        if _is_ours(configuration):
            configuration.unlink()
        active = configuration.parents[1] / "active_config"
        if active.is_file() and active.read_text(encoding="utf-8").strip() == CONFIGURATION:
            active.write_text("default", encoding="utf-8")
        for directory in reversed(record.made):
            if Path(directory).is_dir() and not any(Path(directory).iterdir()):
                Path(directory).rmdir()
        shutil.rmtree(self._directory)

    def _variables(self, key: "GoogleKey", project: str, storage: str) -> dict[str, str]:
        variables = {
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.key),
            "GOOGLE_CLOUD_UNIVERSE_DOMAIN": key.domain,
            "GOOGLE_CLOUD_PROJECT": project,
            "CLOUDSDK_ACTIVE_CONFIG_NAME": CONFIGURATION,
            **dict.fromkeys(_ROOTS, str(self.roots)),
            **({"STORAGE_EMULATOR_HOST": storage} if storage else {}),
        }
        if any(self._environment.get(name) for name in _PROXIES):
            names = self._environment.get("no_proxy") or self._environment.get("NO_PROXY") or ""
            ours = f".{key.domain.partition(':')[0]}"
            if ours not in names.split(","):
                names = ",".join(filter(None, (names, ours)))
            variables |= {"no_proxy": names, "NO_PROXY": names}
        return variables

    def _write_configuration(self, file: Path, key: "GoogleKey", project: str) -> tuple[str, ...]:
        """Returns the directories that were made. Raises FailedPrecondition."""
        if file.exists() and not _is_ours(file):
            raise FailedPrecondition(
                f"gcloud has a configuration {CONFIGURATION} already, which is not ours: {file}. Rename or remove it."
            )
        before = self.record()
        created = [str(directory) for directory in reversed(file.parents) if not directory.exists()]
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        sections: dict[str, dict[str, Any]] = {
            "core": {
                "project": project,
                "account": key.email,
                "custom_ca_certs_file": self.roots,
                "disable_usage_reporting": True,
            },
            "auth": {"credential_file_override": self.gcloud_key, "token_host": key.token_uri},
            "api_endpoint_overrides": {
                "ml": f"https://ml.{key.domain}/",
                # gcloud puts the region before a host that begins with aiplatform, and leaves others as they are.
                "aiplatform": f"https://ml.{key.domain}/",
                "logging": f"https://logging.{key.domain}/",
                "storage": f"https://storage.{key.domain}/storage/v1/",
            },
        }
        lines = [_MARK]
        for section, values in sections.items():
            lines += [f"[{section}]", *(f"{name} = {value}" for name, value in values.items()), ""]
        self._write(file, "\n".join(lines))
        return tuple(dict.fromkeys([*(before.made if before else ()), *created]))

    def _gcloud_directory(self) -> Path:
        named = self._environment.get("CLOUDSDK_CONFIG")
        return Path(named).absolute() if named else Path.home() / ".config" / "gcloud"

    def _write(self, path: Path, text: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{text.rstrip()}\n")


def system_roots(environment: Mapping[str, str], besides: Path) -> str:
    """The authorities that clients here accept without us. `besides` is our own file."""
    chosen = [Path(value) for name in _ROOTS if (value := environment.get(name))]
    default = ssl.get_default_verify_paths().cafile
    candidates = [*chosen, *([Path(default)] if default else []), *_SYSTEM_ROOTS]
    for path in candidates:
        if path != besides and path.is_file():
            return path.read_text(encoding="utf-8", errors="replace")
    return ""


def _forget_tokens(database: Path, account: str) -> None:
    """Remove what gcloud keeps of an account: tokens of a revoked key, with which its next command would be refused."""
    if database.is_file():
        with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as kept, kept:
            kept.execute("DELETE FROM access_tokens WHERE account_id = ?", (account,))


def _is_ours(file: Path) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8", errors="replace").startswith(_MARK)

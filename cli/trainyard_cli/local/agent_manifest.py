"""Objects of an agent in a Kubernetes cluster: those of `deploy/kubernetes/`, for one server, image and namespace."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.mounts import load_mounts
from trainyard_protocol.job.runtimes import load_runtimes

ACCESS = "trainyard-agent-token"
"""The Secret with the agent's token, and the CA certificates of its server."""

CONFIG = "trainyard-agent-{}"
"""The ConfigMap with a file of the agent: runtimes or mounts."""

_CA_FILE = "ca.pem"
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class AgentManifest:
    """`token`: "" prints no Secret, which is then made by hand. `runtimes` and `mounts` are the agent's
    files. `options` are those of `python -m trainyard_agent`."""

    server: str
    image: str
    namespace: str
    token: str = ""
    ca_file: Path | None = None
    runtimes: Path | None = None
    mounts: Path | None = None
    options: Sequence[str] = ()

    def text(self) -> str:
        """The objects as YAML. Raises InvalidArgument."""
        if not _NAMESPACE.fullmatch(self.namespace):
            raise InvalidArgument(
                f"{self.namespace!r} cannot be a namespace: lower-case letters, digits and -, at most 63."
            )
        return yaml.safe_dump_all(list(self._objects()), sort_keys=False, allow_unicode=True)

    def secret_command(self) -> str:
        """The command that makes the Secret by hand."""
        files = ["token=TOKEN_FILE"] + ([f"{_CA_FILE}={self.ca_file}"] if self.ca_file is not None else [])
        given = " ".join(f"--from-file={file}" for file in files)
        return f"kubectl -n {self.namespace} create secret generic {ACCESS} {given}"

    def _objects(self) -> Iterator[dict[str, Any]]:
        for object_ in base():
            match object_["kind"]:
                case "Namespace":
                    object_["metadata"]["name"] = self.namespace
                case "Deployment":
                    object_["metadata"]["namespace"] = self.namespace
                    if self.token:
                        yield self._secret()
                    pod = object_["spec"]["template"]["spec"]
                    self._complete(pod["containers"][0])
                    if self.runtimes is not None:
                        load_runtimes(self.runtimes)  # it can be read, and is valid
                        yield self._file("runtimes", self.runtimes, pod)
                    if self.mounts is not None:
                        load_mounts(self.mounts)
                        yield self._file("mounts", self.mounts, pod)
                case _:
                    object_["metadata"]["namespace"] = self.namespace
                    for subject in object_.get("subjects", ()):
                        subject["namespace"] = self.namespace
            yield object_

    def _complete(self, container: dict[str, Any]) -> None:
        container["image"] = self.image
        container["args"] += [option.replace("$", "$$") for option in self.options]
        (server,) = (entry for entry in container["env"] if entry["name"] == "SERVER")
        server["value"] = self.server
        if self.ca_file is not None:
            (mount,) = (entry for entry in container["volumeMounts"] if entry["name"] == "access")
            container["env"].append({"name": "TRAINYARD_CA_FILE", "value": f"{mount['mountPath']}/{_CA_FILE}"})

    def _file(self, option: str, file: Path, pod: dict[str, Any]) -> dict[str, Any]:
        """The ConfigMap with a file, which the pod gets as that option of its agent."""
        directory, name = f"/etc/trainyard-{option}", f"{option}.yaml"
        (container,) = pod["containers"]
        container["args"].append(f"--{option}={directory}/{name}")
        container["volumeMounts"].append({"name": option, "mountPath": directory, "readOnly": True})
        pod["volumes"].append({"name": option, "configMap": {"name": CONFIG.format(option)}})
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": CONFIG.format(option), "namespace": self.namespace},
            "data": {name: file.read_text(encoding="utf-8")},
        }

    def _secret(self) -> dict[str, Any]:
        values = {"token": self.token}
        if self.ca_file is not None:
            try:
                values[_CA_FILE] = self.ca_file.read_text(encoding="ascii")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not text"
                raise InvalidArgument(f"The CA file {self.ca_file} cannot be read: {reason}.") from error
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": ACCESS, "namespace": self.namespace},
            "stringData": values,
        }


def base() -> Iterator[dict[str, Any]]:
    """The objects of `deploy/kubernetes/`, in the order in which they can be made."""
    packaged = Path(__file__).parents[1] / "deploy" / "kubernetes"
    directory = packaged if packaged.is_dir() else Path(__file__).parents[3] / "deploy" / "kubernetes"
    for name in ("agent.yaml", "deployment.yaml"):
        yield from yaml.safe_load_all((directory / name).read_text(encoding="utf-8"))

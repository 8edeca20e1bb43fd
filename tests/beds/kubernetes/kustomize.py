"""The objects of deploy/, as `kubectl kustomize` gives them, of what the files use: resources and ConfigMaps of files,
without the suffix of their names."""

from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[3] / "deploy"

Object = dict[str, Any]


def objects(name: str) -> list[Object]:
    """The objects of deploy/NAME/kustomization.yaml."""
    kustomization: Object = yaml.safe_load((DEPLOY / name / "kustomization.yaml").read_text())
    made: list[Object] = []
    for resource in kustomization["resources"]:
        path = DEPLOY / name / resource
        made += objects(str(path.resolve().relative_to(DEPLOY))) if path.is_dir() else documents(path)
    for generator in kustomization.get("configMapGenerator", []):
        data = {file: (DEPLOY / name / file).read_text() for file in generator["files"]}
        if generator.get("behavior") == "replace":
            named(made, "ConfigMap", generator["name"])["data"] = data
        else:
            metadata = {"name": generator["name"], "namespace": kustomization["namespace"]}
            made.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    return made


def documents(path: Path) -> list[Object]:
    return list(yaml.safe_load_all(path.read_text()))


def named(made: list[Object], kind: str, name: str) -> Object:
    (found,) = (one for one in made if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def container(workload: Object) -> Object:
    """The only container of a workload's pods."""
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    found: Object = only
    return found

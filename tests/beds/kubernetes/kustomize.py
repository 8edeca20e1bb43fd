"""The objects of deploy/, as `kubectl kustomize` gives them, of what the files use: resources and patches of JSON."""

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
    for patch in kustomization.get("patches", []):
        target = named(made, patch["target"]["kind"], patch["target"]["name"])
        for operation in yaml.safe_load(patch["patch"]):
            _apply(target, operation)
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


def _apply(target: Any, operation: Object) -> None:
    """An operation of JSON Patch: `add` at the end of a list, or `replace`."""
    *above, last = operation["path"].strip("/").split("/")
    for step in above:
        target = target[int(step) if isinstance(target, list) else step]
    if operation["op"] == "add":
        assert last == "-"
        target.append(operation["value"])
    else:
        assert operation["op"] == "replace"
        target[int(last) if isinstance(target, list) else last] = operation["value"]

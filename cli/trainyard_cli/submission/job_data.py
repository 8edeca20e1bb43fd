"""Data of a job as a config and flags say it, before anything is checked."""

import copy
from collections.abc import Mapping
from typing import Any


class _Text:
    """A field that is a text, "" where it is absent, by its path."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, data: "JobData", owner: type["JobData"]) -> str:
        return str(data.get(self._path) or "")

    def __set__(self, data: "JobData", text: str) -> None:
        data.put(self._path, text)


class JobData:
    """A job with the values that a file has, which may be anything: what is wrong with them is said when the job is
    checked. A field is read and set in the file's spelling, `jobDir` or `job_dir`."""

    job_id = _Text("jobId")
    job_dir = _Text("trainingInput.jobDir")
    module = _Text("trainingInput.pythonModule")
    image = _Text("trainingInput.masterConfig.imageUri")
    """The master's."""
    scale_tier = _Text("trainingInput.scaleTier")
    machine_type = _Text("trainingInput.masterType")
    """The master's."""
    goal = _Text("trainingInput.hyperparameters.goal")

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.body: dict[str, Any] = copy.deepcopy(dict(given))

    def get(self, path: str) -> Any:
        """One field, `trainingInput.workerCount`; None if absent."""
        node: Any = self.body
        for name in path.split("."):
            if not isinstance(node, Mapping):
                return None
            node = node.get(_spelling(node, name))
        return node

    def put(self, path: str, value: object) -> bool:
        """Set one field. False if a parent is not a mapping."""
        node: Any = self.body
        *parents, last = path.split(".")
        for name in parents:
            key = _spelling(node, name)
            if node.get(key) is None:
                node[key] = {}
            node = node[key]
            if not isinstance(node, dict):
                return False
        node[_spelling(node, last)] = value
        return True

    def training(self, name: str) -> Any:
        """A field of the training input; None if absent."""
        return self.get(f"trainingInput.{name}")

    def put_training(self, name: str, value: object) -> None:
        self.put(f"trainingInput.{name}", value)

    def has_replicas(self, role: str) -> bool:
        """Whether it asks for replicas of a role beside the master."""
        return str(self.training(f"{role}Count") or "0") != "0"


ROLES = ("worker", "parameterServer", "evaluator")
"""The roles beside the master, as they begin the names of their fields."""


def snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def _spelling(mapping: Mapping[Any, Any], name: str) -> str:
    """`name` (camelCase) as the mapping spells it: snake_case if it has that key."""
    other = snake(name)
    return other if other in mapping and name not in mapping else name

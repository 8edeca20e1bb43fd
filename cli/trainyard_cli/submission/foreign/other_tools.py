"""Files of other tools where a job's config or program is expected: which tool they are of, and what to write instead.

A file is recognised by the keys of its first level, as text: such a file may be no YAML, or several documents.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_KEY = re.compile(r"""^["']?([A-Za-z_$][\w.$-]*)["']?[ \t]*:[ \t]*(?:["']?([\w./-]*))""", re.M)
_BATCH = re.compile(r"^#(SBATCH|PBS|BSUB)[ \t]", re.M)
_SCHEDULERS = {"SBATCH": "Slurm", "PBS": "PBS", "BSUB": "LSF"}
_OUR_KEYS = frozenset({"trainingInput", "training_input"})
_HEAD = 20_000  # bytes of a script, whose directives come first

_OTHERS = "docs/coming-from/others.md"
_BATCH_FLAGS = "--ntasks is --worker-count (and the master), --cpus-per-task is --cpus, --array is --sweep"


@dataclass(frozen=True, slots=True)
class _Tool:
    """A tool whose files have all keys of `keys`, with these values where one is given, and one of `any_of`."""

    name: str
    keys: Mapping[str, str]
    any_of: frozenset[str]
    advice: str


def _tool(name: str, keys: str, any_of: str, advice: str) -> _Tool:
    pairs = (key.partition("=")[::2] for key in keys.split())
    return _Tool(name, dict(pairs), frozenset(any_of.split()), advice)


_TOOLS = (
    _tool(
        "a dstack configuration",
        "type=task|dev-environment|service|fleet|volume|gateway",
        "",
        "`commands` are --package-path with arguments after --, `nodes` is --worker-count (and the master), "
        "`resources` are --cpus and --master-accelerator, `env` is --env. Read "
        f"{_OTHERS}#dstack",
    ),
    _tool(
        "a SkyPilot task",
        "run",
        "resources setup workdir num_nodes file_mounts envs secrets name",
        "`run` is --package-path with arguments after --, `num_nodes` is --worker-count (and the master), `resources` "
        f"are --cpus and --master-accelerator, `envs` are --env. Read {_OTHERS}#skypilot",
    ),
    _tool(
        "a sweep of W&B",
        "method parameters",
        "",
        "`parameters` with values are --sweep NAME=VALUE,..., `metric` is --metric; ranges are `hyperparameters` of a "
        f"config. Read {_OTHERS}#wb-sweeps",
    ),
    _tool(
        "an experiment of Determined",
        "searcher entrypoint",
        "",
        "`entrypoint` is --package-path, `resources.slots_per_trial` is --master-accelerator, `searcher` and "
        f"`hyperparameters` are those of a config. Read {_OTHERS}#determined",
    ),
    _tool(
        "a hyperparameter tuning job of Vertex AI",
        "",
        "studySpec study_spec trialJobSpec trial_job_spec",
        "`trialJobSpec` is a config of its own, which `--sweep NAME=VALUE,...` tries; or write a study: "
        "docs/how-to/tuning.md",
    ),
    _tool(
        "a file of Docker Compose",
        "services",
        "",
        "a service's `image` is --master-image-uri, its `build` is --build, `environment` is --env, `command` follows "
        "--. Read docs/how-to/containers.md",
    ),
    _tool(
        "a manifest of Kubernetes ({kind})",
        "apiVersion kind",
        "",
        "a container's `image` is --master-image-uri, `args` follow --, `env` is --env, replicas are --worker-count. "
        "A site on Kubernetes makes the pods itself: docs/how-to/kubernetes.md",
    ),
)


def refusal(text: str) -> str:
    """The end of the sentence about a file of another tool: what it is, and what to write instead; "" for any other."""
    keys = _keys_of(text)
    if _OUR_KEYS & keys.keys():
        return ""
    if scheduler := _scheduler_of(text):
        return (
            f"is a batch script of {scheduler}, no config: give it, or the program that it starts, as --package-path. "
            f"{_BATCH_FLAGS}. Read {_OTHERS}#slurm-and-submitit"
        )
    tool = next((tool for tool in _TOOLS if _is_of(tool, keys)), None)
    if tool is None:
        return ""
    name = tool.name.format(kind=keys.get("kind") or "?")
    return f"is {name}, no config of a job. Here {tool.advice}"


def note(path: Path) -> str:
    """A sentence about a program that is a batch script; "" for any other."""
    try:
        with path.open("rb") as file:
            scheduler = _scheduler_of(file.read(_HEAD).decode(errors="replace"))
    except OSError:  # a directory; or the program's own check says so
        return ""
    if not scheduler:
        return ""
    return (
        f"{path.name} is a batch script of {scheduler}, whose directives are comments to the shell: {_BATCH_FLAGS} "
        f"({_OTHERS})."
    )


def _scheduler_of(text: str) -> str:
    found = _BATCH.search(text)
    return _SCHEDULERS[found[1]] if found else ""


def _keys_of(text: str) -> dict[str, str]:
    """The keys of the first level of a text in YAML or JSON, with the first word of their values."""
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return {key: value if isinstance(value, str) else "" for key, value in data.items()}
    return dict(reversed(_KEY.findall(text)))  # of several documents the first


def _is_of(tool: _Tool, keys: Mapping[str, str]) -> bool:
    if tool.any_of and not tool.any_of & keys.keys():
        return False
    return all(key in keys and (not values or keys[key] in values.split("|")) for key, values in tool.keys.items())

"""Functions of W&B's client for programs that were written with it.

    import trainyard.wandb as wandb

    wandb.init(config={"lr": 0.1})
    wandb.log({"loss": 0.31})

Metrics are printed as `trainyard.log` prints them, the config goes to the job's parameters, images to its job-dir.
Tables, artifacts and whatever else W&B keeps are accepted, and a notice says once that they are not kept. Outside of a
job, metrics are lines like any other and the rest is without effect. It needs Python 3.8 and nothing else.
"""

import atexit
import json
import os
import shutil
import sys
import tempfile
import urllib.request
import uuid
from pathlib import Path

import trainyard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

__all__ = ["Config", "Error", "Image", "Run", "config", "define_metric", "finish", "init", "log", "login", "run"]
__all__ += ["summary", "util", "watch"]

__version__ = "0.31.0"
"""The version of W&B's client that this module was compared with."""

_AT_ONCE = 100  # parameters of one call
_TIMEOUT_S = 10
_OTHER = ("step", "event")  # names that mean something else in a line of ours
_NOTICED: "set[str]" = set()

_CLASSES = {
    *("Api", "Artifact", "ArtifactTTL", "Audio", "Classes", "EvalTable", "Graph", "Histogram", "Html"),
    *("JoinedTable", "Molecule", "Object3D", "Plotly", "Settings", "Table", "Video"),
}
_FUNCTIONS = {
    *("agent", "alert", "box3d", "controller", "link_artifact", "link_model", "log_artifact", "log_code"),
    *("log_model", "plot_table", "restore", "save", "sweep", "use_artifact", "use_model", "visualize"),
}
_MODULES = {
    *("apis", "catboost", "data_types", "env", "gym", "integration", "jupyter", "keras", "lightgbm", "plot"),
    *("plots", "proto", "sacred", "sdk", "sklearn", "tensorboard", "tensorflow", "wandb_run", "xgboost"),
}
_SILENT = {"ensure_configured", "mark_preempting", "setup", "teardown", "termsetup", "unwatch"}
"""Functions that keep nothing in W&B either."""
_OF_RUN = {
    *("display", "finish_artifact", "get_url", "pin_config_keys", "project_name", "project_url", "status"),
    *("to_html", "upsert_artifact"),
}
"""Further functions of a run."""


class Error(RuntimeError):
    """The base of W&B's errors."""


class NotKept:
    """An object of W&B that is not kept. It has every attribute, can be called, and holds nothing."""

    def __init__(self, *_values: object, **_options: object) -> None:
        if type(self) is not NotKept:
            _not_kept(type(self).__name__)

    def __getattr__(self, name: str) -> "Any":
        if name.startswith("__"):  # of the language: copy and pickle ask for them
            raise AttributeError(name)
        return NotKept()

    def __call__(self, *_values: object, **_options: object) -> "NotKept":
        return NotKept()

    def __getitem__(self, _key: object) -> "NotKept":
        return NotKept()

    def __setitem__(self, _key: object, _value: object) -> None:
        """Hold nothing."""

    def __iter__(self) -> "Iterator[NotKept]":
        return iter(())

    def __enter__(self) -> "NotKept":
        return self

    def __exit__(self, *_error: object) -> None:
        """Let errors pass."""

    def __fspath__(self) -> str:
        return os.curdir


class _Module:
    """A module of W&B, whose functions are without effect."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "Any":
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _CLASSES or name == "Image":
            return globals()[name] if name in globals() else __getattr__(name)
        _not_kept(f"{self._name}.{name}" if self._name.startswith("plot") else self._name)
        return NotKept()


class _Errors:
    """The module of W&B's errors, all of which are the base here."""

    def __getattr__(self, name: str) -> "Any":
        if name.startswith("__"):
            raise AttributeError(name)
        return Error


class _Util(_Module):
    """The module of W&B whose ids programs use."""

    @staticmethod
    def generate_id(length: int = 8) -> str:
        return uuid.uuid4().hex[:length]


class Values(dict):  # type: ignore[type-arg]
    """Values by name, also as attributes."""

    def __getattr__(self, name: str) -> "Any":
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value


class Config(Values):
    """The values of a run's config. What is set is a parameter of the job."""

    def __setitem__(self, name: str, value: object) -> None:
        self.update({name: value})

    def update(self, values: "Any" = None, allow_val_change: bool = True, **further: object) -> None:  # type: ignore[override]  # noqa: ARG002
        """Set values of a mapping, of an `argparse.Namespace`, or by name."""
        new = {**_mapping(values), **further}
        super().update(new)
        _send(dict(_flat(new)))

    def as_dict(self) -> "dict[str, Any]":
        return dict(self)

    def setdefaults(self, values: "Mapping[str, object]") -> None:
        """Set those that are not set."""
        self.update({name: value for name, value in values.items() if name not in self})


class Summary(Values):
    """The last values of a run, and those that shall be the last ones at its end."""


class Image:
    """An image to log: a PIL image, a path, or an array that PIL can read (height, width, channels; 0 to 255, or 0 to 1
    as floats)."""

    def __init__(self, data_or_path: "Any", caption: str = "", mode: "str | None" = None, **_further: object) -> None:
        self.caption = caption
        self._data = data_or_path
        self._mode = mode

    def write(self, path: Path) -> None:
        """Write it as PNG, or as the file that it is. Raises OSError, ImportError, and what PIL raises."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(self._data, (str, os.PathLike)):
            source = Path(self._data)
            shutil.copyfile(source, path.with_suffix(source.suffix or ".png"))
        elif hasattr(self._data, "save"):
            self._data.save(path)
        else:
            _from_array(self._data, self._mode).save(path)


class Run:
    """A run: its config, its summary, and its steps."""

    entity = group = job_type = notes = sweep_id = url = ""
    tags: "tuple[str, ...]" = ()
    resumed = offline = disabled = False

    def __init__(self, project: "str | None", name: "str | None") -> None:
        self.project = project or os.environ.get("CLOUD_ML_PROJECT_ID", "")
        self.name = name or os.environ.get("CLOUD_ML_JOB_ID", "")
        self.id = os.environ.get("MLFLOW_RUN_ID", self.name)
        self.config = config
        self.summary = Summary()
        self.step = 0
        self._waiting: dict[str, object] = {}
        self._logged: dict[str, object] = {}
        self._last = 0  # the step of the last report
        self._directory: Path | None = None

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_error: object) -> None:
        self.finish()

    def __getattr__(self, name: str) -> "Any":
        if name in _FUNCTIONS | _SILENT | _OF_RUN:
            return _function(name)
        raise AttributeError(f"A run of trainyard.wandb has no {name} (docs/how-to/metrics.md).")

    @property
    def dir(self) -> str:
        """A directory for files of the run: in the job-dir, if that is a path."""
        if self._directory is None:
            directory = os.environ.get("TRAINYARD_JOB_DIR", "")
            self._directory = Path(directory if directory.startswith("/") else tempfile.mkdtemp()) / "wandb"
            self._directory.mkdir(parents=True, exist_ok=True)
        return str(self._directory)

    def log(
        self, data: "Mapping[str, object]", step: "Any" = None, commit: "bool | None" = None, **_further: object
    ) -> None:
        """Report numbers and images. As in W&B, each call without a step ends the current one, unless `commit=False`;
        calls with a step belong to it until a later one comes, and those with an earlier one are ignored."""
        if step is not None:
            if int(step) < self.step:
                _notice("wandb.log() ignores steps that are before the current one.")
                return
            if int(step) > self.step:
                self._flush()
                self.step = int(step)
        self._waiting.update(_flat(data))
        if commit is False:
            return
        self._flush()
        if step is None or commit:
            self.step += 1

    def finish(self, exit_code: int = 0, quiet: bool = False) -> None:  # noqa: ARG002 - as W&B's has them
        """Report the summary at the last step, once."""
        global run
        self._flush()
        values = {name: value for name, value in _flat(self.summary) if self._logged.get(name) is not value}
        if values:
            _report(self._last, values)
        self.summary.clear()
        if run is self:
            run = None

    def define_metric(self, *_names: object, **_options: object) -> None:
        """Accepted, without effect: curves are over the steps."""

    def watch(self, *_models: object, **_options: object) -> None:
        """Accepted, without effect: gradients are not reported."""

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        images = {name: value for name, value in waiting.items() if isinstance(value, Image)}
        for name, image in images.items():
            self._write(name, image)
        numbers = {name: value for name, value in waiting.items() if name not in images}
        self._logged.update(numbers)
        self.summary.update(numbers)
        if numbers:
            self._last = self.step
            _report(self.step, numbers)

    def _write(self, name: str, image: Image) -> None:
        directory = os.environ.get("TRAINYARD_JOB_DIR", "")
        if not directory.startswith("/"):
            _notice("Images are not written: the job has no job-dir on a path.")
            return
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name).strip(".") or "image"
        try:
            image.write(Path(directory) / "images" / safe / f"{self.step}.png")
        except Exception as error:  # noqa: BLE001 - a report must never end a training
            _notice(f"The image {name} is not written: {error}.")


config = Config()
summary = Summary()
run: "Run | None" = None


def init(project: "str | None" = None, name: "str | None" = None, **options: "Any") -> Run:
    """Start a run. Of W&B's options `config` counts; entity, group, tags and the like are without effect."""
    global run, summary
    if run is not None:
        run.finish()
    run = Run(project, name)
    summary = run.summary
    if options.get("config") is not None:
        config.update(options["config"])
    return run


def log(data: "Mapping[str, object]", step: "Any" = None, commit: "bool | None" = None, **further: object) -> None:
    """Report numbers and images of the run that `init` has started. Raises Error without one."""
    if run is None:
        raise Error("Call wandb.init() before wandb.log().")
    run.log(data, step, commit, **further)


def login(*_values: object, **_options: object) -> bool:
    """Accepted, without effect: the job is signed in."""
    return True


def finish(exit_code: int = 0, quiet: bool = False) -> None:
    """End the run, if there is one."""
    if run is not None:
        run.finish(exit_code, quiet)


atexit.register(finish)


def define_metric(*_names: object, **_options: object) -> None:
    """Accepted, without effect: curves are over the steps."""


def watch(*_models: object, **_options: object) -> None:
    """Accepted, without effect: gradients are not reported."""


def termlog(text: str = "", *_values: object, **_options: object) -> None:
    """Print a line on stderr, as W&B does."""
    print(f"wandb: {text}", file=sys.stderr, flush=True)


termwarn = termerror = termlog
errors = _Errors()
util = _Util("util")


def __getattr__(name: str) -> "Any":
    if name in _CLASSES:
        made: Any = type(name, (NotKept,), {"__doc__": "An object of W&B that is not kept."})
    elif name in _FUNCTIONS or name in _SILENT:
        made = _function(name)
    elif name in _MODULES:
        made = _Module(name)
    else:
        raise AttributeError(f"trainyard.wandb has no {name}: W&B has none, or it is too new (docs/how-to/metrics.md).")
    globals()[name] = made
    return made


def _function(name: str) -> "Any":
    """A function that keeps nothing."""

    def call(*_values: object, **_options: object) -> NotKept:
        if name in _FUNCTIONS:
            _not_kept(name)
        return NotKept()

    call.__name__ = name
    return call


def _not_kept(name: str) -> None:
    _notice(f"wandb.{name} is accepted, but not kept.")


def _report(step: int, values: "Mapping[str, Any]") -> None:
    trainyard.log(step, **{name: value for name, value in values.items() if name not in _OTHER})


def _mapping(values: "Any") -> "Mapping[str, object]":
    if hasattr(values, "items"):
        return values  # type: ignore[no-any-return]
    if values is not None and not hasattr(values, "__dict__"):
        _notice(f"A config that is a {type(values).__name__} is not recorded.")
    return getattr(values, "__dict__", {})


def _flat(values: "Any", prefix: str = "") -> "Iterator[tuple[str, object]]":
    """The values with `a/b` in place of nested mappings."""
    for name, value in values.items():
        if hasattr(value, "items"):
            yield from _flat(value, f"{prefix}{name}/")
        elif isinstance(value, (list, tuple)) and value and all(isinstance(item, Image) for item in value):
            yield from ((f"{prefix}{name}/{place}", item) for place, item in enumerate(value))
        else:
            yield f"{prefix}{name}", value


def _from_array(data: "Any", mode: "str | None") -> "Any":
    import numpy
    from PIL import Image as Picture

    array = numpy.asarray(data.detach().cpu() if hasattr(data, "detach") else data)
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
        array = array.transpose(1, 2, 0)  # as torch has channels
    if array.dtype.kind == "f":
        array = (array.clip(0, 1) * 255).astype("uint8")
    return Picture.fromarray(array.squeeze(), mode) if mode else Picture.fromarray(array.squeeze())


def _send(parameters: "Mapping[str, object]") -> None:
    """Record parameters of the job, by the tracking API of its server."""
    address, run_id = os.environ.get("MLFLOW_TRACKING_URI", ""), os.environ.get("MLFLOW_RUN_ID", "")
    token = os.environ.get("MLFLOW_TRACKING_TOKEN", "")
    if not (address.startswith("http") and run_id and token):
        return
    items = [{"key": name, "value": str(value)} for name, value in parameters.items()]
    for start in range(0, len(items), _AT_ONCE):
        values = {"run_id": run_id, "params": items[start : start + _AT_ONCE], "change_params": True}
        body = json.dumps(values).encode()
        headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
        url = address.rstrip("/") + "/api/2.0/mlflow/runs/log-batch"
        try:
            request = urllib.request.Request(url, body, headers)  # noqa: S310 - the service's address, by HTTP
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
                pass
        except OSError as error:
            _notice(f"The config is not recorded: {error}.")
            return


def _notice(text: str) -> None:
    """Print a notice once."""
    if text not in _NOTICED:
        _NOTICED.add(text)
        print("trainyard: " + text, file=sys.stderr, flush=True)

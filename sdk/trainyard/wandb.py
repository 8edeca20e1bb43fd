"""Functions of W&B's client for programs that were written with it.

    import trainyard.wandb as wandb

    wandb.init(config={"lr": 0.1})
    wandb.log({"loss": 0.31})

Metrics are printed as `trainyard.log` prints them, the config goes to the job's parameters, images to its job-dir.
Outside of a job, metrics are lines like any other and the rest is without effect. It needs Python 3.8 and nothing else.
"""

import json
import os
import shutil
import sys
import urllib.request
from pathlib import Path

import trainyard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

__all__ = ["Config", "Image", "Run", "config", "define_metric", "finish", "init", "log", "run", "summary", "watch"]

_AT_ONCE = 100  # parameters of one call
_TIMEOUT_S = 10
_OTHER = ("step", "event")  # names that mean something else in a line of ours
_NOTICED: "set[str]" = set()


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

    def setdefaults(self, values: "Mapping[str, object]") -> None:
        """Set those that are not set."""
        self.update({name: value for name, value in values.items() if name not in self})


class Summary(Values):
    """Values that the last ones shall be at the end of a run."""


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

    def __init__(self, project: "str | None", name: "str | None") -> None:
        self.project = project or os.environ.get("CLOUD_ML_PROJECT_ID", "")
        self.name = name or os.environ.get("CLOUD_ML_JOB_ID", "")
        self.id = os.environ.get("MLFLOW_RUN_ID", self.name)
        self.config = config
        self.summary = Summary()
        self.step = 0
        self._waiting: dict[str, object] = {}

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_error: object) -> None:
        self.finish()

    def log(self, data: "Mapping[str, object]", step: "int | None" = None, commit: "bool | None" = None) -> None:
        """Report numbers and images at a step: by default at the next one after each call, with `commit=False` together
        with those of the next call."""
        if step is not None and step != self.step:
            self._flush()
            self.step = step
        self._waiting.update(_flat(data))
        if commit is False:
            return
        self._flush()
        if step is None:
            self.step += 1

    def finish(self, exit_code: int = 0, quiet: bool = False) -> None:  # noqa: ARG002 - as W&B's has them
        """Report the summary at the last step, once."""
        global run
        self._flush()
        if self.summary:
            _report(max(0, self.step - 1), dict(_flat(self.summary)))
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
        if numbers:
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
    run = Run(project, name)
    summary = run.summary
    if options.get("config") is not None:
        config.update(options["config"])
    return run


def log(data: "Mapping[str, object]", step: "int | None" = None, commit: "bool | None" = None) -> None:
    """Report numbers and images of the run that `init` has started. Raises RuntimeError without one."""
    if run is None:
        raise RuntimeError("Call wandb.init() before wandb.log().")
    run.log(data, step, commit)


def finish(exit_code: int = 0, quiet: bool = False) -> None:
    """End the run, if there is one."""
    if run is not None:
        run.finish(exit_code, quiet)


def define_metric(*_names: object, **_options: object) -> None:
    """Accepted, without effect: curves are over the steps."""


def watch(*_models: object, **_options: object) -> None:
    """Accepted, without effect: gradients are not reported."""


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"trainyard.wandb has no {name}: it has init, log, config, summary, finish and Image (docs/how-to/metrics.md)."
    )


def _report(step: int, values: "Mapping[str, Any]") -> None:
    trainyard.log(step, **{name: value for name, value in values.items() if name not in _OTHER})


def _mapping(values: "Any") -> "Mapping[str, object]":
    if values is None:
        return {}
    return values if hasattr(values, "items") else vars(values)  # type: ignore[no-any-return]


def _flat(values: "Any", prefix: str = "") -> "Iterator[tuple[str, object]]":
    """The values with `a/b` in place of nested mappings."""
    for name, value in values.items():
        if hasattr(value, "items"):
            yield from _flat(value, f"{prefix}{name}/")
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
        body = json.dumps({"run_id": run_id, "params": items[start : start + _AT_ONCE]}).encode()
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

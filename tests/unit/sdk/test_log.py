"""The module that users import or copy: what it prints is what the service reads."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

import trainyard
from trainyard_protocol.lines.progress import ProgressEvent, parse


class BrokenNumber:
    def __float__(self) -> float:
        raise RuntimeError("CUDA error: device-side assert triggered")


class FullPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(text)


def test_log_prints_one_line_that_is_parsed_back(capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    slashed: dict[str, Any] = {"val/loss": 0.5}
    trainyard.log(
        step=np.int64(120), steps=5000, epoch=2, loss=np.float32(0.25), inf=float("inf"), name="resnet", flag=True,
        none=None, array=np.zeros(3), broken=BrokenNumber(), **slashed,
    )  # fmt: skip
    expected = ProgressEvent(
        "progress", 120, 5000, epoch=2, metrics={"loss": 0.25, "inf": float("inf"), "val/loss": 0.5}
    )
    assert [parse(line) for line in capsys.readouterr().out.splitlines()] == [expected]


def test_log_of_anything_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    for output in (io.StringIO(), FullPipe(), None):
        monkeypatch.setattr(sys, "stdout", output)
        trainyard.log(step="many", loss=0.5)
        trainyard.log(step=10**400, loss=10**400)
        trainyard.log(event=object(), loss=0.5)  # type: ignore[arg-type]


def test_the_file_alone_is_enough(tmp_path: Path) -> None:
    """It may be copied beside a program, and runs on older Pythons: no import but of the standard library."""
    source = Path(trainyard.__file__).read_text(encoding="utf-8")
    imported = {line.split()[1] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imported <= set(sys.stdlib_module_names)

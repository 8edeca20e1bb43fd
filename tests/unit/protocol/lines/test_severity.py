"""Severities of log lines: what a line says, on either stream."""

from typing import Literal

from trainyard_protocol.lines.severity import SeverityReader, severity

LINES = {
    "CRITICAL": [
        "CRITICAL:root:out of disk",
        "F1120 10:00:00.000000 12 file.cc:3] Check failed",
        '{"severity": "fatal"}',
    ],
    "ERROR": [
        "Traceback (most recent call last):",
        "[rank0]: Traceback (most recent call last):",
        "  + Exception Group Traceback (most recent call last):",
        "ValueError: image size 28 is not 32",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "KeyboardInterrupt",
        "During handling of the above exception, another exception occurred:",
        "train.py: error: unrecognized arguments: --job-dir",
        "gcc: fatal error: no input files",
        "fatal: not a git repository",
        "[ERROR] bad",
        "2026-11-20 10:00:00,123 - trainer - ERROR - no data",
        "2026-11-20 10:00:00.123456: E tensorflow/core/framework/op.cc:5] failed",
        "E0000 00:00:1732272.123456 12 file.cc:1] failed",
        '{"level": "error", "msg": "m"}',
        "\x1b[31mERROR\x1b[0m red",
    ],
    "WARNING": [
        "WARNING:root:slow",
        "2026-11-20 10:00:00,123 WARNING trainer: slow",
        "W1120 10:00:00.000000 12 file.cc:3] slow",
        "/usr/lib/x.py:12: UserWarning: deprecated",
        "FutureWarning: soon",
        "pip: warning: old",
        '{"severity": "warning", "message": "m"}',
        "2026-11-20 10:00:00.123456: E external/xla/cuda_dnn.cc:8310] Unable to register cuDNN factory: twice",
    ],
    "INFO": [
        "", "epoch 1", "[1, 2]", " 45%|████▌     | 45/100 [00:03<00:04, 12.3it/s, error=0.31]",
        "80/80 ━━━━━━━━━━━━━━━━━━━━ 1s 8ms/step - loss: 0.7", "Downloading data from https://example.com/x.npz",
        "INFO:root:hello", "I1120 10:00:00.000000 12 file.cc:3] fine", "relative error: 0.001, within the bounds",
        "error: 0.25", "ErrorBar drawn", '{"severity": ["x"]}', '{"broken', "[" * 1000,
    ],
}  # fmt: skip


def test_severity_is_what_the_line_says_on_either_stream() -> None:
    streams: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")
    wrong = [
        (level, stream, line, found)
        for level, lines in LINES.items()
        for line in lines
        for stream in streams
        if (found := severity(stream, line)) != level
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_failures_of_a_shell_are_errors_on_stderr_alone() -> None:
    for line in ("sh: 1: trian: not found", "cp: cannot stat 'x': No such file or directory", "Killed"):
        assert (severity("stderr", line), severity("stdout", line)) == ("ERROR", "INFO")


def test_traceback_is_an_error_up_to_the_exception_and_not_beyond() -> None:
    reader = SeverityReader()
    lines: list[tuple[Literal["stdout", "stderr"], str, str]] = [
        ("stderr", "Traceback (most recent call last):", "ERROR"),
        ("stderr", '  File "train.py", line 3, in <module>', "ERROR"),
        ("stdout", "step 3 loss 0.2", "INFO"),
        ("stderr", "    fit()", "ERROR"),
        ("stderr", "my.Oddity: INFO is in its message", "ERROR"),
        ("stderr", "    fit()", "INFO"),
    ]
    assert [reader.read(stream, text) for stream, text, _ in lines] == [level for _, _, level in lines]
    assert reader.count == len(lines)

"""Causes of failures, found in what programs of several frameworks leave behind."""

from collections.abc import Sequence
from textwrap import dedent

from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.wire.logs import Stream
from trainyard_server.domain.lifecycle.causes import Cause, first_cause, shown

HEAD = "Traceback (most recent call last):\n"
FRAMES = '  File "/env/lib/python3.11/site-packages/trainer/task.py", line 88, in <module>\n    main()\n'
ABOVE = "\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"

OWN = {
    "an exception": (
        f"{HEAD}{FRAMES}ValueError: image size 28 is not 32\n",
        "ValueError: image size 28 is not 32",
    ),
    "chained exceptions: the last one": (
        f"{HEAD}{FRAMES}KeyError: 'lr'\n{ABOVE}{HEAD}{FRAMES}trainer.ConfigError: lr is missing\n",
        "trainer.ConfigError: lr is missing",
    ),
    "an exception that was caught before": (
        f"{HEAD}{FRAMES}OSError: try again\nstep 3 loss: 0.5\n{HEAD}{FRAMES}RuntimeError: it is over\n",
        "RuntimeError: it is over",
    ),
    "an exception that the environment of the run explains": (
        f"{HEAD}{FRAMES}ModuleNotFoundError: No module named 'yaml'\nwandb: synced\n"
        "trainyard: no package here has the module yaml: declare pyyaml in requirements.txt or pyproject.toml.\n",
        "ModuleNotFoundError: No module named 'yaml' (no package here has the module yaml: declare pyyaml in "
        "requirements.txt or pyproject.toml)",
    ),
    "an exception of a rank that is explained": (
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/app/t.py\", line 3, in <module>\n"
        "[rank1]: KeyError: 'LOCAL_RANK'\n[rank1]: trainyard: use torchrun.\n",
        "KeyError: 'LOCAL_RANK' (use torchrun)",
    ),
    "a message that begins below": (
        f"{HEAD}{FRAMES}RuntimeError: Error(s) in loading state_dict for Net:\n"
        "\tsize mismatch for fc.weight: [10] and [5].\n",
        "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for fc.weight: [10] and [5].",
    ),
    "a group": (
        dedent(
            """\
              + Exception Group Traceback (most recent call last):
              |   File "/app/train.py", line 3, in <module>
              |     run()
              | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
              +-+---------------- 1 ----------------
                | Traceback (most recent call last):
                |   File "/app/train.py", line 9, in load
                | ValueError: no shard 3
                +---------------- 2 ----------------
                | Traceback (most recent call last):
                |   File "/app/train.py", line 9, in load
                | OSError: closed
                +------------------------------------
            """
        ).replace("\n", "\n  "),
        "ValueError: no shard 3",
    ),
    "a syntax error": (
        '  File "/app/train.py", line 3\n    print("a"\n         ^\nSyntaxError: \'(\' was never closed\n',
        "SyntaxError: '(' was never closed",
    ),
    "noise at the interpreter's end": (
        f"{HEAD}{FRAMES}ValueError: a\nException ignored in: <function Pool.__del__ at 0x7f>\n"
        f"{HEAD}{FRAMES}OSError: closed\n",
        "ValueError: a",
    ),
    "a traceback of rich": (
        "╭───── Traceback (most recent call last) ─────╮\n│ /app/train.py:9 in <module>                 │\n"
        "╰──────────────────────────────────────────────╯\nValueError: a\n",
        "ValueError: a",
    ),
    "a bar of tqdm that is closed at the end": (
        f"{HEAD}{FRAMES}ValueError: a\n\n 50%|█████     | 151/300 [00:00<00:00, 1782.21it/s, loss=0.5]\n",
        "ValueError: a",
    ),
    "argparse": (
        "usage: train.py [-h] [--epochs EPOCHS]\ntrain.py: error: unrecognized arguments: --job-dir /x\n",
        "train.py: error: unrecognized arguments: --job-dir /x",
    ),
    "sys.exit with a message": ("The data set is empty: check --data.\n", "The data set is empty: check --data."),
    "C++": (
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  shard 3 is truncated\n",
        "shard 3 is truncated",
    ),
    "torchrun": (
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/app/t.py\", line 3, in <module>\n"
        "[rank1]: ValueError: no data on rank 1\n"
        f"E1122 12:00:00.1 7 torch/distributed/elastic/api.py:874] failed (exitcode: 1)\n{HEAD}{FRAMES}"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "============================================================\nt.py FAILED\n",
        "ValueError: no data on rank 1",
    ),
    "JAX, filtered": (
        f"{HEAD}{FRAMES}jax.errors.SimplifiedTraceback: For simplicity, JAX has removed its internal frames.\n{ABOVE}"
        f"{HEAD}{FRAMES}TypeError: dot_general requires contracting dimensions to have the same shape, got (784,) and"
        " (32,).\n"
        "--------------------\nFor simplicity, JAX has removed its internal frames from the traceback of the following"
        " exception. Set JAX_TRACEBACK_FILTERING=off to include these.\n",
        "TypeError: dot_general requires contracting dimensions to have the same shape, got (784,) and (32,).",
    ),
    "JAX, out of memory": (
        f"{HEAD}{FRAMES}jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 17179869184"
        " bytes.\n"
        "BufferAssignment OOM Debugging.\n" + "  buffer: 3\n" * 200,
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.",
    ),
    "TensorFlow, in a graph": (
        f"{HEAD}{FRAMES}tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:\n\n"
        "Detected at node sequential/dense/Relu defined at (most recent call last):\n"
        '  File "/app/train.py", line 20, in <module>\n\n'
        "Node: 'sequential/dense/Relu'\nMatrix size-incompatible: In[0]: [32,10], In[1]: [784,10]\n"
        "\t [[{{node sequential/dense/Relu}}]] [Op:__inference_train_function_123]\n",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Matrix size-incompatible: In[0]: [32,10],"
        " In[1]: [784,10] (node sequential/dense/Relu)",
    ),
    "TensorFlow, eager": (
        f"{HEAD}{FRAMES}tensorflow.python.framework.errors_impl.InvalidArgumentError: "
        "{{function_node __wrapped__MatMul_device_/job:localhost}} Matrix size-incompatible: [2] [Op:MatMul] name: \n"
        "2026-11-22 12:00:00.1: I tensorflow/core/x.cc:3] done\n",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Matrix size-incompatible: [2]",
    ),
    "escapes of a terminal": (
        f"\x1b[31m{HEAD}\x1b[0m{FRAMES}\x1b[1mValueError\x1b[0m: \x1b]0;title\x07\u202ebad\r\x00 end\n",
        "ValueError: bad end",
    ),
}  # fmt: skip

CONSEQUENCES = [
    "jax.errors.JaxRuntimeError: FAILED_PRECONDITION: Gloo all-reduce failed: [external/gloo/tcp/pair.cc:547]"
    " Connection closed by peer [127.0.0.1]:51234",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:5",
    "jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats)",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited",
    "tensorflow.python.framework.errors_impl.UnavailableError: Collective ops is aborted by: Socket closed",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
]


def entries(text: str, stream: Stream = "stderr") -> list[LogEntry]:
    return [
        LogEntry(
            cursor=number, run=1, task="t", number=number, time="2026-11-22T12:00:00Z", stream=stream,
            severity="INFO", text=line,
        )
        for number, line in enumerate(text.split("\n")[:-1], 1)
    ]  # fmt: skip


def among(lines: Sequence[LogEntry], others: Sequence[LogEntry]) -> list[LogEntry]:
    """Lines of two streams, taken in turns."""
    mixed = [entry for pair in zip(lines, others, strict=False) for entry in pair]
    return [*mixed, *lines[len(others) :], *others[len(lines) :]]


def test_cause_is_the_exceptions_own_line_or_what_the_program_said() -> None:
    wrong = []
    other = entries("".join(f"loss: {n} is fine\n" for n in range(30)), "stdout")
    for name, (text, expected) in OWN.items():
        for lines in (entries(text), among(entries(text), other)):
            cause = Cause.of(lines, "t")
            if cause is None or cause.text != expected or cause.is_consequence:
                wrong.append(f"{name}: {cause}")
    assert not wrong, "\n".join(wrong)


def test_a_program_that_says_nothing_has_no_cause() -> None:
    for text in (
        "",
        "INFO:root:step 3\n",
        " 45%|███ | 45/100 [00:03<00:04, 12.3it/s]\n",
        "W1122 12:00:00.1 7 a.cc:1] w\n",
    ):
        assert Cause.of(entries(text), "t") is None
    assert Cause.of(entries("Training is done.\n", "stdout"), "t") is None


def test_failure_of_a_collective_is_that_of_the_replica_that_failed_by_itself() -> None:
    def cause(text: str, task: str, cursor: int) -> Cause:
        found = Cause.of([entry.model_copy(update={"cursor": cursor}) for entry in entries(text)], task)
        assert found is not None
        return found

    master, own = "master-replica-0", f"{HEAD}{FRAMES}ValueError: no shard\n"
    for line in CONSEQUENCES:
        consequence = cause(f"{HEAD}{FRAMES}{line}\n", master, 1)
        assert consequence.is_consequence, line
        first = first_cause([consequence, cause(own, "worker-replica-1", 9), cause(own, "worker-replica-0", 5)], master)
        assert first is not None
        assert shown(first, master) == "worker-replica-0: ValueError: no shard"
        assert first_cause([consequence], master) == consequence
    mine = cause(own, master, 9)
    assert first_cause([cause(own, "worker-replica-0", 1), mine], master) == mine
    assert shown(mine, master) == "ValueError: no shard"
    assert first_cause([], master) is None


@given(st.lists(st.one_of(st.text(), st.sampled_from([line for text, _ in OWN.values() for line in text.split("\n")]))))
def test_a_cause_of_any_lines_is_one_printable_line(lines: list[str]) -> None:
    cause = Cause.of(entries("".join(f"{line}\n" for line in lines)), "t")
    assert cause is None or ("\x1b" not in cause.text and len(cause.text.splitlines()) <= 1)

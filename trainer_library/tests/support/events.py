"""Trainers that execute statements when they read the batch of a step."""

import textwrap

PROGRAM = """
import os, signal, sys, threading, time
from trainyard_trainer import task
from trainyard_trainer.training import steps, train
from trainyard_trainer.output.saving import Saver

read, count = {module}.read, 0

def interrupted(*args):
    global count
    for batch in read(*args):
        count += 1
        if count == {step}:
{event}
        yield batch

{module}.read = interrupted
task.main()
"""


def with_event(event: str, step: int, module: str = "train") -> tuple[str, str]:
    """`module`: train, or steps for the batches of evaluations."""
    return "-c", PROGRAM.format(event=textwrap.indent(event, " " * 12), step=step, module=module)


def gets(signal: str, step: int, module: str = "train") -> tuple[str, str]:
    """A trainer that sends itself a signal."""
    return with_event(f"os.kill(os.getpid(), signal.{signal})", step, module)

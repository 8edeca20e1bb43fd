"""Errors of GPUs: a file in place of the kernel's log, and a program of the driver's name."""

import os
import stat
from pathlib import Path

import pytest

from trainyard_agent.host.waiting import deadline_in, wait_until
from trainyard_agent.monitoring import device_errors
from trainyard_agent.monitoring.device_errors import DeviceErrors


def test_errors_of_the_hardware_are_told_and_those_of_programs_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, ecc, kernel_log = tmp_path / "nvidia-smi", tmp_path / "ecc", tmp_path / "kmsg"
    program.write_text(f"#!/bin/sh\ncat {ecc}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    ecc.write_text("GPU-aa, 0\nGPU-bb, [N/A]\n")
    kernel_log.write_text("3,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(device_errors, "EVERY_S", 0.01)
    errors = DeviceErrors()
    errors.start(kernel_log)
    try:
        with kernel_log.open("a") as log:
            log.write("3,3,4,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=python, MMU Fault\n")
            log.write("3,4,5,-;NVRM: Xid (PCI:0000:5e:00): 48, pid=77, DBE\n")
        xid = "Xid 48 (double-bit ECC error) of the GPU at 0000:5e:00"
        assert wait_until(lambda: errors.errors == (xid,), deadline_in(30), 0.01)
        ecc.write_text("GPU-aa, 2\nGPU-bb, [N/A]\n")
        both = (xid, "2 uncorrected ECC errors of GPU-aa")
        assert wait_until(lambda: errors.errors == both, deadline_in(30), 0.01)
    finally:
        errors.close()

"""Runner of a notebook: `python notebook.py FILE ARGS...`, in the wheel of a program that is one.

It runs the cells by nbclient in a kernel of this environment, prints their output as it comes, and writes the executed
notebook over FILE, also if a cell fails. The arguments are `sys.argv` in the notebook. It runs in the job's
environment, with nbclient and ipykernel.
"""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

_KERNEL = "python3"  # that of this environment; the notebook may name one of another machine
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class _PrintingClient(NotebookClient):  # type: ignore[misc]  # it is installed in jobs alone
    def process_message(self, message: dict[str, Any], cell: Any, cell_index: int) -> Any:
        content = message["content"]
        if message["msg_type"] == "stream":
            stream = sys.stderr if content["name"] == "stderr" else sys.stdout
            stream.write(content["text"])
            stream.flush()
        elif message["msg_type"] in ("execute_result", "display_data"):
            print(content["data"].get("text/plain", ""), flush=True)
        return super().process_message(message, cell, cell_index)


def main() -> None:
    """Run the notebook. Exits with 1 if a cell failed, and with 143 if it was stopped."""
    path = Path(sys.argv[1])
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(Path.cwd())}}
    line = f"import sys; sys.argv[:] = {sys.argv[1:]!r}"
    begin = [f"--InteractiveShellApp.exec_lines={line}"]
    client = _PrintingClient(notebook, timeout=None, kernel_name=_KERNEL, resources=place, extra_arguments=begin)
    client.create_kernel_manager()
    stopped = False

    def stop(*_: object) -> None:
        """The program's own handlers of SIGTERM are in the kernel, which has a process group of its own."""
        nonlocal stopped
        stopped = True
        if client.km is not None and client.km.has_kernel:
            client.km.signal_kernel(signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    try:
        with client.setup_kernel():
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index)
    except CellExecutionError as error:
        sys.stderr.write(_ESCAPES.sub("", str(error.traceback or error)).rstrip() + "\n")
        code = 1
    except DeadKernelError:
        sys.stderr.write("" if stopped else "The kernel of the notebook has died.\n")
        code = 143 if stopped else 1
    else:
        code = 0
    nbformat.write(notebook, path)
    sys.exit(code)


if __name__ == "__main__":
    main()

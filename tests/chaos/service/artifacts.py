"""The directory of a history, which is removed unless the history fails."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.plan import Plan


@contextmanager
def keep_on_failure(plan: Plan, name: str) -> Iterator[Path]:
    """A directory: the plan, the servers' data, the agents' state, all logs, and what programs noted of themselves.

    Its name and the plan are printed before anything happens.
    """
    root = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-", dir="/tmp"))
    print(f"{plan}\ndirectory, kept on failure: {root}", flush=True)
    (root / "plan.txt").write_text(f"{plan}\n")
    yield root
    shutil.rmtree(root)

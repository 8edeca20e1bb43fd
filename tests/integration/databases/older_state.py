"""A state directory that the first release left: ended jobs, a study, and a job that was running when the machine
failed. Nothing of its replica is in it."""

import subprocess
from pathlib import Path

COPY = Path(__file__).parent / "data" / "state-0.1.tar.gz"
AGENT_ID = "a26d97a0908944ef98e460e96b4fe055"
AGENT_KEY = "71f08684f6948c3f84becd161eae0f62247c86dd2b339a8aacf622021e8e7f74"
TOKEN_OF_ALICE = "trainyard_EVIgX3K3GsqlhqGtaX11UmqEclk0zeHJQELupMnMHnE"
RUN_OF_LONG = "6d7c45b1d4964f79b47aaa79aa68da61"


def unpack(root: Path) -> Path:
    """Unpack the copy into `root`; the state directory."""
    subprocess.run(["tar", "-xzf", COPY, "-C", root], check=True)  # tarfile of Debian 12's Python has no filters
    return root / "state"

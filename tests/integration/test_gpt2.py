"""The library's GPT-2 beside that of transformers: the files that it saves, and the logits that torch computes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "random_gpt2.py"
LIBRARY = Path(__file__).parents[2] / "trainer_library"


@pytest.mark.frameworks
def test_files_of_transformers_have_the_logits_of_torch(frameworks_python: Path, tmp_path: Path) -> None:
    from trainyard_trainer.output import export

    subprocess.run([str(frameworks_python), str(PROGRAM), str(tmp_path)], check=True, timeout=300)
    folders = ("language-model", "base-model", "sharded", "bfloat16")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    wrong = []
    for name in folders:
        job_dir, data = tmp_path / f"{name}-job", tmp_path / f"{name}.npz"
        # What is exported is what was read, but for one step of no size.
        urls = ("--init-from", str(tmp_path / name), "--data", str(data), "--job-dir", str(job_dir))
        numbers = ("--steps", "1", "--learning-rate", "1e-30", "--batch-size", "4")
        command = [sys.executable, "-m", "trainyard_trainer.task", "--model", "gpt2", *urls, *numbers]
        done = subprocess.run(command, cwd=LIBRARY, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        with np.load(data) as arrays:
            logits = np.asarray(export.load(str(job_dir / "model"))(arrays["inputs"].astype(np.int32))["logits"])
            if not np.allclose(logits, arrays["logits"], rtol=0, atol=1e-4):
                wrong.append((name, np.abs(logits - arrays["logits"]).max()))
    assert not wrong

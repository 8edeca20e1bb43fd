"""Files of other tools, as their documentation has them."""

from pathlib import Path

import pytest

from trainyard_cli.submission import config_file
from trainyard_cli.submission.foreign import other_tools
from trainyard_protocol.errors import InvalidArgument

FILES = {
    "SkyPilot": "resources:\n  accelerators: A100:1\nworkdir: .\nsetup: pip install -r r.txt\nrun: python t.py\n",
    "SkyPilot task": "name: p\n---\nname: one\nnum_nodes: 2\nrun: |\n  python t.py\n---\nname: two\nrun: x\n",
    "dstack": "type: task\nname: t\npython: 3.12\ncommands: [python t.py]\nresources:\n  gpu: 24GB\n",
    "dstack configuration": "type: 'dev-environment'\r\nide: vscode\r\n",
    "Slurm": "#!/bin/bash\n#SBATCH --ntasks=2\n#SBATCH -t 1:00\nsrun python t.py\n",
    "PBS": "#!/bin/sh\n#PBS -l nodes=1\npython t.py\n",
    "W&B": "program: t.py\nmethod: grid\nparameters:\n  lr: {values: [1, 2]}\n",
    "Determined": "name: s\nentrypoint: python3 t.py\nsearcher: {name: single}\n",
    "Docker Compose": "services:\n  train:\n    image: me/t\n",
    "Kubernetes (PyTorchJob)": "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec: {}\n---\nkind: x\n",
    "Kubernetes (Job)": '{"apiVersion": "batch/v1", "kind": "Job", "spec": {}}',
    "tuning job of Vertex AI": "displayName: t\nstudySpec: {metrics: []}\ntrialJobSpec: {}\n",
}
OWN = (
    "trainingInput:\n  args: [a]\nlabels: {type: task}\n",
    "# as before:\n#SBATCH --ntasks=2\ntrainingInput: {}\n",
    "jobId: a\ntraining_input:\n  region: x\n",
)


def test_file_of_another_tool_is_named_with_an_existing_page(tmp_path: Path) -> None:
    wrong = {}
    for tool, text in FILES.items():
        path = tmp_path / ("c.json" if text.startswith("{") else "c.yaml")
        path.write_text(text)
        with pytest.raises(InvalidArgument) as caught:
            config_file.load(path)
        message = caught.value.message
        page = Path(__file__).parents[5] / message.split()[-1].rstrip(".").partition("#")[0]
        if not message.startswith(f"{path} is a") or tool not in message or not page.is_file():
            wrong[tool] = message
    assert not wrong
    assert [other_tools.refusal(text) for text in OWN] == [""] * len(OWN)


def test_batch_script_as_a_program_is_noted_and_no_other_file(tmp_path: Path) -> None:
    script, other = tmp_path / "job.sh", tmp_path / "train.sh"
    script.write_text(FILES["Slurm"])
    other.write_text("python t.py\n")
    assert other_tools.note(script).startswith("job.sh is a batch script of Slurm, whose directives are comments")
    assert [other_tools.note(path) for path in (other, tmp_path, tmp_path / "none")] == ["", "", ""]

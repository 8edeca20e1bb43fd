"""Files of variables, as people have them beside their programs, and files of other tools."""

from pathlib import Path

import click
import pytest

from trainyard_cli.submission import config_file
from trainyard_cli.submission.flag_types import EnvFile, Variable
from trainyard_cli.submission.flags import FLAGS, JobFlags, merge
from trainyard_cli.submission.foreign import env_file, other_tools
from trainyard_cli.submission.foreign.secret_hints import hint
from trainyard_protocol.errors import InvalidArgument

READ: dict[str, dict[str, str]] = {
    "A=1\nB=two words\n": {"A": "1", "B": "two words"},
    "\n# comment\n\n  A=1  \n#B=2\n": {"A": "1"},
    "export A=1\r\nexport  B = 2\r\n": {"A": "1", "B": "2"},
    "A=1 # one\nB=a#b\nC=# none\nD=\nE= # none": {"A": "1", "B": "a#b", "C": "# none", "D": "", "E": ""},
    "A='x # y' # z\nB=\"it's\"\nC=it's\n": {"A": "x # y", "B": "it's", "C": "it's"},
    'A="a\\nb\\t\\"c\\" \\$HOME \\d"\nB=\'a\\nb\'\n': {"A": 'a\nb\t"c" $HOME \\d', "B": "a\\nb"},
    'KEY="-----BEGIN\nabc\n-----END"\nB=1': {"KEY": "-----BEGIN\nabc\n-----END", "B": "1"},
    'JSON={"a": "b c"}\nURL=http://x/?a=b&c=d\nREF=$HOME/${X}\n': {"JSON": '{"a": "b c"}', "URL": "http://x/?a=b&c=d",
     "REF": "$HOME/${X}"},
    "HERE\nexport HERE\nA=1": {"HERE": "of the shell", "A": "1"},
    "A=1\nA=2\n": {"A": "2"},
    "": {},
    "# nothing": {},
}  # fmt: skip
REFUSED = {
    "A=1\nA-B=2\n": ":2: must look like NAME=VALUE; commands of a shell are not run.",
    "source x.env\n": ":1: must look like NAME=VALUE",
    "if true; then\n": ":1: must look like NAME=VALUE",
    "=1\n": ":1: must look like NAME=VALUE",
    "\nMISSING\n": ":2: MISSING is not set here; write MISSING=VALUE.",
    "A=1\nB='x\nC=2\n": ":2: B has an opening quote that is not closed.",
    'A="x" y\n': ":1: A has text behind its closing quote.",
}


def test_read_takes_each_value_as_dotenv_does(tmp_path: Path) -> None:
    path, wrong = tmp_path / ".env", {}
    for text, variables in READ.items():
        for encoding in ("utf-8", "utf-8-sig", "utf-16"):
            path.write_bytes(text.encode(encoding))
            found = dict(env_file.read(path, {"HERE": "of the shell"}))
            if found != variables:
                wrong[text, encoding] = found
    assert not wrong


def test_read_refuses_what_is_no_variable_with_its_line(tmp_path: Path) -> None:
    path, wrong = tmp_path / ".env", {}
    for text, says in REFUSED.items():
        path.write_text(text)
        with pytest.raises(InvalidArgument) as caught:
            env_file.read(path, {})
        if not caught.value.message.startswith(f"{path}{says}"):
            wrong[text] = caught.value.message
    assert not wrong
    with pytest.raises(InvalidArgument, match="cannot be read: No such file"):
        env_file.read(tmp_path / "none", {})


def test_flags_read_the_file_with_the_variables_of_this_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "2")
    path = tmp_path / "vars.env"
    path.write_text("A=1\nHERE\n")
    assert EnvFile().convert(str(path), None, None) == (("A", "1"), ("HERE", "2"))
    with pytest.raises(click.BadParameter, match=f"{path} is a file; write --env-file {path}."):
        Variable().convert(str(path), None, None)


def test_flag_wins_over_file_and_file_over_config() -> None:
    config = {"trainingInput": {"env": {"A": "config", "B": "config", "C": "config", "D": "config"}}}
    files = ((("B", "first"), ("C", "first")), (("C", "second"), ("D", "second")))
    flags = JobFlags({"env": (("D", "flag"),), "env_file": files})
    job, origins = merge(config, flags)
    assert job.training("env") == {"A": "config", "B": "first", "C": "second", "D": "flag"}
    assert origins == {"env": "--env-file, --env"}
    assert flags.env == {"B": "first", "C": "second", "D": "flag"}
    assert sum(flag.name == "--env-file" for flag in FLAGS) == 1


def test_hint_names_variables_that_look_like_secrets_and_no_others() -> None:
    secret = {
        "HF_TOKEN": "hf_abcdefghijkl",
        "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
        "DB_PASSWORD": "correct-horse-battery",
        "OTHER": "ghp_0123456789abcdefghij",
        "PEM": "-----BEGIN RSA PRIVATE KEY-----\nx",
    }
    plain = {
        "TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "4096000000000", "PAD_TOKEN": "<pad>", "SORT_KEY": "loss",
        "GOOGLE_APPLICATION_CREDENTIALS": "/run/secrets/key.json", "NCCL_DEBUG": "INFO",
    }  # fmt: skip
    assert hint({**plain, **secret}).startswith(f"{', '.join(secret)} look like secrets, which everybody sees")
    assert hint({"HF_TOKEN": "hf_abcdefghijkl"}).endswith(
        "trainyard secrets set HF_TOKEN, and --set-secrets HF_TOKEN=HF_TOKEN in place of the variable."
    )
    assert hint(plain) == ""


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

"""Files of variables, as people have them beside their programs."""

from pathlib import Path

import click
import pytest

from trainyard_cli.submission.flags import FLAGS, EnvFile, JobFlags, Variable, merge
from trainyard_cli.submission.foreign import env_file
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
    'JSON={"a": "b c"}\nURL=http://x/?a=b&c=d\nREF=$HOME/${X}\n': {
        "JSON": '{"a": "b c"}',
        "URL": "http://x/?a=b&c=d",
        "REF": "$HOME/${X}",
    },
    "HERE\nexport HERE\nA=1": {"HERE": "of the shell", "A": "1"},
    "A=1\nA=2\n": {"A": "2"},
    "": {},
    "# nothing": {},
}
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
    assert job["trainingInput"]["env"] == {"A": "config", "B": "first", "C": "second", "D": "flag"}
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
        "TOKENIZERS_PARALLELISM": "false",
        "MAX_TOKENS": "4096000000000",
        "PAD_TOKEN": "<pad>",
        "SORT_KEY": "loss",
        "GOOGLE_APPLICATION_CREDENTIALS": "/run/secrets/key.json",
        "NCCL_DEBUG": "INFO",
    }
    assert hint({**plain, **secret}).startswith(f"{', '.join(secret)} look like secrets, which everybody sees")
    assert hint({"HF_TOKEN": "hf_abcdefghijkl"}).endswith(
        "trainyard secrets set HF_TOKEN, and --set-secrets HF_TOKEN=HF_TOKEN in place of the variable."
    )
    assert hint(plain) == ""

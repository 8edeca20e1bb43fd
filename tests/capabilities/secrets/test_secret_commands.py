"""`trainyard secrets`, and secrets of a job on the command line."""

import json
from pathlib import Path

from integration.shells import OPERATOR, Shell


def test_secret_is_set_listed_given_to_a_job_and_deleted(shell: Shell, tmp_path: Path) -> None:
    shell.out(f"login {shell.url} --token-file -", OPERATOR)
    code, out, err = shell("secrets set HF --project vision", "hf_value")
    assert (code, out, "Set the secret HF of the project vision." in err) == (0, "", True)
    key = tmp_path / "key.json"
    key.write_text('{"private": "key of the account"}\n')
    assert shell(f"secrets set key --from-file {key} --project vision")[0] == 0
    rows = shell.out("secrets list --project vision").splitlines()
    assert [row.split()[:3] for row in rows] == [
        ["NAME", "SET", "BY"],
        *([name, "admin", rows[1].split()[2]] for name in ("HF", "key")),
    ]
    assert [one["name"] for one in json.loads(shell.out("secrets list --project vision --format json"))] == [
        "HF",
        "key",
    ]

    config = tmp_path / "config.yaml"
    config.write_text("trainingInput:\n  pythonModule: trainer.task\n  secrets:\n  - name: HF\n  - name: KEY\n")
    submit = f"jobs submit training one --config {config} --project vision"
    code, _, err = shell(submit)
    assert (code, f"{config}:5: secrets[1].name: The project vision has no secret KEY." in err) == (1, True), err
    assert shell(f"{submit} --set-secrets HF_TOKEN=HF,/run/key.json=key")[0] == 0
    described = shell.out("jobs describe one --project vision")
    assert "/run/key.json" in described
    assert "hf_value" not in described
    assert "no secrets" in shell("secrets list")[2]
    assert shell("secrets delete HF key --project vision")[0] == 0
    assert "has no secret HF" in shell("secrets delete HF --project vision")[2]


def test_value_that_is_none_is_refused_and_never_repeated(shell: Shell, tmp_path: Path) -> None:
    shell.out(f"login {shell.url} --token-file -", OPERATOR)
    assert "shorter than 4 characters" in shell("secrets set A", "abc\n")[2]
    assert "has more than 65,536 bytes" in shell("secrets set A --from-file -", "x" * (1 << 17))[2]
    binary = tmp_path / "key.p12"
    binary.write_bytes(b"\xff\xfe\x00")
    assert (
        f"{binary} is not UTF-8 text: encode it first, as with base64."
        in shell(f"secrets set A --from-file {binary}")[2]
    )
    code, _, err = shell("secrets set A hunter2-on-the-command-line")
    assert (code, "must not be an argument" in err, "hunter2" in err) == (2, True, False), err

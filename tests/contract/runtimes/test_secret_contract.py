"""Secrets of a run: in every runtime its programs get them, and its log does not."""

from dataclasses import replace
from pathlib import Path

from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import Driver, KubernetesLab, Program, order
from trainyard_agent.engines.fake import Print
from trainyard_agent.runtimes.base import SecretFile
from trainyard_protocol.job.parsing import parse_training_input

CHIEF, RUN = "master-replica-0", unique_run("1")
TOKEN, KEY = "hf_t0ken=value", "first line of the key\nsecond line of the key\n"
ODD = "a \"b\" 'c' $HOME $(HOME) $$ é\\\nsecond line "
"""A variable's value that a shell, a cluster or a file of variables could change."""

SECRETS = [{"name": "HF", "env": "HF_TOKEN"}, {"name": "key", "file": "/run/secrets/key.pem"}]

PROGRAM = """
import os, signal, time
path = os.environ["key_FILE"]
token, key = os.environ["HF_TOKEN"], open(path).read()
def show(*_):
    os.write(1, b"token: " + token[:6].encode())
    time.sleep(0.05)
    os.write(1, token[6:].encode() + b"\\n" + key.encode())
signal.signal(signal.SIGTERM, lambda *_: (show(), os._exit(0)))
show()
print(len(token), len(key), os.path.basename(path), os.environ["ODD"].encode().hex(), flush=True)
while True: time.sleep(1000)
"""


def start(driver: Driver, program: Program) -> None:
    training_input = parse_training_input({"secrets": SECRETS})
    driver.runtime.place(order(RUN, CHIEF).model_copy(update={"training_input": training_input}))
    file = SecretFile("key", "/run/secrets/key.pem", "key_FILE", KEY)
    launch = driver.lab.launch(CHIEF, program)
    environment = {**launch.environment, "ODD": ODD}
    launch = replace(launch, environment=environment, secrets={"HF_TOKEN": TOKEN}, secret_files=(file,))
    driver.runtime.start(RUN, [launch])


def test_log_has_no_secret(driver: Driver) -> None:
    start(driver, Program((Print(f"token: {TOKEN}"), Print(f"> {KEY.splitlines()[1]}")), code=0))
    assert [line.text for line in driver.whole_log(RUN, CHIEF).lines] == ["token: ***", "> ***"]


def test_program_gets_its_variables_and_secrets_and_nothing_else_does(real_driver: Driver, tmp_path: Path) -> None:
    """Under the next agent too, which nobody tells the values."""
    driver = real_driver
    start(driver, Program(python=PROGRAM))
    masked = ["token: ***", "***", "***"]
    seen = [*masked, f"{len(TOKEN)} {len(KEY)} key.pem {ODD.encode().hex()}"]
    driver.until(lambda: driver.texts(RUN, CHIEF) == seen)
    driver.lab.reopen().recover()
    driver.runtime.stop(RUN, 60.0)

    assert driver.wait_for_log(RUN, CHIEF) == [*seen, *masked]
    found = [path for path in tmp_path.rglob("*") if path.is_file() and holds_secret(path)]
    assert len(found) == (not isinstance(driver.lab, KubernetesLab))  # pods have it from their cluster
    for file in found:
        assert (file.name, file.read_text()) == ("key.pem", KEY)
        assert [path for path in file.parents if path.is_dir() and path.stat().st_mode & 0o077 == 0]
    driver.runtime.remove(RUN)
    assert not driver.lab.remaining(RUN)


def test_log_has_no_token_of_the_storage(host_driver: Driver) -> None:
    """Errors of Google's clients have the address that it is in."""
    driver = host_driver
    driver.runtime.place(order(RUN, CHIEF).model_copy(update={"run_token": TOKEN}))
    launch = driver.lab.launch(CHIEF, Program(python="import os; print(os.environ['ADDRESS'])"))
    environment = {**launch.environment, "ADDRESS": f"http://127.0.0.1/{TOKEN}/b"}
    driver.runtime.start(RUN, [replace(launch, environment=environment, run_token=TOKEN)])

    assert driver.wait_for_log(RUN, CHIEF) == ["http://127.0.0.1/***/b"]


def holds_secret(path: Path) -> bool:
    content = path.read_bytes()
    return any(value.encode() in content for value in (TOKEN, *KEY.splitlines()))

"""Variables, mounts, secrets, retries and engine options: what a config may say of them."""

from typing import Any

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.config.text import violation_message
from trainyard_protocol.job.config.validation import check_addresses
from trainyard_protocol.job.parsing import parse_training_input

ENV: list[tuple[Any, str]] = [
    (["A=1"], "must be a mapping of names to values; this is a list."),
    ({"A-B": "1"}, "has the name 'A-B'; the name of a variable is a letter or '_'"),
    ({"": "1"}, "has the name ''"),
    ({"A" * 129: "1"}, "at most 128 characters"),
    ({7: "1"}, "has the name 7"),
    ({"A": 1}, "has 1 for A; a value is a string: write it in quotes."),
    ({"A": True}, "has True for A"),
    ({"A": "a\0b"}, "with a NUL character"),
    ({"TF_CONFIG": "{}"}, "sets TF_CONFIG, a variable of the service: choose another name."),
    ({"TRAINYARD_REPLICA": "x"}, "sets TRAINYARD_REPLICA"),
    ({"STORAGE_EMULATOR_ROOTS": "x"}, "sets STORAGE_EMULATOR_ROOTS"),
    ({"PATH": "/bin"}, "sets PATH"),
    ({f"A{n}": "" for n in range(101)}, "may have at most 100 variables; it has 101."),
    ({"A": "é" * 2**18}, "may have at most 524,288 bytes of names and values; it has 524,289."),
]
MOUNTS: list[tuple[Any, str, str]] = [
    ({"name": "/data/x"}, "mounts[0].name", "'/data/x' is not a mount's name: a lower-case letter, then"),
    ({"name": "a" * 41}, "mounts[0].name", "at most 40 characters"),
    ({"name": "a-"}, "mounts[0].name", "is not a mount's name"),
    ({"path": "/data"}, "mounts[0].name", "is required"),
    *(({"name": "a", "path": path}, "mounts[0].path", "must be an absolute path such as /data") for path in ("data",
     "/", "/a/../b", "/a/./b", "/a/", "//a", "/a b", "/a:ro", f"/{'a' * 101}")),
    *(({"name": "a", "path": path}, "mounts[0].path", "must not be in the way of") for path in ("/usr", "/usr/lib",
     "/proc/x", "/dev/shm", "/etc", "/tmp", "/home", "/opt", "/root", "/run")),
    ({"name": "a", "path": "/opt/trainyard/cache"}, "mounts[0].path", "in the way of /opt/trainyard; this is"),
]  # fmt: skip
SCHEDULING: list[tuple[dict[str, Any], str, str]] = [
    ({"retry": {"log": "x"}}, "retry", "must be a list; this is a mapping."),
    ({"retry": [{"log": "x"}] * 17}, "retry", "may have at most 16 rules; it has 17."),
    ({"retry": [{}]}, "retry[0]", "must have either exitCodes or log"),
    ({"retry": [{"exitCodes": [1], "log": "x"}]}, "retry[0]", "must have either exitCodes or log"),
    ({"retry": [{"exitCodes": 33}]}, "retry[0].exit_codes", "must be a list"),
    ({"retry": [{"exitCodes": [1] * 256}]}, "retry[0].exit_codes", "at most 255 exit codes; it lists 256."),
    ({"retry": [{"exitCodes": [1, 256]}]}, "retry[0].exit_codes[1]", "from 1 to 255; this is 256."),
    ({"retry": [{"log": "x" * 513}]}, "retry[0].log", "at most 512 characters; this has 513."),
    ({"retry": [{"log": "x", "count": 0}]}, "retry[0].count", "must be between 1 and 100; this is 0."),
    ({"retry": [{"log": "x", "otherHost": "maybe"}]}, "retry[0].other_host", "must be true or false"),
    ({"keepOnFailure": "0s"}, "keep_on_failure", "must be more than 0s and at most 86400s (a day); this is 0s."),
    ({"keepOnFailure": "86401s"}, "keep_on_failure", "this is 86401s."),
    ({"keepOnFailure": "10m"}, "keep_on_failure", "must be a duration in seconds such as '3600s'"),
]
SECRETS: list[tuple[Any, str, str]] = [
    ([{}], "secrets[0].name", "is required"),
    ([{"name": "a-b"}], "secrets[0].name", "is not a secret's name"),
    ([{"name": "a" * 65}], "secrets[0].name", "at most 64"),
    ([{"name": "a", "env": "A=B"}], "secrets[0].env", "cannot be the name of a variable"),
    ([{"name": "a", "env": "TF_CONFIG"}], "secrets[0].env", "is a variable of the service"),
    ([{"name": "a", "env": "TRAINYARD_REPLICA"}], "secrets[0].env", "is a variable of the service"),
    ([{"name": "PATH"}], "secrets[0]", "is a variable of the service: name another one in env"),
    ([{"name": "a", "file": "key.json"}], "secrets[0].file", "must be an absolute path"),
    ([{"name": "a", "file": "/a/../b"}], "secrets[0].file", "must be an absolute path"),
    ([{"name": "a", "file": "/a/"}], "secrets[0].file", "must be an absolute path"),
    ([{"name": "a", "file": "/proc/self/mem"}], "secrets[0].file", "must not be below /proc"),
    ([{"name": "a", "value": "no"}], "job.training_input.secrets[0]", "Known here: name, env, file"),
    ([{"name": f"a{n}"} for n in range(21)], "secrets", "at most 20 secrets; it lists 21"),
    ("a", "secrets", "must be a list"),
]
ENGINES: list[tuple[Any, str, str]] = [
    ({"slurm": {"qos": "a b"}}, "slurm.qos", "must be a name of letters, digits and _.@+-; this is 'a b'."),
    ({"slurm": {"constraint": "a100 --uid=0"}}, "slurm.constraint", "must be features of nodes, such as a100"),
    ({"slurm": {"setup": ["a\nb"]}}, "slurm.setup[0]", "a command of a shell on one line of at most 1000"),
    ({"slurm": {"setup": [" "]}}, "slurm.setup[0]", "a command of a shell"),
    ({"slurm": {"setup": ["true"] * 21}}, "slurm.setup", "at most 20 entries; it has 21."),
    ({"slurm": {"setup": "module load x"}}, "slurm.setup", "must be a list"),
    ({"slurm": {"exclusive": "yes"}}, "slurm.exclusive", "must be true or false"),
    ({"kubernetes": {"labels": {"trainyard.dev/run": "x"}}}, "kubernetes.labels", "keys below trainyard.dev are"),
    ({"kubernetes": {"labels": {"app.kubernetes.io/name": "x"}}}, "kubernetes.labels", "keys below kubernetes.io"),
    ({"kubernetes": {"annotations": {"kueue.x-k8s.io/queue-name": "x"}}}, "kubernetes.annotations",
     "keys below k8s.io are not a job's to set"),
    ({"kubernetes": {"labels": {"a b": "x"}}}, "kubernetes.labels", "has the key 'a b'; a key is a name such as"),
    ({"kubernetes": {"labels": {"a": 1}}}, "kubernetes.labels", "has 1 for a; a value is a string"),
    ({"kubernetes": {"labels": ["a"]}}, "kubernetes.labels",
     "must be a mapping of names to values; this is a list"),
    ({"kubernetes": {"annotations": {"a": "x" * 1001}}}, "kubernetes.annotations", "at most 1000 characters"),
    ({"kubernetes": {"resources": {"cpu": 1}}}, "kubernetes.resources", "an extended resource, such as rdma/hca"),
    ({"kubernetes": {"resources": {"rdma/hca": 0}}}, "kubernetes.resources", "between 1 and 1000; this is 0."),
    ({"kubernetes": {"capabilities": ["ipc_lock"]}}, "kubernetes.capabilities[0]", "a capability such as IPC_LOCK"),
    ({"kubernetes": {"serviceAccount": "A"}}, "kubernetes.service_account", "the name of an object in the cluster"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        *(({"env": env}, "env", says) for env, says in ENV),
        *(({"mounts": [mount]}, field, says) for mount, field, says in MOUNTS),
        ({"mounts": [{"name": f"a{n}"} for n in range(17)]}, "mounts", "may list at most 16 mounts; it lists 17."),
        *(({"scheduling": given}, f"scheduling.{field}", says) for given, field, says in SCHEDULING),
        *(({"secrets": secrets}, field, says) for secrets, field, says in SECRETS),
        *(({"engineOptions": asked}, f"engine_options.{field}", says) for asked, field, says in ENGINES),
    ],
)
def test_wrong_value_is_refused_at_its_field_with_what_is_allowed(given: Any, field: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_training_input(given)
    (violation,) = caught.value.violations
    assert (violation.field, says in violation.description) == (field, True), violation


def test_arguments_that_are_too_long_together_are_refused() -> None:
    args = ["x" * 100_000] * 9
    check_addresses(parse_training_input({"args": args}))
    with pytest.raises(InvalidArgument) as caught:
        check_addresses(parse_training_input({"args": args, "env": {"A": "x" * 90_000}}))
    assert str(caught.value).startswith("Field: args Error: are too long: 990,012 bytes with the variables"), (
        caught.value
    )


def test_variable_that_no_program_can_get_is_refused_by_its_name() -> None:
    fits = {"LONG_ONE": "x" * (2**17 - 1 - len("LONG_ONE=")), "OTHER": "é" * 40_000}
    check_addresses(parse_training_input({"env": fits}))
    with pytest.raises(InvalidArgument) as caught:
        check_addresses(parse_training_input({"env": {**fits, "LONG_ONE": fits["LONG_ONE"] + "x"}}))
    (violation,) = caught.value.violations
    assert violation.field == "env.LONG_ONE"
    assert violation_message(violation) == (
        "env.LONG_ONE: is too long: 131,072 bytes; a variable with its name can have 131,071 on Linux. Write it to a "
        "file, and give the program the file's path."
    )


def test_variable_of_a_secret() -> None:
    account = "GOOGLE_APPLICATION_CREDENTIALS"
    table: list[tuple[dict[str, str], str]] = [
        ({"name": "WANDB_API_KEY"}, "WANDB_API_KEY"),
        ({"name": "hf", "env": "HF_TOKEN"}, "HF_TOKEN"),
        ({"name": "gcs", "file": "/run/secrets/gcs.json"}, "gcs_FILE"),
        ({"name": "gcs", "file": "/gcs.json", "env": account}, account),
        ({"name": "PATH", "file": "/a"}, "PATH_FILE"),
    ]
    found = [parse_training_input({"secrets": [reference]}).secrets[0] for reference, _ in table]
    assert [(one.canonical(), one.variable) for one in found] == table

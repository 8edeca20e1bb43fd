"""The submitted job: liberal in what it accepts, exact in what it returns, clear in what it refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.parsing import parse_job, parse_training_input


def job(**training_input: object) -> dict[str, object]:
    return {"jobId": "j1", "trainingInput": training_input}


def refused(data: object) -> list[str]:
    with pytest.raises(InvalidArgument) as caught:
        parse_job(data)
    names = [f"{violation.unknown}? " if violation.unknown else "" for violation in caught.value.violations]
    return [f"{v.field}: {name}{v.description}" for name, v in zip(names, caught.value.violations, strict=True)]


TUTORIAL = {
    "scaleTier": "CUSTOM", "masterType": "n1-standard-8", "masterConfig": {"imageUri": "gcr.io/p/image:tag"},
    "workerCount": "1", "workerType": "n1-standard-8", "workerConfig": {"imageUri": "gcr.io/p/image:tag"},
    "useChiefInTfConfig": True, "args": ["--epochs", "5"], "scheduling": {"maxRunningTime": "3600s", "priority": 3},
}  # fmt: skip


def test_training_input_is_echoed_as_it_was_sent_and_from_a_liberal_client_means_the_same() -> None:
    assert parse_training_input(TUTORIAL).canonical() == TUTORIAL
    sent = {
        "scale_tier": "custom", "master_type": "n1-standard-8", "master_config": {"image_uri": "gcr.io/p/image:tag"},
        "worker_count": 1, "workerType": "n1-standard-8", "worker_config": {"imageUri": "gcr.io/p/image:tag"},
        "use_chief_in_tf_config": "True", "args": ["--epochs", 5],
        "scheduling": {"max_running_time": 3600, "priority": "3"},
    }  # fmt: skip
    assert parse_training_input(sent).canonical() == TUTORIAL


def test_job_may_have_snake_case_output_only_and_null_fields() -> None:
    rows: list[tuple[dict[str, object], dict[str, object]]] = [
        ({"job_id": "j1", "training_input": {}}, {}),
        ({**job(), "state": "RUNNING", "createTime": "2026-01-01T00:00:00Z", "errorMessage": "x"}, {}),
        (job(workerCount=None, masterType="standard"), {"masterType": "standard"}),
    ]
    for sent, kept in rows:
        assert parse_job(sent).canonical() == {"jobId": "j1", "trainingInput": kept}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"jobId": "j1", "parameter_server_type": "standard", "trainingInput": {}},
         "job: parameter_server_type? It belongs under trainingInput."),
        (job(wrokerCount=1), 'job.training_input: wrokerCount? Did you mean "workerCount"?'),
        (job(masterConfig={"imageUrl": "x"}), 'job.training_input.master_config: imageUrl? Did you mean "imageUri"?'),
        ({"jobId": "1st", "trainingInput": {}},
         "job.job_id: A name should start with a letter and contain only letters, numbers and underscores"),
        ({"trainingInput": {}}, "job.job_id: is required and was not given."),
        ({"jobId": "j1"}, "job.training_input: is required and was not given."),
        ([], "job: must be a mapping; this is a list."),
        (job(scaleTier="CUSTM"),
         "scale_tier: must be one of BASIC, STANDARD_1, PREMIUM_1, BASIC_GPU, BASIC_TPU, CUSTOM; this "
         "is the string 'CUSTM'. Did you mean \"CUSTOM\"?"),
        (job(workerCount="two"), "worker_count: must be a whole number; this is the string 'two'."),
        (job(workerCount=1.5), "worker_count: must be a whole number; this is the number 1.5."),
        (job(workerCount=True), "worker_count: must be a whole number; this is the boolean true."),
        (job(workerCount=-1), "worker_count: must be 0 or more; this is -1."),
        (job(runtimeVersion=2.10),
         "runtime_version: must be a string; this is the number 2.1 (YAML reads 2.10 as 2.1): put it in quotes."),
        (job(args=["a", True]), "args[1]: must be a string; this is the boolean true: put it in quotes."),
        (job(args=["a\0b"]), "args[0]: must not hold a NUL character."),
        (job(pythonModule="a" * 10**6),
         "python_module: must be at most 4096 characters long; this is a string of 1000000 characters."),
        (job(args=["x", "é" * 2**16]),
         "args[1]: is too long: 131,072 bytes; an argument of a program can have 131,071 on Linux. Write it to a "
         "file, and give the program the file's path."),
        (job(jobDir="\ud800"), "job_dir: must be text; it holds half of a surrogate pair (bytes that are not UTF-8?)."),
        (job(args="--epochs 5"), "args: must be a list; this is the string '--epochs 5'."),
        (job(useChiefInTfConfig="yes"), "use_chief_in_tf_config: must be true or false; this is the string 'yes'."),
        (job(scheduling={"maxWaitTime": "60s"}), "scheduling.max_wait_time: must be at least 1800s; this is 60s."),
        (job(scheduling={"maxRunningTime": 604_800_000_000_000}),
         "scheduling.max_running_time: must be a duration in seconds such as '3600s'; this is the "
         "number 604800000000000."),
        (job(scheduling={"maxRunningTime": "1h"}),
         "scheduling.max_running_time: must be a duration in seconds such as '3600s'; this is the string '1h'."),
        (job(scheduling={"priority": 1001}), "scheduling.priority: must be between 0 and 1000; this is 1001."),
        (job(packageUris=["gs://b/p"] * 101), "package_uris: may list at most 100 packages; it lists 101."),
        ({**job(), "labels": {"Team": "a"}},
         "job.labels: has the key 'Team'; a key starts with a lower-case letter and has at most 63 of "
         "a-z, 0-9, _ and -."),
        ({**job(), "labels": {"team": 3}},
         "job.labels: has the value 3 for 'team'; a value is a string of at most 63 of a-z, 0-9, _ and -."),
        ({**job(), "predictionInput": {}}, "job: has a predictionInput; only training jobs run here."),
        (job(workerCount=1, worker_count=2),
         'job.training_input: says "workerCount" twice, once in snake_case and once in camelCase.'),
    ],
)  # fmt: skip
def test_job_that_cannot_be_accepted_says_what_is_wrong_and_what_is_allowed(data: object, message: str) -> None:
    assert refused(data) == [message]


def parameter(**fields: object) -> dict[str, object]:
    return job(hyperparameters={"params": [{"parameterName": "rate", **fields}]})


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"type": "DOUBLE", "minValue": 0.1}, "needs minValue and maxValue, since its type is DOUBLE."),
     ({"type": "DOUBLE", "minValue": 2, "maxValue": 1}, "has a minValue (2.0) above its maxValue (1.0)."),
     ({"type": "INTEGER", "minValue": 0.5, "maxValue": 1},
     "needs whole numbers as minValue and maxValue, since its type is INTEGER."), ({"type": "DOUBLE",
     "minValue": "-inf", "maxValue": 1}, "needs finite numbers as minValue and maxValue."), ({"type": "DOUBLE",
     "minValue": -1.7e308, "maxValue": 1.7e308}, "has a minValue and a maxValue that are too far apart."),
     ({"type": "INTEGER", "minValue": 0, "maxValue": 1e16},
     "needs whole numbers between -9007199254740992 and 9007199254740992."), ({"type": "CATEGORICAL"},
     "needs categoricalValues, since its type is CATEGORICAL."), ({"type": "CATEGORICAL", "categoricalValues": ["a",
     "b", "a"]}, "has 'a' twice in its categoricalValues."), ({"type": "DISCRETE", "discreteValues": [1, "nan"]},
     "has a discreteValue that is not finite."), ({"type": "DISCRETE", "discreteValues": [1, 1]},
     "has discreteValues that are not strictly increasing."), ({"type": "DOUBLE", "minValue": 0, "maxValue": 1,
     "scaleType": "UNIT_LOG_SCALE"}, "has scaleType UNIT_LOG_SCALE, which needs values above 0.")],
)  # fmt: skip
def test_hyperparameter_with_an_impossible_space_is_refused(fields: dict[str, object], message: str) -> None:
    assert refused(parameter(**fields)) == [f"hyperparameters.params[0]: {message}"]


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
INPUTS = st.fixed_dictionaries(
    {},
    optional={
        "scaleTier": st.sampled_from(["BASIC", "basic", "custom", "Premium-1"]),
        "worker_count": st.integers(0, 2**62) | st.integers(0, 99).map(str),
        "args": st.lists(WORDS | st.integers()),
        "pythonModule": WORDS,
        "use_chief_in_tf_config": st.sampled_from([True, False, "true", "False"]),
        "masterConfig": st.fixed_dictionaries({}, optional={"image_uri": WORDS, "containerArgs": st.lists(WORDS)}),
    },
)


@given(INPUTS)
def test_canonical_form_of_any_input_is_a_fixed_point_with_the_fields_that_were_sent(sent: dict[str, object]) -> None:
    once = parse_training_input(sent).canonical()
    assert parse_training_input(once).canonical() == once
    assert len(once) == len(sent)
    assert parse_training_input(parse_training_input(sent).snake_case()).canonical() == once

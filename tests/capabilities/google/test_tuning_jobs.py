"""Hyperparameter tuning jobs of Vertex AI, by the calls that its clients make."""

from typing import Any

from integration.api.api_support import ADMIN, ALICE, ScriptedAgent, Server, custom_job, tuning_job
from trainyard_protocol.answers.custom_jobs import CustomJobAnswer, TuningJobAnswer
from trainyard_protocol.wire.sync import RunOrder

LOCATION = "/v1/projects/p/locations/us-central1"
HERE = f"{LOCATION}/hyperparameterTuningJobs"
ROOT = "hyperparameter_tuning_job"
MOMENTUM = {
    "parameterSpec": {
        "parameterId": "momentum",
        "discreteValueSpec": {"values": [0.5, 1]},
        "conditionalParameterSpecs": [
            {
                "parameterSpec": {"parameterId": "steps", "integerValueSpec": {"minValue": "1", "maxValue": "3"}},
                "parentDiscreteValues": {"values": [1]},
            }
        ],
    },
    "parentCategoricalValues": {"values": ["sgd"]},
}
OPTIMIZER = {
    "parameterId": "optimizer",
    "categoricalValueSpec": {"values": ["adam", "sgd"]},
    "conditionalParameterSpecs": [MOMENTUM],
}
SHUFFLE = {"parameterId": "shuffle", "categoricalValueSpec": {"values": ["yes", "no"]}}
RATE = {"parameterId": "lr", "doubleValueSpec": {"minValue": 0.001, "maxValue": 0.1}, "scaleType": 2}
LAYERS = {
    "parameterId": "layers",
    "integerValueSpec": {"maxValue": "3"},  # clients of REST leave a minimum out that is 0
    "conditionalParameterSpecs": [
        {
            "parameterSpec": {"parameterId": "width", "discreteValueSpec": {"values": [8, 16]}},
            "parentIntValues": {"values": ["2", "3"]},
        }
    ],
}


def create(api: Server, path: str = HERE, **fields: Any) -> dict[str, Any]:
    created: dict[str, Any] = api.done("POST", path, ALICE, json=tuning_job(**fields))
    TuningJobAnswer.model_validate(created)
    return created


def id_of(created: dict[str, Any]) -> str:
    return str(created["name"]).rpartition("/")[2]


def get(api: Server, created: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/v1/{created['name']}")
    TuningJobAnswer.model_validate(found)
    return found


def study_spec(*parameters: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"metrics": [{"metricId": "accuracy", "goal": 1}], "parameters": list(parameters or (RATE,)), **fields}


def run_of(agent: ScriptedAgent, number: int, study: str = "") -> RunOrder:
    trials = [(run, run.trial) for run in agent.sync().runs if run.trial is not None]
    return next(run for run, trial in trials if trial.number == number and study in ("", trial.study))


def finish(api: Server, agent: ScriptedAgent, number: int, *values: float, **end: Any) -> RunOrder:
    run = run_of(agent, number)
    agent.start(run)
    agent.measure(run, *values)
    agent.exit(run=run, **end)
    api.tick()
    return run


def test_tuning_job_is_a_study_whose_trials_are_custom_jobs(api: Server, agent: ScriptedAgent) -> None:
    created = create(api, labels={"team": "a"}, studySpec=study_spec(RATE, SHUFFLE), maxTrialCount=2)
    job_id = id_of(created)
    sent = api.job(job_id)["trainingInput"]
    assert created == {
        "name": f"projects/p/locations/us-central1/hyperparameterTuningJobs/{job_id}",
        **sent["tuningJob"],
        "state": "JOB_STATE_QUEUED",
        "createTime": "2026-11-20T12:00:00Z",
        "updateTime": "2026-11-20T12:00:00Z",
        "labels": {"team": "a"},
    }
    assert created["studySpec"]["metrics"] == [{"metricId": "accuracy", "goal": "MAXIMIZE"}]
    assert (sent["hyperparameters"]["hyperparameterMetricTag"], sent["jobDir"]) == ("accuracy", "gs://b/out")
    api.tick()
    run = run_of(agent, 1)
    parameters = {one["parameterId"]: one["value"] for one in get(api, created)["trials"][0]["parameters"]}
    flags = [f"--{name}={value}" for name, value in parameters.items()]
    assert [*run.training_input.args] == ["--epochs", "3", *flags]
    assert (run.training_input.job_dir, run.training_input.hyperparameters) == ("gs://b/out/1", None)
    finish(api, agent, 1, 0.9, 0.5)
    assert get(api, created)["state"] == "JOB_STATE_RUNNING"
    finish(api, agent, 2, code=1)
    ended = get(api, created)
    assert (ended["state"], ended["endTime"]) == ("JOB_STATE_SUCCEEDED", ended["updateTime"])
    good, bad = ended["trials"]
    assert (good["id"], good["state"], bad["id"], bad["state"]) == ("1", "SUCCEEDED", "2", "INFEASIBLE")
    assert good["finalMeasurement"] == {"stepCount": "2", "metrics": [{"metricId": "accuracy", "value": 0.5}]}
    assert "finalMeasurement" not in bad
    assert isinstance(parameters["lr"], float)
    assert parameters["shuffle"] in ("yes", "no")

    # A trial is a custom job, and one that anybody may submit.
    trial = api.get(f"/v1/{good['customJob']}")
    CustomJobAnswer.model_validate(trial)
    assert (trial["displayName"], trial["state"]) == ("A tuning job trial 1", "JOB_STATE_SUCCEEDED")
    program = trial["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]
    assert program["args"] == list(run.training_input.args)
    assert trial["jobSpec"]["baseOutputDirectory"] == {"outputUriPrefix": "gs://b/out/1"}
    again = api.job(f"{job_id}.1")["trainingInput"]
    api.done("POST", "/v1/projects/p/jobs", ALICE, json={"jobId": "again", "trainingInput": again})
    assert api.get(f"{LOCATION}/customJobs") == {"customJobs": [api.get(f"{LOCATION}/customJobs/again")]}, (
        "trials are in no list"
    )


def test_parameters_of_all_kinds_and_conditions_are_those_of_a_study(api: Server) -> None:
    spec = study_spec(RATE, LAYERS, OPTIMIZER, algorithm="RANDOM_SEARCH", medianAutomatedStoppingSpec={})
    created = create(
        api, studySpec=spec, maxTrialCount=7, parallelTrialCount=3, maxFailedTrialCount=2, displayName="9 lives" * 18
    )
    assert api.job(id_of(created))["trainingInput"]["hyperparameters"] == {
        "goal": "MAXIMIZE",
        "hyperparameterMetricTag": "accuracy",
        "maxTrials": 7,
        "maxParallelTrials": 3,
        "maxFailedTrials": 2,
        "argumentStyle": "FLAGS_WITH_EQUALS",
        "algorithm": "RANDOM_SEARCH",
        "enableTrialEarlyStopping": True,
        "params": [
            {
                "parameterName": "lr",
                "type": "DOUBLE",
                "minValue": 0.001,
                "maxValue": 0.1,
                "scaleType": "UNIT_LOG_SCALE",
            },
            {
                "parameterName": "layers",
                "type": "INTEGER",
                "minValue": 0.0,
                "maxValue": 3.0,
                "childParameterSpecs": [
                    {
                        "parameterName": "width",
                        "type": "DISCRETE",
                        "discreteValues": [8.0, 16.0],
                        "parentIntValues": {"values": ["2", "3"]},
                    }
                ],
            },
            {
                "parameterName": "optimizer",
                "type": "CATEGORICAL",
                "categoricalValues": ["adam", "sgd"],
                "childParameterSpecs": [
                    {
                        "parameterName": "momentum",
                        "type": "DISCRETE",
                        "discreteValues": [0.5, 1.0],
                        "parentCategoricalValues": {"values": ["sgd"]},
                        "childParameterSpecs": [
                            {
                                "parameterName": "steps",
                                "type": "INTEGER",
                                "minValue": 1.0,
                                "maxValue": 3.0,
                                "parentDiscreteValues": {"values": [1.0]},
                            }
                        ],
                    }
                ],
            },
        ],
    }


def test_grid_goes_through_values_and_conditions_as_programs_of_images_get_them(api: Server) -> None:
    pool = {
        "machineSpec": {"machineType": "local-1"},
        "replicaCount": 1,
        "containerSpec": {"imageUri": "gcr.io/p/i:1", "command": ["python3", "t.py"]},
    }
    created = create(
        api,
        studySpec=study_spec(LAYERS, OPTIMIZER, algorithm=2),
        maxTrialCount=99,
        parallelTrialCount=16,
        trialJobSpec={"workerPoolSpecs": [pool, {}, pool]},
    )
    agent = ScriptedAgent(api, cpus=64, memory_gb=256, runs_images=True)
    agent.sync()
    api.tick()
    trials = get(api, created)["trials"]
    seen = [{one["parameterId"]: one["value"] for one in trial["parameters"]} for trial in trials]
    assert seen[:3] == [
        {"layers": 0, "optimizer": "adam"},
        {"layers": 0, "optimizer": "sgd", "momentum": 0.5},
        {"layers": 0, "optimizer": "sgd", "momentum": 1.0, "steps": 1},
    ]
    orders = {run.trial.number: run.training_input for run in agent.sync().runs if run.trial is not None}
    third = orders[3]
    flags = ("--layers=0", "--optimizer=sgd", "--momentum=1", "--steps=1")
    assert third.master_config is not None
    assert third.parameter_server_config is not None
    assert third.master_config.container_args == third.parameter_server_config.container_args == flags
    assert third.args == ()


def test_measurement_selection_counts_the_best_or_the_last_measurement(api: Server, agent: ScriptedAgent) -> None:
    def final(values: tuple[float, ...], goal: str, **fields: Any) -> tuple[str, float]:
        spec = study_spec(**fields) | {"metrics": [{"metricId": "accuracy", "goal": goal}]}
        created = create(api, studySpec=spec, maxTrialCount=1, parallelTrialCount=1)
        api.tick()
        finish(api, agent, 1, *values)
        measured = get(api, created)["trials"][0]["finalMeasurement"]
        assert api.job(id_of(created))["state"] == "SUCCEEDED"
        return measured["stepCount"], measured["metrics"][0]["value"]

    values = (0.5, 0.9, 0.4, 0.7)
    best = {"measurementSelectionType": "BEST_MEASUREMENT"}
    assert final(values, "MAXIMIZE") == ("4", 0.7)
    assert final(values, "MAXIMIZE", measurementSelectionType=1) == ("4", 0.7)
    assert final(values, "MAXIMIZE", **best) == ("2", 0.9)
    assert final(values, "MINIMIZE", **best) == ("3", 0.4)


def test_best_of_the_values_that_a_program_prints_counts(api: Server, agent: ScriptedAgent) -> None:
    created = create(api, studySpec=study_spec(measurementSelectionType=2), maxTrialCount=1)
    api.tick()
    run = run_of(agent, 1)
    agent.start(run)
    agent.log(*(f'{{"event": "progress", "step": {step}, "accuracy": {0.8 / step}}}' for step in (1, 2)), run=run)
    agent.exit(run=run)
    api.tick()
    measured = get(api, created)["trials"][0]["finalMeasurement"]
    assert measured == {"stepCount": "1", "metrics": [{"metricId": "accuracy", "value": 0.8}]}


def test_list_cancel_and_delete_are_those_of_a_study(api: Server, agent: ScriptedAgent) -> None:
    api.create("plain", region="us-central1")
    custom = api.done("POST", f"{LOCATION}/customJobs", ALICE, json=custom_job(packageUris=[]))
    api.cancel("plain")
    api.cancel(id_of(custom))
    first, second = (create(api, displayName=name) for name in ("one", "two"))
    create(api, HERE.replace("us-central1", "europe-west4"))

    def listed(**query: Any) -> list[str]:
        return [job["name"] for job in api.get(HERE, **query).get("hyperparameterTuningJobs", [])]

    assert listed() == [second["name"], first["name"]]
    assert listed(filter='display_name="one" AND state="JOB_STATE_QUEUED"') == [first["name"]]
    page = api.get(HERE, pageSize=1)
    assert listed(pageToken=page["nextPageToken"]) == [first["name"]]
    assert listed(filter='displayName="none"') == []
    path = f"{HERE}/{id_of(first)}"
    elsewhere = path.replace("us-central1", "europe-west4")
    of_others = (f"{HERE}/plain", f"{HERE}/{id_of(custom)}", elsewhere)
    for job in of_others:
        for method, verb in (("GET", ""), ("POST", ":cancel"), ("DELETE", "")):
            assert api.refusal(method, job + verb, 404)["status"] == "NOT_FOUND", (method, job)

    api.tick()
    agent.start(run_of(agent, 1, id_of(first)))
    assert "Only a job that has ended can be deleted" in api.refusal("DELETE", path, 400, who=ALICE)["message"]
    api.done("POST", f"{path}:cancel", ALICE, json={})
    stopping = get(api, first)
    assert (stopping["state"], stopping["trials"][0]["state"]) == ("JOB_STATE_CANCELLING", "STOPPING")
    agent.stopped("master-replica-0", run=run_of(agent, 1, id_of(first)))
    api.tick()
    cancelled = get(api, first)
    assert (cancelled["state"], cancelled["error"]["code"]) == ("JOB_STATE_CANCELLED", 1)
    done = api.done("DELETE", path, ALICE)
    assert (done["done"], done["response"]) == (True, {"@type": "type.googleapis.com/google.protobuf.Empty"})
    assert "It was deleted on" in api.refusal("GET", path, 404)["message"]


def test_failed_trials_fail_the_job_with_a_cause_in_terms_of_vertex(api: Server, agent: ScriptedAgent) -> None:
    created = create(api, maxTrialCount=5, maxFailedTrialCount=1)
    api.tick()
    finish(api, agent, 1, code=1)
    failed = get(api, created)
    assert (failed["state"], failed["error"]["code"]) == ("JOB_STATE_FAILED", 3)
    assert failed["error"]["message"].startswith(
        "1 of 5 trials failed (maxFailedTrials is 1). Trial 1: The replica workerpool0-0 exited"
    )


def test_bad_request_names_the_fields_of_vertex(api: Server) -> None:
    study, pool = f"{ROOT}.study_spec", f"{ROOT}.trial_job_spec.worker_pool_specs[0]"
    first = f"{study}.parameters[0]"
    metric = {"metricId": "accuracy", "goal": "MAXIMIZE"}
    broken = tuning_job()["trialJobSpec"]
    broken["workerPoolSpecs"][0]["machineSpec"] = {"machineType": "n1-standard-5"}
    child = {"parameterSpec": RATE | {"parameterId": "other"}, "parentCategoricalValues": {"values": ["rmsprop"]}}

    def parameter(**fields: Any) -> dict[str, Any]:
        return {"studySpec": study_spec({"parameterId": "lr"} | fields)}

    table: list[tuple[dict[str, Any], str, str]] = [
        ({"displayName": ""}, f"{ROOT}.display_name", "must be a text of 1 to 128 characters"),
        ({"labels": {"A": "b"}}, f"{ROOT}.labels", "has the key 'A'"),
        ({"maxTrialCount": 0}, f"{ROOT}.max_trial_count", "must be between 1 and 10000"),
        ({"parallelTrialCount": 0}, f"{ROOT}.parallel_trial_count", "must be 1 or more"),
        ({"maxFailedTrialCount": -1}, f"{ROOT}.max_failed_trial_count", "must be 0 or more"),
        ({"studySpec": study_spec(metrics=[metric, metric])}, f"{study}.metrics", "must have one metric; it has 2."),
        ({"studySpec": study_spec(metrics=[])}, f"{study}.metrics", "must have one metric; it has 0."),
        ({"studySpec": study_spec(metrics=[{"goal": 1}])}, f"{study}.metrics[0].metric_id", "is required"),
        ({"studySpec": study_spec(metrics=[{"metricId": "a"}])}, f"{study}.metrics[0].goal", "is required: MAXIMIZE"),
        (
            {"studySpec": study_spec(metrics=[metric | {"safetyConfig": {}}])},
            f"{study}.metrics[0].safety_config",
            "is not supported: a study has one goal",
        ),
        ({"studySpec": study_spec() | {"parameters": []}}, f"{study}.parameters", "is empty"),
        ({"studySpec": study_spec(algorithm=7)}, f"{study}.algorithm", "is 7, which is none of ALGORITHM_UNSPECIFIED"),
        ({"studySpec": study_spec(algorithm="BAYES")}, f"{study}.algorithm", "must be one of ALGORITHM_UNSPECIFIED"),
        ({"studySpec": study_spec(algorithm=2)}, f"{first}.double_value_spec", "cannot be DOUBLE with GRID_SEARCH"),
        (
            {"studySpec": study_spec(decayCurveStoppingSpec={})},
            f"{study}.decay_curve_stopping_spec",
            "is not supported: use medianAutomatedStoppingSpec",
        ),
        (
            {"studySpec": study_spec(medianAutomatedStoppingSpec={"useElapsedDuration": True})},
            f"{study}.median_automated_stopping_spec.use_elapsed_duration",
            "trials are compared by their steps",
        ),
        (
            {"studySpec": study_spec(studyStoppingConfig={"maxNumTrials": 3})},
            f"{study}.study_stopping_config",
            "a study ends with maxTrialCount",
        ),
        (parameter(), first, "('lr') needs one of doubleValueSpec"),
        (parameter(categoricalValueSpec={"values": []}), first, "needs categoricalValues"),
        (parameter(doubleValueSpec={"minValue": 2, "maxValue": 1}), first, "has a minValue (2.0) above its maxValue"),
        (parameter(doubleValueSpec={"maxValue": 1}, scaleType=2), first, "which needs values above 0"),
        (
            {"studySpec": study_spec(OPTIMIZER | {"conditionalParameterSpecs": [child]})},
            f"{first}.conditional_parameter_specs[0].parent_categorical_values.values[0]",
            "'rmsprop' is not a value of 'optimizer'",
        ),
        (
            {"studySpec": study_spec(OPTIMIZER | {"conditionalParameterSpecs": [{"parameterSpec": RATE}]})},
            f"{first}.conditional_parameter_specs[0].parameter_spec",
            "needs parentCategoricalValues with a value",
        ),
        (
            {"studySpec": study_spec({"parameterId": "a b", "integerValueSpec": {}})},
            f"{first}.parameter_id",
            "cannot be a flag of the program",
        ),
        ({"trialJobSpec": {}}, f"{ROOT}.trial_job_spec.worker_pool_specs", "is required: a list of 1 to 4 pools"),
        ({"trialJobSpec": broken}, f"{pool}.machine_spec.machine_type", "'n1-standard-5' is not a machine type"),
        (
            {"trialJobSpec": broken | {"tensorboard": "x"}},
            f"{ROOT}.trial_job_spec.tensorboard",
            "is not supported: there is no Vertex AI TensorBoard",
        ),
    ]
    wrong = []
    for fields, field, says in table:
        error = api.refusal("POST", HERE, 400, who=ALICE, json=tuning_job(**fields))
        found = {one["field"]: one["description"] for one in error["details"][0]["fieldViolations"]}
        if error["status"] != "INVALID_ARGUMENT" or says not in found.get(field, ""):
            wrong.append(f"{fields}: {found}")
    assert not wrong, "\n".join(wrong)
    assert api.get(HERE) == {}


def test_copy_that_differs_from_its_tuning_job_is_refused(api: Server) -> None:
    given = api.job(id_of(create(api)))["trainingInput"]
    tuned = given["hyperparameters"]

    def submit(name: str, **changes: Any) -> dict[str, Any]:
        return {"json": {"jobId": name, "trainingInput": given | changes}}

    refused = api.refusal("POST", "/v1/projects/p/jobs", 400, **submit("b", hyperparameters=tuned | {"maxTrials": 9}))
    assert "they differ in hyperparameters. Leave tuningJob out, or change both." in refused["message"]
    refused = api.refusal("POST", "/v1/projects/p/jobs", 400, **submit("b", args=["--other"]))
    assert "they differ in args." in refused["message"]
    refused = api.refusal("POST", "/v1/projects/p/jobs", 400, **submit("b", region=""))
    assert "is required with tuningJob" in refused["message"]
    api.done("POST", "/v1/projects/p/jobs", ADMIN, **submit("same"))
    assert api.get(f"{HERE}/same")["studySpec"] == given["tuningJob"]["studySpec"]

"""Collections of Vertex AI that are not here: for each a sentence that says what to use instead.

Names: the paths of the REST transports of google-cloud-aiplatform, `/v1` and `/v1beta1`.
"""

from collections.abc import Mapping

from trainyard_protocol.errors import NotFound, TrainyardError, Unimplemented, shown

_LONGEST = 100
_NO_PREDICTION = (
    "this service trains, and predicts nothing. Serve the model, which a job leaves in its job-dir "
    "(`trainyard jobs download`), with a server of your own."
)
_NO_FEATURES = "write features to files of gs://, or to a database of your own, which a program reads."
_NO_SEARCH = "use a vector database of your own, which a program fills."
_NO_AGENTS = "this service trains models, and runs none of Google's."
_NOTEBOOKS = (
    "submit the notebook as a job (`trainyard jobs submit training --package-path FILE.ipynb`), or open one in a job "
    "that waits (`trainyard jobs dev --notebook`)."
)
_JOBS = "It has create, get, list, cancel and delete; `trainyard jobs update` changes labels."
_LABELLING = "label data before, and put it on gs://."
_MONITORING = (
    "nothing is served here, so that nothing is monitored; metrics of a training are at `trainyard jobs metrics`."
)

_INSTEAD: Mapping[str, str] = {
    "trainingPipelines": (
        "CustomTrainingJob, CustomContainerTrainingJob, CustomPythonPackageTrainingJob and AutoML make these. A "
        "CustomJob trains the same: by CustomJob.from_local_script() a script, by CustomJob(worker_pool_specs=...) an "
        "image or a package."
    ),
    "studies": (
        "a HyperparameterTuningJob suggests parameters and trains with them; `trainyard jobs submit training --sweep` "
        "does the same (docs/how-to/tuning.md)."
    ),
    "nasJobs": "there is no search for architectures; a study searches for parameters (docs/how-to/tuning.md).",
    "tuningJobs": "models of Google are not tuned here. Train one of your own as a CustomJob.",
    "pipelineJobs": "let Airflow, Kubeflow Pipelines or a script submit a CustomJob for each step.",
    "schedules": "let cron, CI or Airflow submit a CustomJob.",
    "models": (
        "there is no model registry. A job saves its model in its job-dir (AIP_MODEL_DIR), which `trainyard jobs "
        "download` fetches; models that a program logs with MLflow are listed with its metrics."
    ),
    **dict.fromkeys(("endpoints", "deploymentResourcePools", "edgeDeploymentJobs"), _NO_PREDICTION),
    "batchPredictionJobs": "a CustomJob can read a model and data of gs://, and write predictions.",
    **dict.fromkeys(("modelDeploymentMonitoringJobs", "modelMonitors", "onlineEvaluators"), _MONITORING),
    "datasets": "put data on gs://, and name it in the arguments of a CustomJob (docs/how-to/data.md).",
    **dict.fromkeys(("dataLabelingJobs", "specialistPools"), _LABELLING),
    "tensorboards": (
        "`trainyard jobs tensorboard JOB` shows the event files of a job. Leave `tensorboard` out of the jobSpec."
    ),
    "metadataStores": (
        "there are no experiments of Vertex AI. Programs report metrics by what they print, or by MLflow "
        "(docs/how-to/metrics.md); leave `experiment` out of aiplatform.init()."
    ),
    "persistentResources": (
        "the machines of the agents are always there. Leave persistentResourceId out of the jobSpec."
    ),
    **dict.fromkeys(("featurestores", "featureGroups", "featureOnlineStores"), _NO_FEATURES),
    **dict.fromkeys(("indexes", "indexEndpoints", "ragCorpora", "ragEngineConfig"), _NO_SEARCH),
    **dict.fromkeys(("notebookRuntimes", "notebookRuntimeTemplates", "notebookExecutionJobs"), _NOTEBOOKS),
    **dict.fromkeys(("publishers", "cachedContents", "reasoningEngines", "agents", "apps"), _NO_AGENTS),
    **dict.fromkeys(("extensions", "extensionControllers", "exampleStores", "evaluationTasks", "solvers"), _NO_AGENTS),
    "migratableResources": "submit old jobs of AI Platform as they are: its v1 API is here.",
    "edgeDevices": "an agent makes a machine a worker (`trainyard agent join`).",
}
_OFFERED: Mapping[str, str] = {
    **dict.fromkeys(("customJobs", "hyperparameterTuningJobs"), _JOBS),
    "operations": "A call has done its work when it answers: there is nothing to wait for, to cancel or to delete.",
    "locations": "It has get and list.",
}


def refusal(collection: str) -> TrainyardError:
    """The error of a call to a collection, whose name may end with `:verb`."""
    name = collection.partition(":")[0]
    if name in _OFFERED:
        return Unimplemented(f"This call of {name} is not offered here. {_OFFERED[name]}")
    if name in _INSTEAD:
        return Unimplemented(f"Vertex AI's {name} are not offered here: {_INSTEAD[name]}")
    offered = ", ".join(_OFFERED)
    return NotFound(f"{shown(name, _LONGEST)} is no collection of this service, which has {offered} of Vertex AI.")


def refusal_of_verb(verb: str) -> TrainyardError:
    """The error of a call to a location itself: `locations/us-central1:evaluateInstances`."""
    return Unimplemented(f"Vertex AI's {shown(verb, _LONGEST)} is not offered here: this service runs training jobs.")

"""Use cases of the hyperparameter tuning jobs of Vertex AI, which are studies."""

from trainyard_protocol.job.tuning_jobs import HyperparameterTuningJob
from trainyard_server.capabilities.google.tuning_jobs import training
from trainyard_server.capabilities.google.vertex_jobs import VertexJobs


class TuningJobs(VertexJobs[HyperparameterTuningJob]):
    collection, key, noun = "hyperparameterTuningJobs", "tuningJob", "hyperparameter tuning job"
    request = staticmethod(training.create_request)
    renamed = staticmethod(training.renamed)
    answer = staticmethod(training.tuning_job)

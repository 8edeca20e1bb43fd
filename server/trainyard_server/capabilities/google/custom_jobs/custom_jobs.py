"""Use cases of the custom jobs of Vertex AI."""

from trainyard_protocol.job import custom_job_training
from trainyard_protocol.job.custom_jobs import CustomJob
from trainyard_server.capabilities.google.custom_jobs.training import custom_job
from trainyard_server.capabilities.google.vertex_jobs import VertexJobs


class CustomJobs(VertexJobs[CustomJob]):
    collection, key, noun = "customJobs", "customJob", "custom job"
    request = staticmethod(custom_job_training.create_request)
    renamed = staticmethod(custom_job_training.renamed)
    answer = staticmethod(custom_job)

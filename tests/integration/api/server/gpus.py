"""A scripted agent with a GPU, which a job uses."""

from integration.api.api_support import AGENT, ScriptedAgent, Server
from trainyard_protocol.job.resources import Gpu
from trainyard_protocol.views.usage import GpuUsage, UsageBatch, UsageSample

WITH_GPU = {
    "masterType": "n1-standard-4",
    "masterConfig": {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": 1}},
}
"""The training input of a job for it."""


def gpu_agent(api: Server) -> ScriptedAgent:
    agent = ScriptedAgent(api, cpus=4, memory_gb=64)
    capacity = agent.info.capacity.model_copy(update={"gpus": (Gpu(id="GPU-0", type="NVIDIA_TESLA_T4"),)})
    agent.info = agent.info.model_copy(update={"capacity": capacity})
    agent.sync()
    return agent


def report_gpu_usage(agent: ScriptedAgent, utilization: float) -> None:
    """The measurement of the GPU by the agent's run, as agents send it."""
    gpu = GpuUsage(id="GPU-0", utilization=utilization, memory_total=16)
    time = agent.server.clock()
    sample = UsageSample(run_id=agent.run.run_id, task="master-replica-0", time=time, cpu=1.0, gpus=(gpu,))
    content = UsageBatch(samples=(sample,)).model_dump_json()
    assert agent.server.client.post("/agent/v1/usage", content=content, headers=AGENT).status_code == 200

"""From an order of the server to what a runtime starts. Pure."""

from collections.abc import Mapping

from trainyard_agent.runtimes.base import Launch
from trainyard_agent.staging.base import Staging
from trainyard_protocol import cluster, machines
from trainyard_protocol.sync import RunOrder
from trainyard_protocol.training_input import parse_training_input


def launches(
    order: RunOrder, addresses: Mapping[str, str], staging: Staging, replica_environment: Mapping[str, str]
) -> list[Launch]:
    """One launch for each replica of the order, in its order, out of what was staged for it.

    Where a name is set both by the service and in `replica_environment`, the service wins: a replica must
    never see another replica's TF_CONFIG. Raises InvalidArgument for a training input that this agent cannot read.
    """
    training_input = parse_training_input(order.training_input)
    job = cluster.JobContext(order.job_id, order.project, training_input)
    by_task = {cluster.Task.parse(task): address for task, address in addresses.items()}
    result = []
    for replica in order.replicas:
        task = cluster.Task.parse(replica.task)
        config = machines.config_of(training_input, task.type)
        if config.image_uri:
            command = cluster.container_arguments(training_input, config)
        else:
            command = cluster.module_command(training_input, staging.python)
        environment = {**replica_environment, **cluster.environment(job, by_task, task)}
        result.append(
            Launch(
                task=replica.task,
                command=tuple(command),
                environment=environment,
                cpus=replica.cpus,
                memory_bytes=replica.memory_bytes,
                gpus=replica.gpus,
                image=staging.images.get(config.image_uri, config.image_uri),
                entrypoint=tuple(config.container_command),
                packages=staging.packages,
                job_dir=training_input.job_dir if staging.job_dir else "",
                job_dir_source=staging.job_dir,
                log_quota_bytes=order.log_quota_bytes,
            )
        )
    return result


def wants_image(order: RunOrder) -> str:
    """The image that the order's job brings; "" for a package job."""
    return parse_training_input(order.training_input).image_uri

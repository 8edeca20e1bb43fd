"""Translation of a run order into the launches of its replicas. Pure."""

from collections.abc import Mapping

from trainyard_agent.runtimes.base import Launch
from trainyard_agent.staging.base import Staging
from trainyard_protocol import cluster, machines
from trainyard_protocol.sync import RunOrder


def launches(
    order: RunOrder, addresses: Mapping[str, str], staging: Staging, replica_environment: Mapping[str, str]
) -> list[Launch]:
    """One launch for each replica, in the order's sequence, with what was staged for the run.

    The service's variables override those of `replica_environment`: a replica must never see another replica's
    TF_CONFIG.
    """
    training_input = order.training_input
    by_task = {cluster.Task.parse(task): address for task, address in addresses.items()}
    result = []
    for replica in order.replicas:
        task = cluster.Task.parse(replica.task)
        config = machines.config_of(training_input, task.type)
        if config.image_uri:
            command = cluster.container_arguments(training_input, config)
        else:
            command = cluster.module_command(training_input, staging.python)
        variables = cluster.environment(order, by_task, task, job_dir=order.directory)
        environment = {**replica_environment, **variables}
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
                job_dir=order.directory if staging.job_dir else "",
                job_dir_source=staging.job_dir,
                log_quota_bytes=order.log_quota_bytes,
            )
        )
    return result

"""Translation of a run order into the launches of its replicas. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

from trainyard_agent.runtimes.base import Keep, Launch, Mount, SecretFile
from trainyard_agent.staging.base import Staging
from trainyard_protocol.fields import seconds
from trainyard_protocol.job import cluster, commands, machines
from trainyard_protocol.job.resources import is_tpu
from trainyard_protocol.net.gcs import EMULATOR, OF_RUN
from trainyard_protocol.wire.sync import RunOrder

_ANY_COMMAND = ("/usr/bin/env",)
"""In place of the entry point of a user's image, which may be a program of its own."""

THROUGH_STORAGE = "storage"
"""In place of the server's address for MLflow's clients: that of gs:// in the environment of replicas."""


@dataclass(frozen=True, slots=True)
class TrackingAddresses:
    """The server's address for MLflow's clients in processes and in containers, "" where they reach none. `ca_file`:
    the certificates of an https:// server, where processes find them."""

    processes: str = ""
    containers: str = ""
    ca_file: str = ""

    def uri_in(self, runtime: str) -> str:
        return self.processes if runtime == "process" else self.containers


def launches(
    order: RunOrder,
    addresses: Mapping[str, str],
    staging: Staging,
    replica_environment: Mapping[str, str],
    secrets: Mapping[str, str] = MappingProxyType({}),
    interface: str = "",
    mounts: tuple[Mount, ...] = (),
    tracking_uri: str = "",
    ca_file: str = "",
) -> list[Launch]:
    """One launch for each replica, in the order's sequence, with what was staged for the run.

    The service's variables override those of `replica_environment`: a replica must never see another replica's
    TF_CONFIG. OF_RUN in the address of gs:// becomes the run's token. `secrets` are the values of those that the job
    refers to, by name. `interface` is the network interface of the addresses, where replicas have to name it.
    `tracking_uri` is the server's address for replicas, or THROUGH_STORAGE, "" where they reach none, with the
    certificates of `ca_file`.
    """
    training_input = order.training_input
    given = {**replica_environment}
    token = order.run_token if OF_RUN in given.get(EMULATOR, "") else ""
    if EMULATOR in given:
        given[EMULATOR] = given[EMULATOR].replace(OF_RUN, token)
    if tracking_uri == THROUGH_STORAGE:
        tracking_uri = given.get(EMULATOR, "")
    tracking = cluster.tracking_variables(training_input, tracking_uri, order.tracking_run, order.run_token, ca_file)
    token = order.run_token if tracking else token
    hosts = {**order.peers, **(order.spread.addresses if order.spread is not None else {}), **addresses}
    by_task = {cluster.Task.parse(task): address for task, address in hosts.items()}
    # As of a shell's $(cat file): the newline at the end of a file is no part of a variable's value.
    variables_of_secrets = {
        ref.variable: secrets[ref.name].rstrip("\r\n") for ref in training_input.secrets if not ref.file
    }
    files = tuple(
        SecretFile(ref.name, ref.file, ref.variable, secrets[ref.name]) for ref in training_input.secrets if ref.file
    )
    result = []
    for replica in order.replicas:
        task = cluster.Task.parse(replica.task)
        config = machines.config_of(training_input, task.type)
        entrypoint = tuple(config.container_command)
        if training_input.runs_image:
            command = commands.container_arguments(training_input, config)
        else:
            command = commands.module_command(training_input, staging.python)
            entrypoint = _ANY_COMMAND if config.image_uri else ()
        environment = cluster.launch_environment(
            order,
            by_task,
            task,
            order.directory,
            given,
            cpus=len(replica.cpus) or replica.vcpus,
            accelerators=len(replica.gpus) or replica.accelerator_count,
            grace_s=order.grace_s,
            of_site={**cluster.interface_variables(interface), **tracking},
        )
        result.append(
            Launch(
                task=replica.task,
                command=tuple(command),
                environment=environment,
                cpus=replica.cpus,
                memory_bytes=replica.memory_bytes,
                gpus=replica.gpus if replica.has_gpus else (),
                vcpus=replica.vcpus,
                accelerator_type=replica.accelerator_type,
                accelerator_count=replica.accelerator_count,
                uses_tpus=is_tpu(replica.accelerator_type),
                pod=replica.pod,
                image=staging.images.get(config.image_uri, config.image_uri),
                entrypoint=entrypoint,
                packages=staging.packages,
                job_dir=staging.job_dir_target,
                job_dir_source=staging.job_dir,
                user=staging.users.get(config.image_uri),
                log_quota_bytes=order.log_quota_bytes,
                keep=_keep(order, task),
                writes_metrics=order.trial is not None and task == cluster.PRIMARY,
                secrets=variables_of_secrets,
                secret_files=files,
                run_token=token,
                mounts=(*mounts, *staging.reads),
            )
        )
    return result


def _keep(order: RunOrder, task: cluster.Task) -> Keep | None:
    """An evaluator is not kept: it starts again."""
    scheduling = order.training_input.scheduling
    if scheduling is None or scheduling.keep_on_failure is None or task.type == "evaluator":
        return None
    return Keep(ceil(seconds(scheduling.keep_on_failure)), order.job_id, order.retried_codes)

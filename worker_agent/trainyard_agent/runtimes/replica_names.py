"""Names and addresses of replicas that have a network of their own, before there are any. Pure."""

from trainyard_protocol.job.cluster import PRIMARY, Task
from trainyard_protocol.wire.sync import RunOrder

PORT = 2222
"""The port of every replica, as in the real service."""

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
"""Capabilities of root inside a container. Entry points of ordinary images need them before their program starts (to
chown a directory, to drop to a user), and an init process to forward a signal to it then. None affects the host."""


def host_name(run_id: str, task: Task) -> str:
    """`cmle-training-worker-1f0c3a9be2-0`, as the real service called its hosts."""
    return f"cmle-training-{task.type}-{run_id[:10].lower()}-{task.index}"


def addresses(order: RunOrder, domain: str = "") -> dict[str, str]:
    """`host:port` by task, of names that the run's network resolves, with the `domain` behind each. A lone master is
    127.0.0.1, as in the real service."""
    tasks = [Task.parse(replica.task) for replica in order.replicas]
    if tasks == [PRIMARY]:
        return {PRIMARY.name: f"127.0.0.1:{PORT}"}
    return {task.name: f"{host_name(order.run_id, task)}{domain}:{PORT}" for task in tasks}

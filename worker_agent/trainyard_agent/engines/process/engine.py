"""The process engine: package jobs as processes of this machine.

Processes are for the jobs of one user (`--one-user`), who is the agent's; else each run needs a user of its own, which
only root can give it.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trainyard_agent.engines.contract import ENVIRONMENTS, Engine, OpenEngine, Place, SettingsRefused
from trainyard_agent.engines.process import doctor
from trainyard_agent.engines.process.runtime import ProcessRuntime
from trainyard_agent.engines.process.temporary import parent_of
from trainyard_agent.host.job_users import JobUsers
from trainyard_agent.runtimes.base import Orphan, Runtime
from trainyard_agent.settings import AgentSettings
from trainyard_agent.staging.base import StagingFailed
from trainyard_agent.staging.environments import user_check
from trainyard_agent.staging.environments.installer_process import kill_orphaned_installers, pip_directory
from trainyard_agent.staging.environments.python_environment import PackageStager
from trainyard_protocol.wire.agents import RuntimeName, RuntimeOffer

_NO_PROCESSES = "package jobs run as processes only where its agent is root or has --one-user"

_log = logging.getLogger(__name__)


class ProcessEngine(Engine):
    name: RuntimeName = "process"

    @contextmanager
    def open(self, place: Place) -> Iterator[OpenEngine]:
        settings = place.settings
        users = _job_users(place)
        closed = _why_closed(place, users)
        if closed and place.alone:
            raise SettingsRefused(
                f"--runtime process: {closed}. Add --one-user if all jobs are this user's own, or use --runtime docker."
            )
        if closed:
            _log.warning("%s; they run in containers", closed)
        offer = RuntimeOffer(name=self.name, replica_environment=settings.environment, problem=closed)
        runtime = ProcessRuntime(settings.state_dir, users, settings.pids_limit, settings.reach)
        root = settings.state_dir / ENVIRONMENTS
        patience_s = settings.install_limits.patience_s
        stager = PackageStager(root, place.fetcher, settings.python, users, place.table, patience_s)
        written = Path(parent_of(has_users=_has_users(place)))
        yield OpenEngine(runtime, stager, lambda: offer, closed=closed, written=(written,))

    @contextmanager
    def attach(self, settings: AgentSettings) -> Iterator[Runtime]:
        users = JobUsers(settings.state_dir)
        with ExitStack() as stack:  # what cannot be killed keeps nothing else alive
            stack.callback(users.kill_all_processes)
            stack.callback(kill_orphaned_installers, settings.state_dir / ENVIRONMENTS, users)
            yield ProcessRuntime(settings.state_dir)

    def orphans(self, settings: AgentSettings) -> list[Orphan]:
        return doctor.orphans(settings.state_dir)


def _job_users(place: Place) -> JobUsers:
    """The users of runs: new ones for new runs where the agent can give them, and must."""
    settings, own = place.settings, _has_users(place)
    users = JobUsers(settings.state_dir, settings.job_uids if own else ())
    if own:
        users.open()
    return users


def _has_users(place: Place) -> bool:
    return os.geteuid() == 0 and not place.settings.one_user and place.admits


def _why_closed(place: Place, users: JobUsers) -> str:
    """The reason why package jobs may not run as processes, where that is asked for; "" if they may."""
    settings = place.settings
    if settings.one_user or not place.admits:
        return ""
    if os.geteuid() != 0:
        return _NO_PROCESSES
    token = () if settings.token_file is None else (settings.token_file.absolute(),)
    secret = (*token, settings.state_dir / "agent.json", *place.private)
    try:
        problem = user_check.problem(
            users.first(), settings.python, settings.state_dir, [Path(pip_directory())], secret
        )
    except (OSError, StagingFailed) as error:
        problem = str(error)
    return f"package jobs cannot run as processes, each run as a user of its own: {problem}" if problem else ""


ENGINE = ProcessEngine()

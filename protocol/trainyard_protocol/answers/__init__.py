"""Answers of the server to people and pages. `answers.jobs.JobDetail` imports the module of an answer when it is first
named: a command builds the models of its own answers alone."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainyard_protocol.answers import agents as agents
    from trainyard_protocol.answers import audit as audit
    from trainyard_protocol.answers import cluster as cluster
    from trainyard_protocol.answers import comparison as comparison
    from trainyard_protocol.answers import configs as configs
    from trainyard_protocol.answers import dependencies as dependencies
    from trainyard_protocol.answers import experiments as experiments
    from trainyard_protocol.answers import files as files
    from trainyard_protocol.answers import google as google
    from trainyard_protocol.answers import health as health
    from trainyard_protocol.answers import jobs as jobs
    from trainyard_protocol.answers import log_views as log_views
    from trainyard_protocol.answers import metrics as metrics
    from trainyard_protocol.answers import operating as operating
    from trainyard_protocol.answers import people as people
    from trainyard_protocol.answers import secrets as secrets
    from trainyard_protocol.answers import stored as stored
    from trainyard_protocol.answers import tuning as tuning
    from trainyard_protocol.answers import why as why


def __getattr__(name: str) -> ModuleType:
    if name.startswith("_"):
        raise AttributeError(name)
    return import_module(f"{__name__}.{name}")

"""Declarations of MLflow's routes: for people and programs of jobs, not in the audit, with answers without nulls."""

from typing import Any

from trainyard_server.api.routing import RouteDecorator, Router
from trainyard_server.capabilities.tracking.messages import NothingToSay
from trainyard_server.domain.access.route_access import UNRECORDED, Access


class MlflowRouter(Router):
    def __init__(self, body_limit: int | None = None) -> None:
        super().__init__("/api/2.0", body_limit=body_limit)

    def call(self, method: str, path: str, what: str, answer: Any = NothingToSay, **options: Any) -> RouteDecorator:
        """A route whose `answer` is a message, or None: it is described by its `response_class`."""
        action = None if method == "GET" else UNRECORDED
        if answer is not None:
            options |= {"response_model": answer, "response_model_exclude_none": True}
        return self.add(method, path, Access.PERSON, f"MLflow: {what}", action, **options)

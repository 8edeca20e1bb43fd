"""Notifications page: the channels of the projects that one sees, and what was sent to whom."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request

from trainyard_server.api.dependencies import Cases, caller_of
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.notifications.channels import Channels
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.permissions import Role
from trainyard_server.domain.access.route_access import Access
from trainyard_server.storage.events.notifier import NOTIFICATIONS_TOPIC

router = Router()


def notifications_view(request: Request, cases: Cases) -> View:
    caller = caller_of(request)

    def read() -> Mapping[str, Any]:
        channels = cases.of(Channels).visible(caller.visible)
        notifications = cases.of(Channels).newest(caller.visible)
        projects = {project for project, _ in channels}
        return {
            "channels": channels,
            "notifications": notifications,
            "may_test": {project for project in projects if caller.may(Role.SUBMITTER, project)},
        }

    return View("notifications/notifications.html", read, (NOTIFICATIONS_TOPIC,))


add_page(router, "/notifications", Access.PERSON, "the page of notifications", notifications_view)

"""Comparisons of jobs, and how a job stands among those that ran the same program."""

from trainyard_server.capabilities.experiments import page, routes
from trainyard_server.capabilities.experiments.comparisons import Comparisons
from trainyard_server.capabilities.experiments.job_card import standing_context
from trainyard_server.capabilities.experiments.standings import Standings
from trainyard_server.capability import Capability
from trainyard_server.dashboard.views import JobCard

EXPERIMENTS = Capability(
    "experiments",
    services=lambda cases: (Standings(cases.backend), Comparisons(cases.backend)),
    job_cards=(JobCard("experiments/_standing.html", standing_context),),
    routers=(routes.router, page.router),
)

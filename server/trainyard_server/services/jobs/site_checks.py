"""Checks of a submission against the site: its regions, versions, engine options, images, bands."""

from functools import cache

from trainyard_protocol.errors import InvalidArgument, PermissionDenied, Violation, quoted
from trainyard_protocol.fields import seconds
from trainyard_protocol.job.config.validation import image_uris
from trainyard_protocol.job.engine_allowance import violations
from trainyard_protocol.job.keys.scheduling import Band, Scheduling
from trainyard_protocol.job.runtimes import check_version, load_runtimes
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.services.jobs.package_uris import check_package_uris


class SiteChecks:
    """Checks for a job that a caller submits to a project."""

    def __init__(self, backend: Backend, caller: Caller, project: str) -> None:
        self._backend = backend
        self._caller = caller
        self._project = project

    def check(self, training_input: TrainingInput) -> float | None:
        """The longest running time of the job's band, in seconds; None: any. Raises InvalidArgument and
        FailedPrecondition: see `Jobs.create`."""
        self._check_engine_options(training_input)
        self._check_region(training_input.region)
        self._check_runtime_version(training_input.runtime_version)
        check_package_uris(self._backend, self._caller, training_input)
        self._check_images(training_input)
        return self._check_band(training_input)

    def check_operator(self) -> None:
        """On a service of one person that others reach, jobs have the rights of that person on its machine: its files,
        and the token of its agent."""
        if self._backend.settings.only_operators_submit and not self._caller.is_operator:
            raise PermissionDenied(
                f"You are {self._caller}. Jobs of this service run with the rights of the user who started it "
                "(trainyard up --listen), so only operators submit them. One of them makes others (trainyard projects "
                "add-member NAME --role admin --all-projects); for people who shall not have these rights the server "
                "runs by itself (docs/how-to/server.md)."
            )

    def _check_region(self, region: str) -> None:
        regions = self._backend.settings.regions
        if regions and region and region not in regions:
            raise InvalidArgument(
                Violation(
                    "region",
                    f"The provided GCE region {quoted(region)} is not available. Options are [{', '.join(regions)}].",
                )
            )

    def _check_runtime_version(self, version: str) -> None:
        """Versions are those of the shipped table, and of the runtimes files of the agents."""
        shipped = _shipped_versions()
        if not version or version in shipped:
            return
        with self._backend.store.read() as reader:
            sites = [name for agent in reader.agents() for name in agent.info.get("runtime_versions", ())]
        check_version(version, tuple(dict.fromkeys([*shipped, *sites])))

    def _check_engine_options(self, training_input: TrainingInput) -> None:
        catalog = self._backend.catalog
        refused = list(violations(training_input.engine_options, catalog.engine_options, self._project, catalog.file))
        if refused:
            raise InvalidArgument(refused)

    def _check_images(self, training_input: TrainingInput) -> None:
        images = self._backend.quota_file.images
        refused = [
            Violation(name, refusal)
            for name, uri in image_uris(training_input).items()
            if (refusal := images.refusal(self._project, uri))
        ]
        if refused:
            raise InvalidArgument(refused)

    def _check_band(self, training_input: TrainingInput) -> float | None:
        """The longest running time of the job's band, in seconds; None: any. Raises InvalidArgument for a band or a
        priority that the caller may not ask for, and for a longer maxRunningTime."""
        sharing = self._backend.quotas.sharing
        scheduling = training_input.scheduling or Scheduling()
        rules, band, wrong = sharing.of(self._project), scheduling.band, []
        role = rules.role_of(band)
        if not self._caller.may(role, self._project):
            others = [other.lower() for other in Band if self._caller.may(rules.role_of(other), self._project)]
            wrong.append(
                Violation(
                    "scheduling.band",
                    f"{band.lower()} is for those with the role {role} in the project {self._project}; you may ask for "
                    f"{', '.join(others)}.",
                )
            )
        most = rules.max_priority
        if most is not None and scheduling.priority > most and not self._caller.may(Role.ADMIN, self._project):
            text = f"must be at most {most} in the project {self._project}, unless an admin of it submits the job"
            wrong.append(Violation("scheduling.priority", f"{text}; this is {scheduling.priority}."))
        limit = sharing.run_limits.get(band)
        if limit is not None and "max_running_time" in scheduling.model_fields_set:
            asked_s = seconds(scheduling.max_running_time)
            if asked_s > limit.total_seconds():
                text = f"must be at most {limit.total_seconds():.0f}s in the band {band.lower()}; this is {asked_s:g}s."
                wrong.append(Violation("scheduling.max_running_time", text))
        if wrong:
            raise InvalidArgument(wrong)
        return None if limit is None else limit.total_seconds()


@cache
def _shipped_versions() -> tuple[str, ...]:
    return load_runtimes().offered

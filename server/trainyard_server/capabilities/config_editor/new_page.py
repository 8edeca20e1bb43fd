"""Page of a new job: a program whose files are dropped there, or a config, empty or cloned from another job."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from fastapi import Query, Request

from trainyard_programs.files import CACHES, HISTORIES
from trainyard_programs.sent_files import MAX_FILES
from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.job.machines import configs_dir
from trainyard_server.api.dependencies import Cases, caller_of
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.config_editor.configs import Configs
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.permissions import ALL_PROJECTS, Caller, Role
from trainyard_server.domain.access.route_access import Access
from trainyard_server.use_cases import UseCases

router = Router()


@dataclass(frozen=True, slots=True)
class Example:
    """An example in `configs/examples`: the directory of its `program`, whose config ends with the text `appended`, or
    a whole `config`."""

    title: str
    program: str = ""
    args: str = ""
    replicas: int = 1
    appended: str = ""
    config: str = ""

    def content(self) -> dict[str, Any]:
        """The example as the page gets it, which sends its files as if they had been dropped there."""
        directory = configs_dir() / "examples"
        files = sorted((directory / self.program).glob("*")) if self.program else []
        return {
            "title": self.title,
            "files": {file.name: file.read_text(encoding="utf-8") for file in files},
            "args": self.args,
            "replicas": self.replicas,
            "appended": (directory / self.appended).read_text(encoding="utf-8") if self.appended else "",
            "config": (directory / self.config).read_text(encoding="utf-8") if self.config else "",
        }


EXAMPLES = {
    "curve": Example("One script that prints its loss", "curve", "--steps 30"),
    "replicas": Example("Two replicas that work together", "replicas", replicas=2),
    "search": Example("A search for the best learning rate", "curve", "--steps 10", appended="search.yaml"),
    "image": Example("A container image (needs Docker)", config="image.yaml"),
}

_DEFAULT_PROJECT = "local"


def new_view(
    request: Request, cases: Cases, project: str = "", origin: Annotated[str, Query(alias="from")] = "", sweep: str = ""
) -> View:
    caller = caller_of(request)

    def read() -> Mapping[str, Any]:
        if not caller.may_anywhere(Role.SUBMITTER):
            return {"start": None}
        projects = _projects(cases, caller)
        first = _DEFAULT_PROJECT if _DEFAULT_PROJECT in projects or not projects else projects[0]
        filled = _clone(cases, caller, origin, sweep) if origin else _blank(cases, project or first)
        return {
            "clones": filled["from"],
            "examples": EXAMPLES,
            "filled": filled,
            "projects": projects,
            "start": {
                "examples": examples(),
                "from": filled["from"],
                "machines": [machine.model_dump() for machine in cases.of(Configs).machines()],
                "package_limit": cases.backend.settings.upload_limit,
                "file_limit": MAX_FILES,
                "histories": sorted(HISTORIES),
                "caches": sorted(CACHES),
            },
        }

    return View("config_editor/new.html", read)


def _blank(cases: UseCases, project: str) -> dict[str, Any]:
    stamp = cases.backend.clock().strftime("%Y%m%d_%H%M%S")
    return {"project": project, "job_id": f"job_{stamp}", "from": None} | dict.fromkeys(
        ("config", "args", "job_dir", "labels"), ""
    )


def _projects(cases: UseCases, caller: Caller) -> list[str]:
    """The projects in which the caller may submit jobs: those that have jobs, and those in which it has a role."""
    with_jobs, _ = cases.job_search.choices(caller.visible)
    return sorted(name for name in {*with_jobs, *caller.grants} - {ALL_PROJECTS} if caller.may(Role.SUBMITTER, name))


def _clone(cases: UseCases, caller: Caller, origin: str, sweep: str) -> dict[str, Any]:
    """`sweep`: the metric of a study around the job. Raises NotFound for a job that is not there, PermissionDenied for
    one of a project that the caller does not see."""
    project, slash, job_id = origin.rpartition("/")
    if not slash:
        raise InvalidArgument(Violation("from", f"looks like PROJECT/JOB; this is {origin!r}."))
    caller.check_sees(project)
    config = cases.of(Configs).config(project, job_id)
    clone = (cases.of(Configs).sweep_clone(project, job_id, sweep) if sweep else None) or config.clone
    return {
        "project": project,
        "job_id": clone.job_id,
        "config": clone.config,
        "args": clone.args_text,
        "job_dir": clone.job_dir,
        "labels": ", ".join(f"{key}={value}" for key, value in clone.labels.items()),
        "from": {"project": project, "job_id": job_id, "job_dir": config.job_dir},
    }


@cache
def examples() -> dict[str, Any]:
    """The content of each example, by its name."""
    return {name: example.content() for name, example in EXAMPLES.items()}


add_page(router, "/new", Access.PERSON, "the form for a new job, in a project where one is a submitter", new_view)

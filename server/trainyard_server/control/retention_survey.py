"""Survey of the jobs that retention may remove, page by page."""

from collections import Counter
from dataclasses import dataclass, field, replace

from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_server.context import Backend
from trainyard_server.domain.retention import EndedJob


@dataclass(slots=True)
class Survey:
    """The jobs up to `key`: those that have ended, by key, and the bytes of the logs of each project. A study is kept
    and removed with its trials, whose keys are above its own."""

    key: int = 0
    ended: dict[int, EndedJob] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    log_bytes: Counter[str] = field(default_factory=Counter)

    def look_on(self, backend: Backend, most: int, *, measures: bool) -> bool:
        """Look at the next `most` jobs, and at the sizes of their logs if it `measures`. False after the last one."""
        with backend.store.read() as reader:
            page = reader.jobs_above(self.key, most)
            orphaned = reader.orphaned_jobs()
        for job in page:
            self.key = job.key
            size = backend.logs.size(job.project, job.job_id) if measures else 0
            self.log_bytes[job.project] += size
            stored = 0 if job.log_removed_at else size
            study = self.ended.get(job.study_key) if job.study_key is not None else None
            if study is not None:
                self.ended[study.key] = replace(study, log_bytes=study.log_bytes + stored)
                if job.key in orphaned:
                    del self.ended[study.key]
            elif job.study_key is not None:
                continue  # of a study that goes on
            elif job.state in FINAL_JOB_STATES and job.ended_at is not None and job.key not in orphaned:
                self.ended[job.key] = EndedJob(job.key, job.ended_at, stored, job.project)
                self.names[job.key] = job.job_id
        return len(page) == most

"""The histories of `test_lifecycle_machine` with studies among the jobs. Whatever dies and comes back, no trial is
created or counted twice, none is lost, and no measurement of a trial that completed is."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from beds.history_checks import check_ending, check_history
from property.test_lifecycle_machine import TrainyardMachine, few_or_many, run_histories
from trainyard_protocol.answers.tuning import StudyView
from trainyard_protocol.states import FINAL_JOB_STATES, JobState

MODULES = ("measures.task", "measures.task", "fails.task", "vanishes.task", "forever.task")
PARAMS = [{"parameterName": "x", "type": "INTEGER", "minValue": 1, "maxValue": 9}]
ENDED = ("finished", "failed", "was cancelled", "was stopped early")


@dataclass
class Submitted:
    max_trials: int
    parallel: int
    module: str


class StudyMachine(TrainyardMachine):
    def __init__(self) -> None:
        super().__init__()
        self.studies: dict[str, Submitted] = {}

    @rule(
        module=st.sampled_from(MODULES),
        max_trials=st.integers(1, 5),
        parallel=st.integers(1, 3),
        algorithm=st.sampled_from(["RANDOM_SEARCH", "GRID_SEARCH"]),
        early=st.booleans(),
    )
    def submit_study(self, module: str, max_trials: int, parallel: int, algorithm: str, early: bool) -> None:
        if len(self.studies) >= 2:
            return
        job_id = f"study_{len(self.studies)}"
        spec = {"params": PARAMS, "maxTrials": max_trials, "maxParallelTrials": parallel}
        spec |= {"algorithm": algorithm, "enableTrialEarlyStopping": early}
        self.do(self.world.submit(job_id, module=module, hyperparameters=spec))
        self.modules[job_id] = module
        self.studies[job_id] = Submitted(max_trials, parallel, module)

    @rule(which=st.integers(0, 1), number=st.integers(1, 5), trial=st.booleans())
    def cancel_study_or_trial(self, which: int, number: int, trial: bool) -> None:
        job_id = f"study_{which}"
        if job_id in self.studies and trial and number <= len(self.do(self.view(job_id)).trials):
            self.do(self.world.cancel(f"{job_id}.{number}"))
        elif job_id in self.studies:
            self.do(self.world.cancel(job_id))

    @invariant()
    def trials_are_numbered_once_and_no_more_than_asked_for(self) -> None:
        for job_id, submitted in self.studies.items():
            study = self.do(self.view(job_id))
            assert [trial.number for trial in study.trials] == list(range(1, len(study.trials) + 1))
            assert len(study.trials) <= submitted.max_trials
            live = [trial for trial in study.trials if trial.state not in FINAL_JOB_STATES]
            assert len(live) <= submitted.parallel
            if study.state in FINAL_JOB_STATES:
                assert not live
            for trial in study.trials:
                check_history(self.do(self.world.detail(trial.job_id)))

    async def finish(self) -> None:
        await super().finish()
        for job_id, submitted in self.studies.items():
            await self.check_study(job_id, submitted)

    async def check_study(self, job_id: str, submitted: Submitted) -> None:
        study, detail = await self.view(job_id), await self.world.detail(job_id)
        for trial in study.trials:
            check_ending(await self.world.detail(trial.job_id))
            if submitted.module == "measures.task" and trial.state is JobState.SUCCEEDED:
                assert trial.measurements == ((1, 0.5), (2, 0.25))
        succeeded = [trial for trial in study.trials if trial.state is JobState.SUCCEEDED]
        assert study.completed == len(succeeded)
        assert detail.job["trainingOutput"]["completedTrialCount"] == str(len(succeeded))
        if detail.state is JobState.SUCCEEDED:
            assert len(study.trials) == submitted.max_trials
            assert succeeded
        lines = [event.message for event in detail.events if event.kind == "trial"]
        for trial in study.trials:
            about = [line for line in lines if line.startswith(f"Trial {trial.number} ")]
            started = sum(" started: " in line for line in about)
            ended = sum(line.startswith(f"Trial {trial.number} {word}") for line in about for word in ENDED)
            assert (started <= 1, ended) == (True, 1), about

    async def view(self, job_id: str) -> StudyView:
        answer: Any = await self.world.call("GET", f"/trainyard/v1/projects/p/jobs/{job_id}/trials")
        assert answer.status_code == 200, answer.text
        return StudyView.model_validate_json(answer.content)


@few_or_many
def test_histories_with_studies(every_database: str, times: int) -> None:
    run_histories(StudyMachine, times * (3 if every_database == "sqlite" else 1))

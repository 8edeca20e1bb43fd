"""Rules of dependencies: what an entry means, and what follows from the end of a predecessor."""

import pytest
from pydantic_core import PydanticCustomError

from trainyard_cli.output.log.wait import with_followers
from trainyard_protocol.answers.dependencies import DependenciesView, NeighbourView
from trainyard_protocol.job.commands import filled
from trainyard_protocol.job.keys.dependencies import Dependency, MetricCondition, dependency_of
from trainyard_protocol.job.training_input import ReplicaConfig, TrainingInput
from trainyard_protocol.states import JobState
from trainyard_server.capabilities.dependencies.rules import (
    Predecessor,
    cancellation,
    is_fulfilled,
    obstacle,
    waits_for,
)


def test_entries_are_read_and_others_are_refused_with_what_is_allowed() -> None:
    read = {
        "train": Dependency("train"),
        " train:ended ": Dependency("train", needs_success=False),
        "train:metrics.val_loss<0.3": Dependency("train", condition=MetricCondition("val_loss", "<", 0.3)),
        "t:metrics.eval/acc >= 9e-1": Dependency("t", condition=MetricCondition("eval/acc", ">=", 0.9)),
        "t:metrics.a!=-2": Dependency("t", condition=MetricCondition("a", "!=", -2.0)),
        "t:metrics.a=2": Dependency("t", condition=MetricCondition("a", "=", 2.0)),
    }
    assert {entry: dependency_of(entry) for entry in read} == read
    refused = {
        "": "must begin with the name of a job of the same project",
        "other/train": "must begin with the name of a job of the same project",
        "study.3": "must begin with the name of a job of the same project",
        "train:finished": "has the condition 'finished'; allowed: nothing (it succeeded), ended, or metrics.NAME",
        "train:metrics.loss": "has the condition",
        "train:metrics.loss<nan": "has the condition",
        "train:metrics.loss==1": "has the condition",
        "train:loss<1": "has the condition",
    }
    for entry, says in refused.items():
        with pytest.raises(PydanticCustomError) as refusal:
            dependency_of(entry)
        assert says in refusal.value.message(), entry


LOSS = dependency_of("train:metrics.loss<0.3")
GOOD, BAD = JobState.SUCCEEDED, JobState.FAILED
NO_NUMBER = Predecessor(GOOD, has_all_metrics=True, names=("loss",))
CASES: list[tuple[Dependency, Predecessor, bool, str]] = [
    (Dependency("train"), Predecessor(JobState.RUNNING), False, ""),
    (Dependency("train"), Predecessor(GOOD), True, ""),
    (Dependency("train"), Predecessor(BAD), False, "train ended as FAILED, and it was to start after that job had"),
    (Dependency("train"), Predecessor(None), False, "train was deleted"),
    (Dependency("train", needs_success=False), Predecessor(JobState.CANCELLING), False, ""),
    (Dependency("train", needs_success=False), Predecessor(JobState.CANCELLED), True, ""),
    (LOSS, Predecessor(GOOD, value=0.1), False, ""),
    (LOSS, Predecessor(GOOD, has_all_metrics=True, value=0.1), True, ""),
    (LOSS, Predecessor(BAD, has_all_metrics=True, value=0.1), False, "train ended as FAILED"),
    (LOSS, Predecessor(GOOD, True, 0.4), False, "train ended with loss = 0.4, and it was to start if loss < 0.3"),
    (LOSS, NO_NUMBER, False, "train ended with a loss that is no number, and it was to start if loss < 0.3"),
    (LOSS, Predecessor(GOOD, True, names=("los",)), False, 'to start if loss < 0.3. Did you mean'),
    (LOSS, Predecessor(GOOD, True, names=("acc", "f1")), False, "start if loss < 0.3. It has acc, f1"),
    (LOSS, Predecessor(GOOD, True), False, "start if loss < 0.3. It has none"),
]  # fmt: skip


def test_end_of_a_predecessor_fulfils_a_dependency_or_makes_it_impossible() -> None:
    wrong = [
        (dependency, predecessor, is_fulfilled(dependency, predecessor), obstacle(dependency, predecessor))
        for dependency, predecessor, fulfilled, clause in CASES
        if is_fulfilled(dependency, predecessor) is not fulfilled
        or (not fulfilled and (clause not in obstacle(dependency, predecessor)))
        or (not fulfilled and not clause and obstacle(dependency, predecessor))
    ]
    assert wrong == []
    assert cancellation("train was deleted") == "The job was cancelled because train was deleted."
    assert waits_for([LOSS, dependency_of("prepare:ended")]) == (
        "waits for train to succeed with loss < 0.3 and for prepare to end"
    )


def test_placeholders_of_variables_are_filled_in_all_arguments() -> None:
    variables = {"TRAINYARD_AFTER_JOB_DIR": "gs://b/train"}
    given = TrainingInput(
        args=("--from={after.job_dir}/model", "{after.other}"),
        master_config=ReplicaConfig(image_uri="i", container_args=("{after.job_dir}",)),
    )
    result = filled(given, variables)
    assert result.args == ("--from=gs://b/train/model", "{after.other}")
    assert result.master_config is not None
    assert result.master_config.container_args == ("gs://b/train",)
    assert filled(given, {}) is given


def test_wait_for_all_has_each_follower_once() -> None:
    after = {"a": ("b", "c"), "b": ("d",), "c": ("d", "a2"), "a2": (), "d": (), "x": ()}

    def dependencies(name: str) -> DependenciesView:
        neighbours = [NeighbourView(job_id=job, wanted="", state=JobState.QUEUED) for job in after[name]]
        return DependenciesView(predecessors=(), followers=tuple(neighbours))

    assert with_followers(("x", "a", "x"), dependencies) == ("x", "a", "b", "c", "d", "a2")

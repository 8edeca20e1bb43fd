"""The page of what a program finds, against the variables that a replica gets."""

from dataclasses import dataclass
from pathlib import Path

from trainyard_protocol.job.cluster import (
    PRIMARY,
    Task,
    TrialOrder,
    environment,
    interface_variables,
    thread_variables,
    tracking_variables,
)
from trainyard_protocol.job.ranks import RANK_VARIABLES
from trainyard_protocol.job.training_input import TrainingInput

PAGE = Path(__file__).parents[4] / "docs" / "explanation" / "what-a-program-finds.md"


@dataclass(frozen=True)
class Trial:
    training_input: TrainingInput
    trial: TrialOrder
    job_id: str = "j"
    project: str = "p"


def test_page_has_the_row_of_every_rank_and_no_other() -> None:
    table = PAGE.read_text().partition("### Ranks")[2].partition("\n\nSo these")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert rows == [variable.row for variable in RANK_VARIABLES]


def test_page_names_every_variable_of_a_replica() -> None:
    job = Trial(TrainingInput(), TrialOrder(study="s", number=1, metric_tag="a", hyperparameters={}))
    addresses = {PRIMARY: "a:1", Task("worker", 0): "b:1"}
    names = {
        *environment(job, addresses, PRIMARY, "gs://b/j"),
        *thread_variables(1),
        *interface_variables("eth0"),
        *tracking_variables(TrainingInput(), "https://t", "r", "t", "ca.pem"),
    }
    page = PAGE.read_text()
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []

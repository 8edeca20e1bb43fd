"""Old trainings brought into MLflow by its client, with the times of then."""

import csv
import io

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

LOG = """run,started,ended,lr,times,losses
winter,1704103200000,1704106800000,0.1,1704103260000 1704105000000 1704106740000,0.9 0.5 0.25
spring,1711965600000,1711969200000,0.01,1711965660000 1711967400000 1711969140000,0.95 0.8 nan
"""

client = MlflowClient()
found = client.get_experiment_by_name("archive")
experiment_id = found.experiment_id if found else client.create_experiment("archive", tags={"origin": "csv"})

for row in csv.DictReader(io.StringIO(LOG)):
    run = client.create_run(
        experiment_id, start_time=int(row["started"]), run_name=row["run"], tags={"season": row["run"]}
    )
    times, losses = row["times"].split(), row["losses"].split()
    client.log_batch(
        run.info.run_id,
        metrics=[
            Metric("loss", float(loss), int(time), step)
            for step, (time, loss) in enumerate(zip(times, losses, strict=True))
        ],
        params=[Param("lr", row["lr"])],
        tags=[RunTag("imported", "yes")],
    )
    client.set_terminated(run.info.run_id, status="FINISHED" if losses[-1] != "nan" else "FAILED", end_time=int(row["ended"]))

for run in client.search_runs([experiment_id], filter_string="tags.imported = 'yes'", order_by=["attributes.start_time"]):
    print(run.info.run_name, run.info.status, run.data.metrics)

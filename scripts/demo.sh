#!/bin/sh
# The main job, end to end, in a state directory of the checkout: the service is started, a chief and a worker
# train on the digits, the model is loaded in a fresh process, and the service is stopped again.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
TRAINYARD_STATE_DIR="${TRAINYARD_STATE_DIR:-$PWD/.trainyard}"
export PATH TRAINYARD_STATE_DIR
job="quickstart_$(date +%Y%m%d_%H%M%S)"

if [ -t 1 ]; then bold='\033[1m' plain='\033[0m'; else bold='' plain=''; fi
heading() { printf "\n$bold%s$plain\n" "$*"; }
value() { trainyard jobs describe "$job" --format "value($1)"; }

trap 'trainyard down' EXIT
trap 'exit 130' INT TERM

heading "1. Start the service"
trainyard up --runtime auto

heading "2. jobs submit training $job --config configs/quickstart.yaml -- --epochs 5"
trainyard jobs submit training "$job" --config configs/quickstart.yaml \
    --package-path trainer_template/trainer --stream-logs -- --epochs 5

heading "3. Results"
job_dir="$(trainyard jobs describe "$job" --all --format 'value(job_dir)')"
accuracy=$(trainyard jobs stream-logs "$job" --task master-replica-0 2>&1 |
    sed -n 's/.*"held_out_accuracy": *\([0-9.]*\).*/\1/p' | tail -n 1)
echo "state:              $(value state)"
echo "held-out accuracy:  $accuracy"
echo "model:              $job_dir/model"
awk -v a="$accuracy" 'BEGIN { exit !(a >= 0.95) }' || {
    echo "The accuracy is below 0.95." >&2
    exit 1
}

heading "4. Load the model in a fresh process and predict ten digits"
(cd trainer_template && python -m trainer.task --job-dir "$job_dir" --predict 10)

heading "Done. The model stays in $TRAINYARD_STATE_DIR; the service is stopped."

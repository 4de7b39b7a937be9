#!/usr/bin/env bash
# One run on one Slurm allocation: a Ray head on the first host, a Ray node on each other, and `diloco run` on them.
#
#   sbatch --nodes 4 --gpus-per-node 8 --time 24:00:00 deploy/slurm/diloco.sh RECIPE RUN_DIR [--set KEY=VALUE ...]
#
# RUN_DIR is a folder that all hosts share. The environment in which sbatch is called has this project, the same on all.
# Three minutes before the time limit the run stops cleanly and the job is queued again: it resumes from RUN_DIR.
#SBATCH --job-name=diloco
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

recipe=${1:?usage: sbatch diloco.sh RECIPE RUN_DIR [--set KEY=VALUE ...]}
folder=${2:?usage: sbatch diloco.sh RECIPE RUN_DIR [--set KEY=VALUE ...]}
shift 2
: "${SLURM_JOB_ID:?is not set: start this script with sbatch}" "${SLURM_JOB_NODELIST:?}" "${SLURM_JOB_NUM_NODES:?}"

mkdir -p "$(dirname "$folder")"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="${folder%/}.token" # beside the run's folder, which is the run's alone
[ -s "$RAY_AUTH_TOKEN_PATH" ] || (umask 077 && python3 -c 'import secrets; print(secrets.token_hex(32))' >"$RAY_AUTH_TOKEN_PATH")

hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST") # no `| head`: a closed pipe would end this script
head=${hosts%%$'\n'*}
address="$head:$((20000 + SLURM_JOB_ID % 10000))"
steps=()
trap 'kill "${steps[@]}" 2>/dev/null || true' EXIT

srun --overlap --nodes 1 --ntasks 1 --nodelist "$head" \
    ray start --head --node-ip-address "$head" --port "${address#*:}" --block &
steps+=($!)
for attempt in {1..60}; do
    ray health-check --address "$address" >/dev/null 2>&1 && break
    if [ "$attempt" = 60 ]; then
        echo "diloco.sh: no Ray head answers at $address" >&2
        exit 1
    fi
    sleep 2
done

others=$((SLURM_JOB_NUM_NODES - 1))
if [ "$others" -gt 0 ]; then
    srun --overlap --nodes "$others" --ntasks "$others" --exclude "$head" ray start --address "$address" --block &
    steps+=($!)
fi

requeued=""
# shellcheck disable=SC2317  # the trap calls it
stop_and_requeue() {
    requeued=1
    python3 -m orchestrator stop "$folder" --reason "the Slurm allocation ends" || true
}
trap stop_and_requeue USR1

python3 -m orchestrator run "$recipe" --set "run.folder=$folder" --address "$address" "$@" &
run=$!
code=0
wait "$run" || code=$?
if [ -n "$requeued" ]; then # the first wait was ended by the signal
    wait "$run" || true
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"

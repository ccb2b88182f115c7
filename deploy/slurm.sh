#!/bin/bash
#SBATCH --job-name=kernelcast
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=01:00:00
#
# Searches on all nodes of a job: the first one begins a Ray cluster, the others join it.
#
#   sbatch --nodes=4 deploy/slurm.sh softmax -n 200 --store "$HOME/runs.db"
#
# The arguments are those of `kernelcast search`. The home folder, which holds the cluster's token,
# is the same on all nodes, and `kernelcast` is on the PATH. KERNELCAST_BACKEND names the backend
# that detects the devices, KERNELCAST_SLOTS their number a node.
set -euo pipefail

backend=${KERNELCAST_BACKEND:-cpp}
slots=${KERNELCAST_SLOTS:-1}
port=$((20000 + SLURM_JOB_ID % 20000))
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
read -r address _ < <(getent ahostsv4 "$first")
others=$((SLURM_JOB_NUM_NODES - 1))

trap 'kernelcast farm down' EXIT
kernelcast farm up --host "$address" --port "$port" \
    --device auto --backend "$backend" --slots "$slots"

# A step's processes end with the step, so Ray stays in the foreground of it.
if ((others > 0)); then
    srun --nodes="$others" --ntasks="$others" --exclude="$first" \
        kernelcast farm join "$address:$port" --backend "$backend" --slots "$slots" -- --block &
fi

kernelcast search "$@" --farm ray --set "farm.address=$address:$port"

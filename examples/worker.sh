#!/usr/bin/env bash
# A worker as a shell script: worker.cpp says what it does and how.
#
#   muster run --nproc-per-node 2 --max-restarts 1 examples/worker.sh --steps 5 --fail-at 3
#       --checkpoint progress
set -euo pipefail

steps=5 pause=0.2 checkpoint='' fail_at=0 fail_rank=0 fail_how=error
while [ $# -gt 1 ]; do
  case $1 in
    --steps) steps=$2 ;;
    --pause) pause=$2 ;;
    --checkpoint) checkpoint=$2 ;;
    --fail-at) fail_at=$2 ;;
    --fail-rank) fail_rank=$2 ;;
    --fail-how) fail_how=$2 ;;
    *) echo "worker.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done

rank=${RANK:-0}
muster=${MUSTER_BIN:-muster}
for name in RANK WORLD_SIZE LOCAL_RANK GROUP_RANK MASTER_ADDR MASTER_PORT \
    TORCHELASTIC_RESTART_COUNT MUSTER_ROUND; do
  printf '%s=%s ' "$name" "${!name-}"
done
echo

# Puts the reason where the report of the job looks for it. The simple shape is enough.
record() {
  [ -n "${TORCHELASTIC_ERROR_FILE-}" ] || return 0
  printf '{"message": "%s", "timestamp": %s}\n' "$1" "$(date +%s)" >"$TORCHELASTIC_ERROR_FILE.new"
  mv "$TORCHELASTIC_ERROR_FILE.new" "$TORCHELASTIC_ERROR_FILE"
}

fail() {
  case $fail_how in
    crash) kill -ABRT $$ ;;
    exit) exit 3 ;;
  esac
  record "step $1 went wrong"
  echo "worker.sh: step $1 went wrong" >&2
  exit 1
}

step=0
if [ -n "$checkpoint" ] && [ -f "$checkpoint" ]; then
  step=$(<"$checkpoint")
  echo "rank $rank goes on after step $step"
fi
while [ "$step" -lt "$steps" ]; do
  step=$((step + 1))
  if [ "${TORCHELASTIC_RESTART_COUNT:-0}" = 0 ] && [ "$rank" = "$fail_rank" ] &&
      [ "$step" = "$fail_at" ]; then
    fail "$step"
  fi
  sleep "$pause"
  echo "rank $rank has done step $step of $steps"
  if [ -n "$checkpoint" ] && [ "$rank" = 0 ]; then
    # Whoever is killed while saving leaves the old file as it was.
    echo "$step" >"$checkpoint.new"
    mv "$checkpoint.new" "$checkpoint"
  fi
  # Tells the agent that this worker makes progress. Only needed under --hang-timeout.
  # Where the program is not to be found, the worker goes on without.
  if [ -n "${MUSTER_AGENT_SOCKET-}" ] && command -v "$muster" >/dev/null; then
    "$muster" alive || true
  fi
done

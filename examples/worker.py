#!/usr/bin/env python3
"""A worker in Python that needs nothing but Python: worker.cpp says what it does and how.

  muster run --nproc-per-node 2 --max-restarts 1 examples/worker.py --steps 5 --fail-at 3
      --checkpoint progress
"""

import argparse
import json
import os
import socket
import sys
import time
import traceback


def print_environment():
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
             "TORCHELASTIC_RESTART_COUNT", "MUSTER_ROUND")
    print(" ".join(f"{name}={os.environ.get(name, '')}" for name in names))


def say_alive():
    """Tells the agent that this worker makes progress. Only needed under --hang-timeout."""
    path = os.environ.get("MUSTER_AGENT_SOCKET")
    if not path:
        return
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(5)
        agent.connect(path)
        agent.sendall(b"alive\n")
        agent.recv(100)  # "ok"


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            return int(file.read())
    except FileNotFoundError:
        return 0


def save(path, step):
    """Whoever is killed while saving leaves the old file as it was."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(f"{step}\n")
    os.replace(path + ".new", path)


def record(error):
    """Puts the reason where the report of the job looks for it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    details = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
    reason = {"message": f"{type(error).__name__}: {error}", "extraInfo": details}
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump({"message": reason}, file)
    os.replace(path + ".new", path)


def fail(how, step):
    if how == "crash":
        os.abort()
    if how == "exit":
        sys.exit(3)
    raise RuntimeError(f"step {step} went wrong")


def work(options):
    rank = int(os.environ.get("RANK", "0"))
    is_first_start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    print_environment()
    done = load(options.checkpoint) if options.checkpoint else 0
    if done:
        print(f"rank {rank} goes on after step {done}")
    for step in range(done + 1, options.steps + 1):
        if is_first_start and rank == options.fail_rank and step == options.fail_at:
            fail(options.fail_how, step)
        time.sleep(options.pause)
        print(f"rank {rank} has done step {step} of {options.steps}", flush=True)
        if options.checkpoint and rank == 0:
            save(options.checkpoint, step)
        say_alive()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.2)
    parser.add_argument("--checkpoint", default="")
    parser.add_argument("--fail-at", type=int, default=0)
    parser.add_argument("--fail-rank", type=int, default=0)
    parser.add_argument("--fail-how", choices=("error", "exit", "crash"), default="error")
    options = parser.parse_args()
    try:
        work(options)
    except Exception as error:
        record(error)
        raise


if __name__ == "__main__":
    main()

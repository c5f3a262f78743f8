#!/usr/bin/env python3
"""A group without a fixed size: workers come, leave, and die while a coordinator hands out work.

  muster run --nproc-per-node 1 examples/python/elastic.py

The one program that `muster run` starts is the coordinator. It starts the workers itself, as
something that watches the load of a cluster would: three at first; one of them leaves after a
while, as one does whose machine is wanted back; one kills itself in the middle of its work, and a
new one is started in its place. No work is lost: a chunk whose worker is gone goes to another one.
The new one joins when the group has given up the one that died, five seconds after its last sign
of life.

The work is counting primes. In the end the coordinator counts them alone, and compares.
"""

import argparse
import os
import queue
import signal
import subprocess
import sys
import threading

import muster.rpc as rpc

COORDINATOR = "coordinator"


def count_primes(first, end):
    """How many primes there are from `first` to `end` - 1."""
    count = 0
    for number in range(max(first, 2), end):
        divisor = 2
        while divisor * divisor <= number and number % divisor:
            divisor += 1
        count += divisor * divisor > number
    return count


# ---- workers -----------------------------------------------------------------------------------

# How many chunks this process has begun, and in which one it is to die, if in any.
begun = 0
dies_in = 0


def work(first, end):
    global begun
    begun += 1
    if begun == dies_in:
        count_primes(first, (first + end) // 2)
        os.kill(os.getpid(), signal.SIGKILL)  # nothing is answered, and nobody is told
    return count_primes(first, end)


def be_worker(name, options):
    """Joins the group, works until the coordinator says that it may go, and leaves."""
    global dies_in
    dies_in = options.dies_in
    rank = int(os.environ["RANK"])
    rpc.init_rpc(name, rank=rank)  # no world_size: it may come when it likes
    # Answered when there is nothing left to do here; the work itself comes by calls from there.
    rpc.rpc_sync(COORDINATOR, take_in, args=(name, options.leaves_after), timeout=0)
    rpc.shutdown()
    print(f"{name} leaves after {begun} chunks", flush=True)


# ---- the coordinator ---------------------------------------------------------------------------


class Coordinator:
    """Chunks of work, who does them, and what came of them. Begins when `first_count` have come."""

    def __init__(self, end, chunk_size, first_count):
        self.chunks = queue.SimpleQueue()
        for first in range(0, end, chunk_size):
            self.chunks.put((first, min(first + chunk_size, end)))
        self.lock = threading.Lock()
        self.missing = self.chunks.qsize()
        self.awaited = first_count
        self.may_begin = threading.Event()
        self.all_done = threading.Event()
        self.primes = 0
        self.done_by = {}
        self.lost = []

    def employ(self, worker, count_max):
        """Hands chunks to a worker, one after the other; returns when it may go."""
        with self.lock:
            self.done_by[worker] = 0
            self.awaited -= 1
            if self.awaited == 0:
                self.may_begin.set()
        self.may_begin.wait()
        while not count_max or self.done_by[worker] < count_max:
            try:
                chunk = self.chunks.get(timeout=0.1)
            except queue.Empty:
                # Others have what is left. It stays, in case that one of them dies.
                if self.all_done.is_set():
                    return
                continue
            try:
                primes = rpc.rpc_sync(worker, work, args=chunk)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                print(f"{worker} is lost with chunk {chunk}: {reason}", flush=True)
                self.lost.append(worker)
                start_worker()
                self.chunks.put(chunk)
                return
            with self.lock:
                self.done_by[worker] += 1
                self.primes += primes
                self.missing -= 1
                if self.missing == 0:
                    self.all_done.set()


coordinator = None
started = []


def take_in(worker, count_max):
    """Called by a worker that has come. One thread of the pool looks after each of them."""
    print(f"{worker} has come", flush=True)
    coordinator.employ(worker, count_max)


def start_worker(*arguments):
    """A new process, with a rank that no other has had."""
    number = len(started) + 1
    environment = {**os.environ, "RANK": str(number)}
    command = [sys.executable, __file__, "--worker", f"worker{number}", *arguments]
    started.append(subprocess.Popen(command, env=environment))


def coordinate(options):
    global coordinator
    coordinator = Coordinator(options.end, options.chunk_size, first_count=3)
    chunk_count = coordinator.missing
    rpc.init_rpc(COORDINATOR, rank=0)
    start_worker()
    start_worker("--leaves-after", "3")
    start_worker("--dies-in", "2")
    coordinator.all_done.wait()
    statuses = [process.wait() for process in started]
    rpc.shutdown()

    for worker, count in sorted(coordinator.done_by.items()):
        print(f"{worker} did {count} chunks")
    done = sum(coordinator.done_by.values())
    print(f"{done} of {chunk_count} chunks done by {len(started)} workers, {len(coordinator.lost)} "
          f"lost on the way: {coordinator.primes} primes below {options.end}")
    if statuses.count(-signal.SIGKILL) != 1 or statuses.count(0) != len(statuses) - 1:
        raise SystemExit(f"workers ended with {statuses}")
    if coordinator.primes != count_primes(0, options.end):
        raise SystemExit("one process counts something else")
    print("as in one process")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--end", type=int, default=500_000, help="look at the numbers below it")
    parser.add_argument("--chunk-size", type=int, default=5000, help="so many numbers at once")
    parser.add_argument("--worker", metavar="NAME", help="be a worker with this name")
    parser.add_argument("--leaves-after", type=int, default=0, help="chunks; 0: at the end")
    parser.add_argument("--dies-in", type=int, default=0, help="which chunk; 0: in none")
    options = parser.parse_args()
    if options.worker:
        be_worker(options.worker, options)
    else:
        coordinate(options)


if __name__ == "__main__":
    main()

"""PyTorch's remote references in the reference comparison: the same roles, commands and answers as
those of rref_load.cpp.

  torch_rref.py owner --transport tcp|shm                     prints "listening ADDRESS"
  torch_rref.py third|user --transport tcp|shm --address ADDRESS

Where Muster has a future of a fetch, PyTorch only has to_here(), which waits: many fetches at once
are made by as many threads as bring the most. Of many references that are created and fetched, the
creations are under way at once.
"""

import argparse
import collections
import json
import os
import sys
import time

from torch.distributed import rpc

from threads import in_threads
from torch_rpc import TRANSPORTS, free_port

ROLES = ("owner", "user", "third")
WARM_UP_SECONDS = 0.1
CREATIONS_UNDER_WAY = 100  # where only the result counts
FETCHING_THREADS = 4
PATIENCE = 60


def make(value):
    return value


def touch(_reference):
    pass


def counters():
    return {name: int(text) for name, text in rpc._rref_context_get_debug_info().items()}


def join(role, transport, port):
    transports, channels = TRANSPORTS[transport]
    rpc.init_rpc(
        role,
        rank=ROLES.index(role),
        world_size=len(ROLES),
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            init_method=f"tcp://127.0.0.1:{port}",
            rpc_timeout=60,
            _transports=transports,
            _channels=channels,
        ),
    )


def create():
    return rpc.remote("owner", make, args=(7,))


def wait_until_told():
    """The owner has acknowledged everything that it was told."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        now = counters()
        if now["num_pending_futures"] == 0 and now["num_pending_users"] == 0:
            return
        time.sleep(0)  # lets PyTorch's threads have the interpreter
    raise RuntimeError("references are still not settled")


class User:
    def __init__(self):
        self.held = []
        self.works = {
            "create": self.create,
            "create-fetch": lambda: create().to_here(),
            "fetch": lambda: self.held[0].to_here(),
            "pass": lambda: rpc.rpc_sync("third", touch, args=(self.held[0],)),
            "delete": self.delete,
        }

    def prepare(self, name):
        self.held.clear()
        if name in ("fetch", "pass"):
            self.hold(1)

    def hold(self, count):
        creations = collections.deque()
        for _ in range(count):
            self.held.append(create())
            creations.append(self.held[-1]._get_future())
            if len(creations) >= CREATIONS_UNDER_WAY:
                creations.popleft().wait()
        for creation in creations:
            creation.wait()

    def release(self):
        """Nothing is left, here and on the owner."""
        self.held.clear()
        wait_until_told()
        ends = time.monotonic() + PATIENCE
        while rpc.rpc_sync("owner", counters)["num_owner_rrefs"] > 0:
            if time.monotonic() > ends:
                raise RuntimeError("the owner still has references")
            time.sleep(0.001)

    # ---- one after the other

    def one_after_the_other(self, name, seconds):
        self.prepare(name)
        self.lengths_until(name, time.perf_counter() + WARM_UP_SECONDS)
        lengths = sorted(self.lengths_until(name, time.perf_counter() + seconds))
        self.release()
        last = len(lengths) - 1
        return {"p50_us": lengths[int(0.5 * last)], "p99_us": lengths[int(0.99 * last)]}

    def lengths_until(self, name, ends):
        """In microseconds."""
        lengths, work = [], self.works[name]
        while time.perf_counter() < ends:
            if name == "delete":
                self.hold(1)
                wait_until_told()
            begun = time.perf_counter()
            work()
            lengths.append((time.perf_counter() - begun) * 1e6)
        return lengths

    def create(self):
        self.held.append(create())
        self.held[-1]._get_future().wait()

    def delete(self):
        self.held.clear()
        wait_until_told()

    # ---- many at once

    def many_at_once(self, name, seconds, in_flight, count):
        self.prepare(name)
        if name == "delete":
            rate = self.delete_at_once(count)
        else:
            self.keep_many(name, WARM_UP_SECONDS, in_flight)
            rate = self.keep_many(name, seconds, in_flight)
        self.release()
        return {"per_s": rate}

    def keep_many(self, name, seconds, in_flight):
        """How many a second."""
        if name == "fetch":
            return self.fetch_in_threads(seconds)
        begin, end = {
            "create": (self.begin_creation, lambda creation: creation.wait()),
            "create-fetch": (create, lambda reference: reference.to_here()),
            "pass": (
                lambda: rpc.rpc_async("third", touch, args=(self.held[0],)),
                lambda future: future.wait(),
            ),
        }[name]
        begun, answered = time.perf_counter(), 0
        under_way = collections.deque(begin() for _ in range(in_flight))
        while under_way:
            end(under_way.popleft())
            answered += 1
            if time.perf_counter() - begun < seconds:
                under_way.append(begin())
        return answered / (time.perf_counter() - begun)

    def begin_creation(self):
        self.held.append(create())
        return self.held[-1]._get_future()

    def fetch_in_threads(self, seconds):
        begun, answered = time.perf_counter(), []

        def fetch(_):
            count = 0
            while time.perf_counter() - begun < seconds:
                self.held[0].to_here()
                count += 1
            answered.append(count)

        in_threads(FETCHING_THREADS, fetch)
        return sum(answered) / (time.perf_counter() - begun)

    def delete_at_once(self, count):
        self.hold(count)
        begun = time.perf_counter()
        self.held.clear()
        wait_until_told()
        return count / (time.perf_counter() - begun)

    # ---- commands

    def answer(self, line):
        command, *words = line.split()
        given = dict(word.split("=", 1) for word in words)
        name = given.get("case", "")
        seconds, count = float(given.get("seconds", 0.5)), int(given.get("count", 0))
        if command == "after":
            return self.one_after_the_other(name, seconds)
        if command == "many":
            return self.many_at_once(name, seconds, int(given.get("in_flight", 1)), count)
        if command == "hold":
            self.hold(count)
            return {"held": count}
        if command == "release":
            self.release()
            return {}
        raise ValueError(f"there is no command {command}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--transport", choices=TRANSPORTS, default="tcp")
    parser.add_argument("--address")
    arguments = parser.parse_args()
    if arguments.role == "owner":
        arguments.address = str(free_port())
        print(f"listening {arguments.address}", flush=True)
    join(arguments.role, arguments.transport, int(arguments.address))
    if arguments.role != "user":
        sys.stdin.read()
        os._exit(0)  # without the goodbye that would wait for the others
    user = User()
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            answer = user.answer(line)
        except Exception as error:  # whatever PyTorch raises becomes the answer
            answer = {"error": str(error).splitlines()[0] if str(error) else type(error).__name__}
        print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

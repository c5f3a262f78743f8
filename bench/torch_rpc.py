"""PyTorch's RPC in the RPC comparison.

  torch_rpc.py server --transport tcp|shm                     prints "listening ADDRESS"
  torch_rpc.py client --transport tcp|shm --address ADDRESS   prints "ready", then reads a case as
                                                              one line of JSON, answers with one

Loading PyTorch takes seconds, so one client does all cases. It talks through TensorPipe: tcp is its
uv transport with the basic channel, shm its shm transport with the cma channel. A server takes one
client. Both end when their input does.
"""

import argparse
import collections
import functools
import itertools
import json
import os
import socket
import sys
import time

import torch
from torch.distributed import rpc

from threads import in_threads

SERVER = "server"
TRANSPORTS = {"tcp": (["uv"], ["basic"]), "shm": (["shm"], ["cma", "basic"])}


def noop():
    pass


def echo(tensor):
    return tensor


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def join(name, rank, transport, port):
    transports, channels = TRANSPORTS[transport]
    rpc.init_rpc(
        name,
        rank=rank,
        world_size=2,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            init_method=f"tcp://127.0.0.1:{port}",
            rpc_timeout=60,
            _transports=transports,
            _channels=channels,
        ),
    )


def call_until(ends, call):
    """The lengths of the calls, in microseconds."""
    lengths = []
    before = time.perf_counter()
    while before < ends:
        call()
        now = time.perf_counter()
        lengths.append((now - before) * 1e6)
        before = now
    return lengths


def measure_calls(seconds, threads, call):
    warm, lengths = max(0.05, seconds / 5), []
    in_threads(threads, lambda _: call_until(time.perf_counter() + warm, call))
    cpu, begun = time.process_time(), time.perf_counter()
    in_threads(threads, lambda _: lengths.extend(call_until(begun + seconds, call)))
    elapsed = time.perf_counter() - begun
    cpu = time.process_time() - cpu
    lengths.sort()
    return {
        "p50_us": lengths[int(0.5 * (len(lengths) - 1))],
        "p99_us": lengths[int(0.99 * (len(lengths) - 1))],
        "calls_per_s": len(lengths) / elapsed,
        "cpu_s": cpu,
    }


def keep_in_flight(count, seconds):
    """How many calls were answered, and within how many seconds."""
    begun, answered = time.perf_counter(), 0
    futures = collections.deque(rpc.rpc_async(SERVER, noop) for _ in range(count))
    while futures:
        futures.popleft().wait()
        answered += 1
        if time.perf_counter() - begun < seconds:
            futures.append(rpc.rpc_async(SERVER, noop))
    return answered, time.perf_counter() - begun


def measure_in_flight(count, seconds):
    keep_in_flight(count, max(0.05, seconds / 5))
    cpu = time.process_time()
    answered, elapsed = keep_in_flight(count, seconds)
    return {"calls_per_s": answered / elapsed, "cpu_s": time.process_time() - cpu}


def call_echo(payload):
    return rpc.rpc_sync(SERVER, echo, args=(payload,))


@functools.lru_cache(maxsize=None)
def payloads_of(size):
    """Two that take turns, so that no reply of before can pass. No byte of one is like the other's
    at the same place. Memory for their replies has been had before."""
    first = torch.randint(0, 256, (size,), dtype=torch.uint8)
    payloads = first, first + 1
    for payload in payloads:
        call_echo(payload)
    return payloads


def measure_echo(size, seconds):
    turns = itertools.cycle(payloads_of(size))
    sent, reply = None, None

    def call():
        nonlocal sent, reply
        sent = next(turns)
        reply = call_echo(sent)

    result = measure_calls(seconds, 1, call)
    if not torch.equal(reply, sent):
        raise RuntimeError("an echo brought other bytes than were sent")
    return {**result, "bytes_per_s": result["calls_per_s"] * 2 * size}


def measure(work):
    name, seconds = work["case"], work["seconds"]
    if name == "noop":
        return measure_calls(seconds, work["threads"], lambda: rpc.rpc_sync(SERVER, noop))
    if name == "inflight":
        return measure_in_flight(work["in_flight"], seconds)
    if name == "echo":
        return measure_echo(work["bytes"], seconds)
    if name == "idle":
        cpu = time.process_time()
        time.sleep(seconds)
        return {"cpu_s": time.process_time() - cpu}
    raise ValueError(f"there is no case {name}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("server", "client"))
    parser.add_argument("--transport", choices=TRANSPORTS, default="tcp")
    parser.add_argument("--address")
    arguments = parser.parse_args()
    if arguments.role == "server":
        port = free_port()
        print(f"listening {port}", flush=True)
        join(SERVER, 0, arguments.transport, port)
        sys.stdin.read()
        os._exit(0)  # without the goodbye that would wait for the client
    join("client", 1, arguments.transport, int(arguments.address))
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            answer = measure(json.loads(line))
        except Exception as error:  # whatever PyTorch raises becomes the answer
            answer = {"error": str(error).splitlines()[0] if str(error) else type(error).__name__}
        print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

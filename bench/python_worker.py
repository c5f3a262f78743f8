"""One worker of the Python comparison, with muster.rpc or torch.distributed.rpc: the same lines for
both, but for the import.

  python_worker.py LIBRARY serve FILE                 a server and a client that meet in FILE; the
  python_worker.py LIBRARY call FILE                  client reads commands and answers with JSON
  python_worker.py LIBRARY life FILE RANK SIZE        init and shutdown, and how long each took
  python_worker.py LIBRARY import                     how long the import takes, and what it needs

LIBRARY is muster or torch. Commands: `sync seconds=S`, `inflight seconds=S count=N`,
`remote seconds=S`, `echo seconds=S bytes=B`, `end`.
"""

import json
import sys
import time

LIBRARY = sys.argv[1]


def load():
    if LIBRARY == "muster":
        import muster.rpc as rpc
    else:
        import torch.distributed.rpc as rpc
    return rpc


def noop():
    return None


def make(value):
    return value


def echo(value):
    return value


def percentile(sorted_samples, share):
    return sorted_samples[min(len(sorted_samples) - 1, int(share * len(sorted_samples)))]


WARM_UP_CALLS = 5
CALLS_MIN = 10


def one_after_the_other(action, seconds):
    """Microseconds that each takes. The first calls do not count: memory that was never used before
    costs more than the call."""
    for _ in range(WARM_UP_CALLS):
        action()
    samples = []
    end = time.perf_counter() + seconds
    while True:
        before = time.perf_counter()
        if before >= end and len(samples) >= CALLS_MIN:
            break
        action()
        samples.append((time.perf_counter() - before) * 1e6)
    samples.sort()
    return {"p50_us": percentile(samples, 0.5), "p99_us": percentile(samples, 0.99)}


class Client:
    def __init__(self, rpc):
        self.rpc = rpc

    def sync(self, seconds):
        return one_after_the_other(lambda: self.rpc.rpc_sync("server", noop), seconds)

    def inflight(self, seconds, count):
        """So many calls at once, again and again."""
        done = 0
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            futures = [self.rpc.rpc_async("server", noop) for _ in range(int(count))]
            for future in futures:
                future.wait()
            done += len(futures)
        return {"per_s": done / (time.perf_counter() - begin)}

    def remote(self, seconds):
        return one_after_the_other(
            lambda: self.rpc.remote("server", make, args=(7,)).to_here(), seconds
        )

    def echo(self, seconds, bytes):
        import torch

        tensor = torch.ones(int(bytes) // 4)
        taken = one_after_the_other(
            lambda: self.rpc.rpc_sync("server", echo, args=(tensor,)), seconds
        )
        taken["bytes_per_s"] = 2 * bytes / (taken["p50_us"] / 1e6)
        return taken


def options(rpc, path):
    return rpc.TensorPipeRpcBackendOptions(init_method=f"file://{path}", rpc_timeout=60)


def talk(role, path):
    import torch  # noqa: F401  both have it, so that both pickle tensors

    rpc = load()
    rank = 0 if role == "serve" else 1
    rpc.init_rpc(
        "server" if rank == 0 else "client",
        rank=rank,
        world_size=2,
        rpc_backend_options=options(rpc, path),
    )
    if role == "call":
        client = Client(rpc)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            command, *words = line.split()
            if command == "end":
                break
            given = {key: float(value) for key, value in (word.split("=") for word in words)}
            print(json.dumps(getattr(client, command)(**given)), flush=True)
    rpc.shutdown()


def live(path, rank, size):
    rpc = load()
    # All begin at once: what they wait for before is each other's start.
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    begin = time.perf_counter()
    rpc.init_rpc(
        f"worker{rank}", rank=rank, world_size=size, rpc_backend_options=options(rpc, path)
    )
    rpc.shutdown()
    print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


def resident_bytes():
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not say how much memory there is")


def measure_import():
    before = resident_bytes()
    begin = time.perf_counter()
    load()
    taken = time.perf_counter() - begin
    print(json.dumps({"seconds": taken, "bytes": resident_bytes() - before}), flush=True)


def main():
    role = sys.argv[2]
    if role == "import":
        measure_import()
    elif role == "life":
        live(sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        talk(role, sys.argv[3])


if __name__ == "__main__":
    main()

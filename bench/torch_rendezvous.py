"""PyTorch's c10d rendezvous: as many processes as nodes, forked from this one, over one TCPStore.

  torch_rendezvous.py    reads "join nodes=N patience_s=S" a line, answers one line of JSON

Every node is connected before the clock starts, then all join at once; the answer is how long it
took until the last one knew its rank, and the same for a second round of the same nodes.
"""

import datetime
import json
import os
import select
import signal
import struct
import sys
import time

# The store that workers begin with is not what is compared.
os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"

from torch.distributed import TCPStore  # noqa: E402
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (  # noqa: E402
    C10dRendezvousBackend,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (  # noqa: E402
    DynamicRendezvousHandler,
    RendezvousTimeout,
)

ROUNDS = 2


def make_handler(port, run_id, index, count, patience):
    store = TCPStore(
        "127.0.0.1",
        port,
        is_master=False,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=patience),
    )
    return DynamicRendezvousHandler.from_backend(
        run_id=run_id,
        store=store,
        backend=C10dRendezvousBackend(store, run_id),
        min_nodes=count,
        max_nodes=count,
        local_addr=f"node-{index:06}.rack-{index // 40:03}.cluster.datacenter.example",
        timeout=RendezvousTimeout(join=datetime.timedelta(seconds=patience)),
    )


def be_node(port, run_id, index, count, patience, ready, starts, done):
    handler = make_handler(port, run_id, index, count, patience)
    for number in range(ROUNDS):
        os.write(ready, b"r")
        os.read(starts[number], 1)  # ends when the parent closes it
        handler.next_rendezvous()
        os.write(done, struct.pack("d", time.monotonic()))


def read_exactly(fd, size, ends):
    """None if it does not come in time."""
    data = b""
    while len(data) < size:
        if not select.select([fd], [], [], max(ends - time.monotonic(), 0))[0]:
            return None
        piece = os.read(fd, size - len(data))
        if not piece:
            return None
        data += piece
    return data


def join(count, patience):
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
    run_id = f"bench-{os.getpid()}-{time.monotonic_ns()}"
    ready_read, ready_write = os.pipe()
    done_read, done_write = os.pipe()
    starts = [os.pipe() for _ in range(ROUNDS)]
    children = []
    for index in range(count):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                for _, write_end in starts:
                    os.close(write_end)
                be_node(
                    server.port,
                    run_id,
                    index,
                    count,
                    patience,
                    ready_write,
                    [read_end for read_end, _ in starts],
                    done_write,
                )
            finally:
                os._exit(0)
        children.append(child)
    times = []
    try:
        for number in range(ROUNDS):
            ends = time.monotonic() + patience
            if read_exactly(ready_read, count, ends) is None:
                break
            began = time.monotonic()
            os.close(starts[number][1])
            data = read_exactly(done_read, 8 * count, time.monotonic() + patience)
            if data is None:
                break
            times.append(max(struct.unpack(f"{count}d", data)) - began)
    finally:
        for number in range(len(times) + 1, ROUNDS):
            os.close(starts[number][1])
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
        for fd in (ready_read, ready_write, done_read, done_write):
            os.close(fd)
        for read_end, _ in starts:
            os.close(read_end)
    return {"rounds": times}


def main():
    for line in sys.stdin:
        command, *words = line.split()
        arguments = dict(word.split("=", 1) for word in words)
        try:
            assert command == "join"
            answer = join(int(arguments["nodes"]), float(arguments["patience_s"]))
        except Exception as error:  # told to whoever asked
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


main()

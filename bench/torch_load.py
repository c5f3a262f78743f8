"""What torch_load.cpp does, in Python, for where that cannot be compiled. The interpreter lock
makes its threads take turns, so the figures of many clients say less about the servers; both
servers are measured with it alike.

  torch_load.py serve PORT_FILE    hosts a TCPStore (libuv) until its input ends
  torch_load.py                    reads one command a line, answers one line of JSON
"""

import datetime
import json
import os
import sys
import threading
import time

from torch.distributed import TCPStore

from threads import in_threads

stores = {}  # by port; kept, since connecting is not what is measured


def connect(port):
    return TCPStore(
        "127.0.0.1",
        port,
        is_master=False,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=30),
    )


def serve(file):
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
    with open(file + ".new", "w", encoding="ascii") as draft:
        draft.write(f"{store.port}\n")
    os.rename(file + ".new", file)
    sys.stdin.read()


def operation_of(name, store, key, values):
    if name == "get":
        return lambda turn: store.get(key)
    if name == "set":
        return lambda turn: store.set(key, values[0])
    if name == "add":
        return lambda turn: store.add(key, 1)
    if name == "compare_set":
        return lambda turn: store.compare_set(key, values[turn % 2], values[1 - turn % 2])
    raise ValueError(f"there is no operation {name}")


def closed_loop(work, clients):
    count, seconds = int(work["clients"]), int(work["milliseconds"]) / 1e3
    values = ["a" * int(work["value_bytes"]), "b" * int(work["value_bytes"])]
    lengths, firsts, lasts = [[] for _ in range(count)], [0.0] * count, [0.0] * count
    turns = [0] * count  # with those of the warm-up
    together = threading.Barrier(count)

    def client(index):
        store, key, mine = clients[index], f"bench/{index:06}", lengths[index]
        store.set(key, "0" if work["operation"] == "add" else values[0])
        store.check([key])
        operate = operation_of(work["operation"], store, key, values)
        together.wait()
        before = time.perf_counter()
        begins = before + seconds / 5
        ends = begins + seconds
        turn = 0
        while before < ends:
            operate(turn)
            now = time.perf_counter()
            if before >= begins:
                mine.append(now - before)
            before, turn = now, turn + 1
        if work["operation"] == "set":
            store.check([key])  # a set has no reply
        firsts[index], lasts[index], turns[index] = begins, time.perf_counter(), turn

    in_threads(count, client)
    return [length for each in lengths for length in each], max(lasts) - min(firsts), sum(turns)


def wake(work, clients):
    count, seconds = int(work["clients"]), int(work["milliseconds"]) / 1e3
    setter, run, lengths, elapsed = connect(int(work["port"])), time.perf_counter_ns(), [], 0.0
    ends, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < ends:
        key, done = f"bench/wake/{run}/{turn}", [0.0] * count

        def client(index):
            clients[index].wait([key])
            done[index] = time.perf_counter()

        waiters = threading.Thread(target=in_threads, args=(count, client))
        waiters.start()
        time.sleep(0.002 + 0.0002 * count)  # nobody can tell when the server has seen a wait
        begun = time.perf_counter()
        setter.set(key, "a" * int(work["value_bytes"]))
        waiters.join()
        lengths += [each - begun for each in done]
        elapsed += time.perf_counter() - begun
        turn += 1
    return lengths, elapsed, len(lengths)


def obey(line):
    command, *words = line.split()
    if command != "measure":
        raise ValueError(f"there is no command {command}")
    work = dict(word.split("=", 1) for word in words)
    port, count = int(work["port"]), int(work["clients"])
    clients = stores.setdefault(port, [])
    while len(clients) < count:
        clients.append(connect(port))
    lengths, elapsed, all_count = (wake if work["operation"] == "wake" else closed_loop)(
        work, clients
    )
    lengths.sort()

    def at(fraction):
        return round(lengths[min(len(lengths) - 1, int(fraction * len(lengths)))] * 1e6, 3)

    return {
        "operations": len(lengths),
        "all_operations": all_count,
        "seconds": elapsed,
        "rate": len(lengths) / elapsed,
        "p50": at(0.5),
        "p99": at(0.99),
        "longest": at(1.0),
    }


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "serve":
        serve(sys.argv[2])
        return
    for line in sys.stdin:
        try:
            answer = obey(line)
        except Exception as error:  # whatever PyTorch raises becomes the answer
            answer = {"error": str(error).splitlines()[0] if str(error) else type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

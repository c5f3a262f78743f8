"""The parts that PyTorch processes other than the test itself play.

Functions that take a pipe first run under muster.Peer. As a program, this file lets an interpreter
with another PyTorch version take part in `exchange`:  peers.py exchange HOST PORT NAME ALL,NAMES
"""

import json
import os
import sys

import muster

dist = muster.import_distributed()
import torch  # noqa: E402  (after the check above, which explains a missing PyTorch)


def connect(host, port, **options):
    options.setdefault("timeout", muster.PATIENCE)
    return dist.TCPStore(host, port, is_master=False, **options)


def count(_pipe, host, port, name, rounds, everyone):
    """Adds `rounds` times, then waits until all have done so; answers the total."""
    store = connect(host, port)
    for _ in range(rounds):
        store.add("total", 1)
    store.set(f"done/{name}", name)
    store.wait([f"done/{other}" for other in everyone])
    return store.add("total", 0)


def ping_pong(_pipe, host, port, own, other, rounds):
    """Waits for each key of `other`, and answers with the next of its own."""
    store = connect(host, port)
    for index in range(rounds):
        if own == "ping":
            store.set(f"ping/{index}", str(index))
        if store.get(f"{other}/{index}") != str(index).encode():
            raise AssertionError(f"wrong value in round {index}")
        if own == "pong":
            store.set(f"pong/{index}", str(index))
    return rounds


def compete(_pipe, host, port, name, everyone, rounds):
    """Tries to become the leader of each round; answers who did."""
    store = connect(host, port)
    store.set(f"ready/{name}", "")
    store.wait([f"ready/{other}" for other in everyone])
    return [store.compare_set(f"leader/{index}", "", name).decode() for index in range(rounds)]


def get_each(pipe, host, port, keys):
    """Gets one key after the other, and says so just before; answers the values."""
    store = connect(host, port)
    values = []
    for key in keys:
        pipe.send(key)
        values.append(store.get(key))
    return values


def pop(pipe, host, port, queue):
    """Waits for an item of `queue`."""
    store = connect(host, port)
    store.add("connected", 1)
    pipe.send("popping")
    return store.queue_pop(queue)


def obey(pipe, host, port, options):
    """Does with its store what it is told, until it is told None; answers how each call ended."""
    store = connect(host, port, **options)
    pipe.send(os.getpid())
    while (request := pipe.recv()) is not None:
        method, arguments = request
        try:
            pipe.send(("returned", getattr(store, method)(*arguments)))
        except RuntimeError as error:
            pipe.send(("raised", str(error)))


def connect_and_set(pipe, host, port):
    """Connects, perhaps before there is a server."""
    pipe.send("connecting")
    store = connect(host, port)
    store.set("early", "bird")
    return store.add("births", 1)


def outlive_server(pipe, host, port):
    """Keeps a store until its server has gone; answers how the next operation fails."""
    store = connect(host, port)
    pipe.send(store.add("before", 1))
    pipe.recv()  # The server has ended.
    try:
        store.add("before", 1)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def wait_in_vain(pipe, host, port):
    """Waits until the server ends; answers how the wait fails."""
    store = connect(host, port)
    store.add("connected", 1)
    pipe.send("waiting")
    try:
        store.get("never")
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def host_store(pipe, port, world_size):
    """Hosts a store whose constructor waits for the workers; answers what they left in "report"."""
    pipe.send("hosting")
    store = dist.TCPStore("127.0.0.1", port, world_size=world_size, is_master=True,
                          timeout=muster.PATIENCE)
    pipe.send("complete")
    pipe.recv()  # The test is through with the store.
    return store.get("report").decode()


# ---- gloo -------------------------------------------------------------------------------------


def _collectives(rank, world_size):
    """One round of collective operations; answers what this rank saw."""
    total = torch.full((1000,), float(rank + 1))
    dist.all_reduce(total)
    dist.barrier()
    objects = [{"from": rank}, None] if rank != 1 else [{"from": 1}, "all of it"]
    dist.broadcast_object_list(objects, src=1)
    pair = dist.new_group([0, world_size - 1])
    partial = torch.tensor([float(rank)])
    if rank in (0, world_size - 1):
        dist.all_reduce(partial, group=pair)
    dist.barrier()
    return {"sums": sorted(set(total.tolist())), "objects": objects, "pair": partial.item()}


def gloo_with_store(_pipe, host, port, rank, world_size, rounds):
    """A process group per round, each on its own prefix of one store."""
    store = connect(host, port, world_size=world_size)
    seen = []
    for index in range(rounds):
        dist.init_process_group("gloo", store=dist.PrefixStore(f"round/{index}", store), rank=rank,
                                world_size=world_size, timeout=muster.PATIENCE)
        seen.append(_collectives(rank, world_size))
        dist.destroy_process_group()
    return seen


def gloo_from_environment(_pipe, host, port, rank, world_size):
    """A process group the way a launcher that owns the store sets its workers up."""
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(world_size), TORCHELASTIC_USE_AGENT_STORE="True",
                      TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_RUN_ID="test")
    dist.init_process_group("gloo", init_method="env://", timeout=muster.PATIENCE)
    seen = _collectives(rank, world_size)
    dist.destroy_process_group()
    return seen


# ---- both versions at once --------------------------------------------------------------------

EXCHANGE_ROUNDS = 100


def exchange(_pipe, host, port, name, everyone):
    """Keys, counters, waits, compare_set and deletions together with `everyone`, of any version."""
    store = connect(host, port, world_size=len(everyone))
    shared = dist.PrefixStore("shared", store)

    shared.set(f"greeting/{name}", f"hello from {name}".encode() + b"\x00\xff")
    shared.wait([f"greeting/{other}" for other in everyone])
    greetings = {other: shared.get(f"greeting/{other}").decode("latin-1") for other in everyone}

    leader = shared.compare_set("leader", "", name).decode()

    for index in range(EXCHANGE_ROUNDS):
        # Each in turn: everyone else waits for the key that the one whose turn it is writes.
        if everyone[index % len(everyone)] == name:
            shared.set(f"turn/{index}", name)
        else:
            shared.wait([f"turn/{index}"])
        shared.add("total", 1)

    if shared.add("arrived", 1) == len(everyone):
        shared.set("all here", "")
    shared.wait(["all here"])
    total = shared.add("total", 0)

    deleted = shared.delete_key("greeting/" + name)
    return {"version": torch.__version__, "greetings": greetings, "leader": leader, "total": total,
            "deleted": deleted}


if __name__ == "__main__":
    role, address, number, own_name, names = sys.argv[1:]
    if role != "exchange":
        sys.exit(f"unknown role {role!r}")
    print(json.dumps(exchange(None, address, int(number), own_name, names.split(","))))

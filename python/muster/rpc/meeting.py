"""Where the workers of a group meet: a store on a server, or in a file."""

import os
from urllib.parse import parse_qs, urlparse


class Meeting:
    """address: "host:port", or "file:///path".
    group: tells this group from others in the same store; "": the round of the job.
    store: kept for as long as this is, if this worker hosts the server.
    """

    def __init__(self, address, group="", store=None):
        self.address = address
        self.group = group
        self.store = store


def _number(name):
    text = os.environ.get(name)
    if text is None:
        raise ValueError(
            f"Error initializing RPC with env://: environment variable {name} expected, but not "
            "set; start the program with `muster run`, or set it"
        )
    return int(text)


def _endpoint(host, port):
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# The servers of this process, which groups that come later use again: others may still need them to
# end theirs.
_servers = {}


def _serve(host, port, rank, world_size):
    """The meeting at a server, which rank 0 hosts."""
    if rank != 0:
        return Meeting(_endpoint(host, port))
    store = _servers.get((host, port))
    if store is None:
        from muster.store import TCPStore

        store = TCPStore(host, port, world_size, is_master=True, wait_for_workers=False)
        _servers[(host, port)] = store
    return Meeting(_endpoint(host, store.port), store=store)


def meet(init_method, rank, world_size):
    """The meeting that an init method names; with the rank and the size of the group."""
    url = urlparse(init_method)
    query = {key: values[-1] for key, values in parse_qs(url.query).items()}
    if "rank" in query:
        rank = int(query["rank"])
    if "world_size" in query:
        world_size = int(query["world_size"])
    if url.scheme == "env":
        if os.environ.get("RANK") is not None and (rank < 0 or not world_size):
            rank = int(os.environ["RANK"])
        if rank < 0:
            rank = _number("RANK")
        host = os.environ.get("MASTER_ADDR")
        if host is None:
            raise ValueError(
                "Error initializing RPC with env://: environment variable MASTER_ADDR expected, "
                "but not set; start the program with `muster run`, or set it"
            )
        port = _number("MASTER_PORT")
        # Under `muster run` and torchrun there is a store already.
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return Meeting(_endpoint(host, port)), rank, world_size
        return _serve(host, port, rank, world_size), rank, world_size
    if url.scheme not in ("tcp", "file"):
        raise RuntimeError(
            f"No rendezvous handler for {url.scheme}://; init_method is env://, tcp://host:port or "
            "file:///path"
        )
    if rank < 0:
        raise ValueError(
            f"Error initializing RPC with {url.scheme}://: rank parameter missing"
        )
    if url.scheme == "tcp":
        if url.port is None:
            raise ValueError(
                "Error initializing RPC with tcp://: port number missing"
            )
        return _serve(url.hostname, url.port, rank, world_size), rank, world_size
    path = url.netloc + url.path
    if not path:
        raise ValueError("Error initializing RPC with file://: path missing")
    return Meeting("file://" + path), rank, world_size


def as_meeting(store):
    """The meeting in a store, of this package or of PyTorch."""
    if isinstance(store, Meeting):
        return store
    prefixes = []
    kept = store
    while hasattr(store, "underlying_store"):
        prefixes.insert(0, getattr(store, "prefix", ""))
        store = store.underlying_store
    group = "/".join(["rpc", *prefixes])
    if hasattr(store, "path"):
        return Meeting("file://" + store.path, group, kept)
    if hasattr(store, "host") and hasattr(store, "port"):
        return Meeting(_endpoint(store.host, store.port), group, kept)
    raise RuntimeError(
        f"workers cannot meet in a {type(store).__name__}; give a TCPStore or a FileStore, or an "
        "init_method"
    )

"""The workers of file_timer_test.py: they run in processes of their own (see muster.Peer)."""

import logging
import os
import signal
import socket
import time

import torch.distributed.elastic.timer as timer


def obey(pipe, path, kill_signal):
    """Does with its timers what it is told, until it is told None.

    Says its pid first, and then what became of each order.
    """
    logging.disable(logging.CRITICAL)  # PyTorch 2 logs every attempt to reach a server that is gone.
    client = timer.FileTimerClient(path, kill_signal)
    timer.configure(client)
    pipe.send(os.getpid())
    while (order := pipe.recv()) is not None:
        name, *arguments = order
        try:
            pipe.send(ORDERS[name](client, *arguments))
        except Exception as error:  # pylint: disable=broad-except
            pipe.send(f"{type(error).__name__}: {error}")


def _acquire(client, scope, seconds):
    client.acquire(scope, time.time() + seconds)
    return "acquired"


def _release(client, scope):
    client.release(scope)
    return "released"


def _guarded(_client, seconds, times):
    """Many guarded blocks, each of which ends in time; one of them with an exception."""
    for index in range(times):
        with timer.expires(after=seconds):
            pass
        with timer.expires(after=seconds, scope=f"block {index}"):
            pass
    try:
        with timer.expires(after=seconds, scope="fails"):
            raise ValueError("on purpose")
    except ValueError:
        return "guarded"


def _hang(_client, seconds):
    """A guarded block that does not end by itself; only the server can end it."""
    with timer.expires(after=seconds):
        while True:
            signal.pause()


ORDERS = {"acquire": _acquire, "release": _release, "guarded": _guarded, "hang": _hang}


def tell(pipe, path, lines):
    """Sends each line to the agent's socket over one connection; answers what came back."""
    pipe.send(os.getpid())
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(path)
        with agent.makefile("rw", buffering=1) as stream:
            answers = []
            for line in lines:
                stream.write(f"{line}\n")
                answers.append(stream.readline())
            pipe.send(answers)
            pipe.recv()

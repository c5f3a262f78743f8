"""A worker that cannot go on without all others, and that numbers what it prints.

Rank 0 gathers a word from every rank, saves the step, and tells all. The ranks find it through the
agents' store. Nothing has a timeout: a worker whose peers are gone waits until its agent ends it.

Every line goes to stdout, to stderr, and then to a journal of the worker's own: what is in the
journal must be in the logs.
"""

import os
import socket
import subprocess
import sys
import time

FOLDER = os.environ["CHAOS_FOLDER"]
RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
ROUND = int(os.environ["MUSTER_ROUND"])
STORE = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
ADDRESS = os.environ["CHAOS_ADDRESS"]
STEP_SECONDS = 0.02
LAST_STEPS = 20  # once the job has been told to come to an end
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Voice:
    def __init__(self):
        self._name = f"{os.environ['CHAOS_HOST']}-{os.getppid()}-{os.getpid()}-{time.time_ns()}"
        self._journal = os.open(f"{FOLDER}/journals/{self._name}", APPEND, 0o644)
        self._count = 0

    def say(self):
        self._count += 1
        # Below PIPE_BUF, so a worker that is killed has written all of it or nothing.
        filling = "x" * (self._count * 37 % 1500)
        line = f"{self._name} {self._count} {filling}.\n".encode()
        os.write(1, line)
        os.write(2, line)
        os.write(self._journal, f"{self._count}\n".encode())


def store(*words):
    """`muster store WORDS` at the agents' store."""
    command = [os.environ["MUSTER_BIN"], "store", words[0], "--endpoint", STORE, "--timeout=-1"]
    done = subprocess.run([*command, *words[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{words}: {done.stderr.decode()}")
    return done.stdout.decode().strip()


def load():
    """What the latest round has saved. Each saves under its own number: one that was given up while
    it was saving must not undo what its successor did."""
    rounds = [int(name) for name in os.listdir(f"{FOLDER}/saved") if name.isdigit()]
    if not rounds:
        return 0
    with open(f"{FOLDER}/saved/{max(rounds)}", encoding="utf-8") as file:
        return int(file.read())


def save(step):
    # The ledger first: it may have a step that was not saved any more, but not the other way round.
    ledger = os.open(f"{FOLDER}/ledger", APPEND, 0o644)
    os.write(ledger, f"{ROUND} {WORLD_SIZE} {step}\n".encode())
    os.close(ledger)
    path = f"{FOLDER}/saved/{ROUND}"
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(f"{step}\n")
    os.replace(f"{path}.new", path)


def lead(voice):
    listener = socket.create_server((ADDRESS, 0), backlog=WORLD_SIZE)
    store("set", "chaos", f"{ADDRESS} {listener.getsockname()[1]}")
    peers = []
    while len(peers) < WORLD_SIZE - 1:
        connection = listener.accept()[0]
        peers.append(connection.makefile("rw", encoding="utf-8"))
    step = load()
    last = 0
    while last == 0 or step < last:
        time.sleep(STEP_SECONDS)
        for _ in range(1 + step % 5):
            voice.say()
        for peer in peers:
            word = peer.readline()
            if word != "ready\n":
                raise RuntimeError(f"rank 0 heard {word!r}")
        step += 1
        if last == 0 and os.path.exists(f"{FOLDER}/finish"):
            last = step + LAST_STEPS
        save(step)
        for peer in peers:
            peer.write(f"{step} {last}\n")
            peer.flush()


def follow(voice):
    address, port = store("get", "chaos").split()
    leader = socket.create_connection((address, int(port))).makefile("rw", encoding="utf-8")
    step = last = 0
    while last == 0 or step < last:
        for _ in range(1 + step % 5):
            voice.say()
        leader.write("ready\n")
        leader.flush()
        word = leader.readline()
        if not word:
            raise RuntimeError("rank 0 is gone")
        step, last = (int(number) for number in word.split())


def main():
    voice = Voice()
    try:
        voice.say()
        lead(voice) if RANK == 0 else follow(voice)
        voice.say()
    except Exception as error:  # Standard error is for numbered lines alone.
        with open(f"{FOLDER}/troubles", "a", encoding="utf-8") as file:
            file.write(f"{time.monotonic():.3f} round {ROUND} rank {RANK}: {error!r}\n")
        sys.exit(1)


main()

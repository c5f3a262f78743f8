#!/usr/bin/env python3
"""A parameter server that answers nobody before it has heard from everybody.

  muster run --nproc-per-node 4 examples/python/batch_updating_parameter_server.py

Each trainer sends a gradient and gets the next parameters. The server averages the gradients of
all of them first, so every step is one step of gradient descent on all samples. The method that
the trainers call is asynchronous: it returns a future, so a request that waits for the others
holds no thread, however many there are (the server here has one thread, to show it).

In the end worker 0 does the same computation alone, and compares: the results are equal to the last
bit.
"""

import argparse
import os
import threading

import numpy as np

import muster.rpc as rpc
from muster.futures import Future, wait_all

FEATURES = 6
SAMPLES = 48


def make_samples(trainer):
    """The samples of one trainer. The true parameters are 1, 2, 3 …"""
    random = np.random.default_rng(trainer)
    inputs = random.normal(size=(SAMPLES, FEATURES))
    noise = random.normal(0, 0.01, size=SAMPLES)
    return inputs, inputs @ np.arange(1.0, FEATURES + 1) + noise


def loss_and_gradient(parameters, inputs, targets):
    error = inputs @ parameters - targets
    return float(np.mean(error**2)), 2 * inputs.T @ error / len(targets)


class BatchServer:
    """Collects one gradient of each trainer, steps, and answers them all."""

    def __init__(self, trainer_count, rate):
        self.trainer_count = trainer_count
        self.rate = rate
        self.parameters = np.zeros(FEATURES)
        self.lock = threading.Lock()
        self.gradients = {}
        self.next_parameters = Future()

    @rpc.functions.async_execution
    def step(self, trainer, gradient):
        """A future of the parameters after this step: done when all trainers have called."""
        with self.lock:
            answer = self.next_parameters
            self.gradients[trainer] = gradient
            if len(self.gradients) < self.trainer_count:
                return answer
            # Always in the same order: sums of floating point numbers depend on it.
            total = sum(self.gradients[trainer] for trainer in sorted(self.gradients))
            self.parameters = self.parameters - self.rate * total / self.trainer_count
            self.gradients = {}
            self.next_parameters = Future()
            parameters = self.parameters
        # Completing a future runs what waits for it: here, the answers to all trainers.
        answer.set_result(parameters)
        return answer


def train(server, trainer, steps):
    """Runs on a trainer; the losses of its samples before each step."""
    inputs, targets = make_samples(trainer)
    parameters = np.zeros(FEATURES)
    losses = []
    for _ in range(steps):
        loss, gradient = loss_and_gradient(parameters, inputs, targets)
        losses.append(loss)
        parameters = server.rpc_sync().step(trainer, gradient)
    return losses


def train_alone(trainer_count, rate, steps):
    """What the job computes, in one process."""
    samples = [make_samples(trainer) for trainer in range(1, trainer_count + 1)]
    parameters = np.zeros(FEATURES)
    for _ in range(steps):
        total = sum(loss_and_gradient(parameters, *one)[1] for one in samples)
        parameters = parameters - rate * total / trainer_count
    return parameters


def lead(trainer_count, options):
    server = rpc.RRef(BatchServer(trainer_count, options.rate))
    runs = [
        rpc.rpc_async(f"worker{trainer}", train, args=(server, trainer, options.steps), timeout=0)
        for trainer in range(1, trainer_count + 1)
    ]
    losses = np.mean(wait_all(runs), axis=0)
    parameters = server.local_value().parameters
    print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} in the end")
    print("parameters", *(f"{value:.2f}" for value in parameters))
    if not np.array_equal(parameters, train_alone(trainer_count, options.rate, options.steps)):
        raise SystemExit("one process computes something else")
    print("as in one process")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rate", type=float, default=0.1, help="how far a step goes")
    options = parser.parse_args()

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size < 2:
        raise SystemExit("a parameter server needs at least one trainer: --nproc-per-node 2")
    one_thread = rpc.TensorPipeRpcBackendOptions(num_worker_threads=1)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size, rpc_backend_options=one_thread)
    if rank == 0:
        lead(world_size - 1, options)
    rpc.shutdown()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A parameter server: worker 0 has the parameters of a model, the other workers train it.

  muster run --nproc-per-node 4 examples/python/parameter_server.py
  muster run --nproc-per-node 4 examples/python/parameter_server.py --torch

Each trainer fetches the parameters through a reference to the server, computes gradients on samples
of its own, and sends them back; nobody waits for anybody else. The model is a network of two
layers that learns which points of a plane lie inside a ring, with NumPy or, if asked, with PyTorch.
"""

import argparse
import os
import threading

import numpy as np

import muster.rpc as rpc
from muster.futures import wait_all

HIDDEN = 24
BATCH = 64
TEST_SEED = 1_000_000


def make_samples(seed, count):
    """Points, and whether they lie inside the ring, as 0 or 1."""
    points = np.random.default_rng(seed).uniform(-1, 1, size=(count, 2))
    radius = np.hypot(points[:, 0], points[:, 1])
    return points, ((radius > 0.4) & (radius < 0.9)).astype(float)


class NumpyModel:
    """The gradients by hand."""

    @staticmethod
    def start():
        random = np.random.default_rng(0)
        return [
            random.normal(0, 3, size=(2, HIDDEN)),
            random.normal(0, 1, size=HIDDEN),
            random.normal(0, 0.3, size=HIDDEN),
            np.zeros(1),
        ]

    @staticmethod
    def evaluate(parameters, points, labels):
        """The loss, the part of the points that it gets right, and the gradients."""
        weights, shift, output, bias = parameters
        hidden = np.tanh(points @ weights + shift)
        score = hidden @ output + bias
        # log(1 + e^score) - label * score, without an overflow.
        loss = np.mean(np.maximum(score, 0) - labels * score + np.log1p(np.exp(-np.abs(score))))
        right = np.mean((score > 0) == (labels > 0.5))
        by_score = (1 / (1 + np.exp(-score)) - labels) / len(labels)
        by_hidden = np.outer(by_score, output) * (1 - hidden**2)
        gradients = [
            points.T @ by_hidden,
            by_hidden.sum(axis=0),
            hidden.T @ by_score,
            by_score.sum(keepdims=True),
        ]
        return float(loss), float(right), gradients


class TorchModel:
    """The same in PyTorch, which finds the gradients itself. They travel as tensors."""

    @staticmethod
    def start():
        import torch

        return [torch.from_numpy(array) for array in NumpyModel.start()]

    @staticmethod
    def evaluate(parameters, points, labels):
        import torch

        leaves = [parameter.detach().requires_grad_() for parameter in parameters]
        weights, shift, output, bias = leaves
        score = torch.tanh(torch.from_numpy(points) @ weights + shift) @ output + bias
        labels = torch.from_numpy(labels)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score, labels)
        right = ((score > 0) == (labels > 0.5)).double().mean()
        return loss.item(), right.item(), list(torch.autograd.grad(loss, leaves))


class ParameterServer:
    """The parameters. Several trainers call its methods at once."""

    def __init__(self, model, rate):
        self.rate = rate
        self.parameters = model.start()
        self.updates = 0
        self.lock = threading.Lock()

    def fetch(self):
        # What is returned is pickled after this method has returned, when others may have changed
        # the parameters in place; so they are replaced instead.
        with self.lock:
            return self.parameters

    def push(self, gradients):
        with self.lock:
            self.parameters = [
                parameter - self.rate * gradient
                for parameter, gradient in zip(self.parameters, gradients)
            ]
            self.updates += 1


def train(server, model, steps):
    """Runs on a trainer. `server` is a reference to the server, which is somewhere else."""
    rank = rpc.get_worker_info().id
    for step in range(steps):
        points, labels = make_samples((rank, step), BATCH)
        parameters = server.rpc_sync().fetch()
        _, _, gradients = model.evaluate(parameters, points, labels)
        server.rpc_sync().push(gradients)
    return rank, steps


def lead(trainers, options):
    model = TorchModel if options.torch else NumpyModel
    server = rpc.RRef(ParameterServer(model, options.rate))
    points, labels = make_samples(TEST_SEED, 2000)
    loss, right, _ = model.evaluate(server.local_value().fetch(), points, labels)
    print(f"before: loss {loss:.3f}, {right:.1%} right", flush=True)
    runs = [rpc.rpc_async(trainer, train, args=(server, model, options.steps), timeout=0)
            for trainer in trainers]
    for rank, steps in wait_all(runs):
        print(f"worker{rank} made {steps} steps")
    loss, right, _ = model.evaluate(server.local_value().fetch(), points, labels)
    print(f"after {server.local_value().updates} updates: loss {loss:.3f}, {right:.1%} right")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=2000, help="of each trainer")
    parser.add_argument("--rate", type=float, default=0.5, help="how far a step goes")
    parser.add_argument("--torch", action="store_true", help="compute with PyTorch")
    options = parser.parse_args()

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size < 2:
        raise SystemExit("a parameter server needs at least one trainer: --nproc-per-node 2")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        lead([f"worker{other}" for other in range(1, world_size)], options)
    rpc.shutdown()  # the trainers are here from the start, and serve until all is done


if __name__ == "__main__":
    main()

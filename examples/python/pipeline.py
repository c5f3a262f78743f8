#!/usr/bin/env python3
"""A model in two halves on two workers, trained with micro-batches that flow through both.

  muster run --nproc-per-node 3 examples/python/pipeline.py
  muster run --nproc-per-node 3 examples/python/pipeline.py --torch

Worker 0 leads; each half is an object on another worker, used through a reference. Each batch is
cut into micro-batches, all of which are sent off at once: while the second half works on one, the
first works on the next. What goes from half to half stays on the workers: worker 0 passes on only
references to it, and the worker that needs it fetches it from the one that has it.

There is no distributed autograd in it. Each half keeps what its gradients need, for each
micro-batch, and turns the gradient by its output into that by its input. Worker 0 trains the same
model in one piece as well, and compares.
"""

import argparse
import os

import numpy as np

import muster.rpc as rpc
from muster.futures import wait_all

FEATURES, HIDDEN = 8, 32
BATCH = 64
RATE = 0.05


class NumpyHalf:
    """One layer, with a tanh behind it in the first half. The gradients by hand."""

    def __init__(self, inputs, outputs, has_tanh):
        random = np.random.default_rng(inputs)
        self.weights = random.normal(0, inputs**-0.5, size=(inputs, outputs))
        self.has_tanh = has_tanh
        self.kept = {}
        self.gradients = {}

    def forward(self, micro_batch, inputs):
        outputs = inputs @ self.weights
        if self.has_tanh:
            outputs = np.tanh(outputs)
        self.kept[micro_batch] = (inputs, outputs)
        return outputs

    def backward(self, micro_batch, gradient):
        inputs, outputs = self.kept.pop(micro_batch)
        if self.has_tanh:
            gradient = gradient * (1 - outputs**2)
        self.gradients[micro_batch] = inputs.T @ gradient
        return gradient @ self.weights.T

    def step(self):
        # In the order of the micro-batches, whichever was done first: the sum depends on it.
        self.weights = self.weights - RATE * sum(self.gradients[k] for k in sorted(self.gradients))
        self.gradients = {}


class TorchHalf:
    """The same with PyTorch, whose autograd works inside of each half."""

    def __init__(self, inputs, outputs, has_tanh):
        import torch

        self.layer = torch.nn.Linear(inputs, outputs, bias=False).double()
        with torch.no_grad():
            self.layer.weight.copy_(
                torch.from_numpy(NumpyHalf(inputs, outputs, has_tanh).weights.T))
        self.activation = torch.nn.Tanh() if has_tanh else torch.nn.Identity()
        self.kept = {}
        self.gradients = {}

    def forward(self, micro_batch, inputs):
        import torch

        inputs = torch.as_tensor(inputs).requires_grad_()
        outputs = self.activation(self.layer(inputs))
        self.kept[micro_batch] = (inputs, outputs)
        return outputs.detach()

    def backward(self, micro_batch, gradient):
        import torch

        inputs, outputs = self.kept.pop(micro_batch)
        by_inputs, by_weight = torch.autograd.grad(
            outputs, (inputs, self.layer.weight), torch.as_tensor(gradient))
        self.gradients[micro_batch] = by_weight
        return by_inputs

    def step(self):
        import torch

        with torch.no_grad():
            self.layer.weight -= RATE * sum(self.gradients[k] for k in sorted(self.gradients))
        self.gradients = {}


def loss_and_gradient(outputs, targets):
    error = np.asarray(outputs) - targets
    return float(np.sum(error**2) / BATCH), 2 * error / BATCH


class Stage:
    """A half of the model on a worker. What it is given may be a reference to what another has."""

    def __init__(self, half, *arguments):
        self.half = half(*arguments)

    def forward(self, micro_batch, inputs):
        return self.half.forward(micro_batch, fetch(inputs))

    def backward(self, micro_batch, gradient):
        return self.half.backward(micro_batch, fetch(gradient))

    def finish(self, micro_batch, inputs, targets):
        """Forward through the last half, and the gradient back; the loss, and that by its input."""
        loss, gradient = loss_and_gradient(self.forward(micro_batch, inputs), targets)
        return loss, rpc.RRef(self.backward(micro_batch, gradient))

    def step(self):
        self.half.step()


def fetch(value):
    return value.to_here() if isinstance(value, rpc.RRef) else value


class Pipeline:
    """The model on two workers."""

    def __init__(self, half, workers):
        first, second = workers
        self.first = rpc.remote(first, Stage, args=(half, FEATURES, HIDDEN, True))
        self.second = rpc.remote(second, Stage, args=(half, HIDDEN, 1, False))

    def train(self, micro_batches):
        """One step; the loss before it."""
        finishing = []
        for k, (inputs, targets) in enumerate(micro_batches):
            hidden = self.first.remote().forward(k, inputs)
            finishing.append(self.second.rpc_async().finish(k, hidden, targets))
        # Each goes back as soon as it is there, whatever the later ones do.
        losses, going_back = [], []
        for k, future in enumerate(finishing):
            loss, gradient = future.wait()
            losses.append(loss)
            going_back.append(self.first.rpc_async().backward(k, gradient))
        wait_all(going_back)
        wait_all([self.first.rpc_async().step(), self.second.rpc_async().step()])
        return sum(losses)

    def predict(self, inputs):
        return self.second.rpc_sync().forward(0, self.first.remote().forward(0, inputs))


class OnePiece:
    """The model in this process, for comparison."""

    def __init__(self, half):
        self.first = half(FEATURES, HIDDEN, True)
        self.second = half(HIDDEN, 1, False)

    def train(self, micro_batches):
        losses = []
        for k, (inputs, targets) in enumerate(micro_batches):
            outputs = self.second.forward(k, self.first.forward(k, inputs))
            loss, gradient = loss_and_gradient(outputs, targets)
            self.first.backward(k, self.second.backward(k, gradient))
            losses.append(loss)
        self.first.step()
        self.second.step()
        return sum(losses)

    def predict(self, inputs):
        return self.second.forward(0, self.first.forward(0, inputs))


def make_micro_batches(step, count):
    inputs = np.random.default_rng(step).normal(size=(BATCH, FEATURES))
    targets = np.sin(inputs.sum(axis=1, keepdims=True) / 2)
    return list(zip(np.split(inputs, count), np.split(targets, count)))


def lead(workers, options):
    half = TorchHalf if options.torch else NumpyHalf
    pipeline, one_piece = Pipeline(half, workers), OnePiece(half)
    losses = []
    difference = 0.0
    for step in range(options.steps):
        micro_batches = make_micro_batches(step, options.micro_batches)
        losses.append(pipeline.train(micro_batches))
        difference = max(difference, abs(losses[-1] - one_piece.train(micro_batches)))
    inputs, _ = make_micro_batches(options.steps, 1)[0]
    outputs = np.asarray(pipeline.predict(inputs)) - np.asarray(one_piece.predict(inputs))
    difference = max(difference, float(np.abs(outputs).max()))
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} in the end")
    print(f"difference to the model in one piece: {difference:.1e}")
    if difference > 1e-9:
        raise SystemExit("the pipeline computes something else than the model in one piece")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--micro-batches", type=int, default=4, help=f"{BATCH} samples in so many")
    parser.add_argument("--torch", action="store_true", help="compute with PyTorch")
    options = parser.parse_args()

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size != 3:
        raise SystemExit("one worker leads and two have a half each: --nproc-per-node 3")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        lead(["worker1", "worker2"], options)
    rpc.shutdown()


if __name__ == "__main__":
    main()

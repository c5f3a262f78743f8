"""A trainer in Python for the C++ parameter server of examples/parameter_server.cpp.

It is started by examples/python/mixed_parameter_server, which see. The server says in the end
whether the parameters are what one process gets: so the data here are made exactly as there.
"""

import argparse
import os

import numpy

import muster.rpc as rpc

FEATURE_COUNT = 8
BATCH_SIZE = 32
PATIENCE_SECONDS = 60  # far beyond what a step takes

# What the server has; in C++ these are
#   Procedure<Vector()> and Procedure<Vector(std::int64_t step, std::int64_t trainer, Vector gradient)>
PARAMETERS = rpc.Procedure("parameters", "()->vec<f64>")
STEP = rpc.Procedure("step", "(i64,i64,vec<f64>)->vec<f64>")

MASK = 2**64 - 1


class Random:
    """muster::Random: xoshiro256**, seeded through splitmix64."""

    def __init__(self, seed):
        self.state = []
        for _ in range(4):
            seed = (seed + 0x9E3779B97F4A7C15) & MASK
            mixed = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
            self.state.append(mixed ^ (mixed >> 31))

    def next(self):
        a, b, c, d = self.state
        result = _rotate((b * 5) & MASK, 7) * 9 & MASK
        c ^= a
        d ^= b
        self.state = [a ^ d, b ^ c, c ^ (b << 17) & MASK, _rotate(d, 45)]
        return result

    def uniform(self):
        """From -1 to 1."""
        return 2.0 * ((self.next() >> 11) * 2.0**-53) - 1.0


def _rotate(value, by):
    return (value << by | value >> (64 - by)) & MASK


def make_batch(step, trainer):
    """Inputs and outputs; the same for the same step and trainer, in whichever language."""
    random = Random(step * 1000 + trainer)
    inputs = numpy.empty((BATCH_SIZE, FEATURE_COUNT))
    outputs = numpy.empty(BATCH_SIZE)
    for row in range(BATCH_SIZE):
        outputs[row] = 0.01 * random.uniform()
        for i in range(FEATURE_COUNT):
            inputs[row, i] = random.uniform()
            outputs[row] += (i + 1) * inputs[row, i]
    return inputs, outputs


def gradient_of(parameters, batch):
    inputs, outputs = batch
    return inputs.T @ (inputs @ parameters - outputs) / BATCH_SIZE


def train(step_count):
    trainer = rpc.get_worker_info().id
    parameters = rpc.rpc_sync("worker0", PARAMETERS)
    batch = make_batch(0, trainer)
    for step in range(step_count):
        gradient = gradient_of(parameters, batch)
        stepped = rpc.rpc_async(
            "worker0", STEP, args=(step, trainer, gradient), timeout=PATIENCE_SECONDS
        )
        batch = make_batch(step + 1, trainer)  # while the others and the server are busy
        parameters = stepped.wait()
    return parameters


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    steps = parser.parse_args().steps
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    try:
        parameters = train(steps)
    finally:
        rpc.shutdown()
    print(f"worker{rank}: trained:", *parameters, flush=True)


if __name__ == "__main__":
    main()

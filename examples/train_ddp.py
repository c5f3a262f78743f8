#!/usr/bin/env python3
"""Trains a small linear model with DistributedDataParallel, on CPUs. Written for torchrun; nothing
in it knows about Muster:

  torchrun   --nproc-per-node 2 --max-restarts 3 examples/train_ddp.py --checkpoint model.pt
  muster run --nproc-per-node 2 --max-restarts 3 examples/train_ddp.py --checkpoint model.pt

Every few steps rank 0 saves everything that the training needs to go on: a job that was disturbed
begins again after the step that was saved last. The workers divide each batch among themselves,
however many they are, so that the result does not depend on their number.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FEATURES = 8
BATCH = 16


def make_batch(step):
    """The samples of one step: the same for every worker, different in every step."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, FEATURES, generator=generator, dtype=torch.float64)
    weights = torch.arange(1, FEATURES + 1, dtype=torch.float64)
    return inputs, (inputs @ weights + 3).unsqueeze(1)


def save(path, step, model, optimizer):
    """Whoever is killed while saving leaves the old checkpoint as it was."""
    torch.save({"step": step, "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict()}, path + ".new")
    os.replace(path + ".new", path)


def load(path, model, optimizer):
    """Returns the step that was saved last; 0 if there is none."""
    if not os.path.exists(path):
        return 0
    saved = torch.load(path, map_location="cpu")
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def train(options):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if BATCH % world_size != 0:
        raise ValueError(f"{BATCH} samples cannot be divided equally among {world_size} workers")

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(FEATURES, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    done = load(options.checkpoint, model, optimizer)
    if rank == 0:
        print(f"{world_size} workers begin after step {done}", flush=True)

    for step in range(done + 1, options.steps + 1):
        inputs, targets = make_batch(step)
        mine = slice(rank, None, world_size)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine])
        loss.backward()  # averages the gradients over all workers
        optimizer.step()
        time.sleep(options.pause)
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
            if step % options.save_every == 0 or step == options.steps:
                save(options.checkpoint, step, model, optimizer)
                print(f"saved step {step}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--checkpoint", required=True, help="the file to save to and resume from")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=10, help="so many steps")
    parser.add_argument("--pause", type=float, default=0,
                        help="seconds in each step, in place of the work of a larger model")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    try:
        train(options)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

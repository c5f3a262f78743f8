"""The workers of a round, as processes under muster.Peer."""

import os

import muster  # from tests/pytorch, by way of nodes

dist = muster.import_distributed()
import torch  # noqa: E402  (after the check above, which explains a missing PyTorch)


def add_up(_pipe, line):
    """A process group as the agent of a node sets its worker up, which sums the ranks; the sum."""
    os.environ.update(MASTER_ADDR=line["master_addr"], MASTER_PORT=str(line["master_port"]),
                      RANK=str(line["rank"]), WORLD_SIZE=str(line["world_size"]),
                      TORCHELASTIC_USE_AGENT_STORE=str(line["use_agent_store"]),
                      TORCHELASTIC_RUN_ID="test", TORCHELASTIC_RESTART_COUNT="0")
    dist.init_process_group("gloo", init_method="env://", timeout=muster.PATIENCE)
    total = torch.tensor([float(line["rank"])])
    dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()
    return total.item()

"""A worker that hangs in its first life, in a block that PyTorch's timer guards."""

import os
import signal
import sys

import torch.distributed.elastic.timer as timer

timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with timer.expires(after=3600 if life else 0.05):
    print(f"life {life}", flush=True)
    while life == 0:
        signal.pause()
sys.exit(0)

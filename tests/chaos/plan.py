"""What goes wrong, and when: a list made from a seed alone, so that it can be run again."""

import dataclasses
import random

LOSSES = ("pull_cable", "block_port", "send_nothing", "hear_nothing")


@dataclasses.dataclass
class Fault:
    at: float  # seconds after the beginning
    kind: str
    host: int
    local_rank: int = 0
    length: float = 0  # seconds until it is undone
    loss: str = ""

    def describe(self):
        details = {"kill worker": f"{self.local_rank}", "stop worker": f"{self.local_rank}",
                   "cut": self.loss}.get(self.kind, "")
        words = [self.kind, details, f"at host{self.host}"]
        if self.length:
            words.append(f"for {self.length:.2f} s")
        return " ".join(filter(None, words))


# kind, weight, the longest time until it is undone
KINDS = (
    ("kill worker", 4, 0),
    ("kill agent", 3, 3),
    ("stop worker", 2, 3),
    ("stop agent", 2, 5),
    ("freeze host", 1, 5),  # the agent and all it has started
    ("cut", 4, 6),
    ("stop store", 1, 1.5),
)


def make(seed, seconds, host_count, worker_count):
    """Faults for `seconds`; host 0 has the store, the others have agents."""
    source = random.Random(seed)
    faults = []
    at = 1.0
    while at < seconds:
        (kind, _, length_max), = source.choices(KINDS, [weight for _, weight, _ in KINDS])
        fault = Fault(at, kind, source.randrange(1, host_count), source.randrange(worker_count),
                      source.uniform(0, 1) * length_max, source.choice(LOSSES))
        if kind == "stop store" or (kind == "cut" and source.random() < 0.2):
            fault.host = 0
        faults.append(fault)
        # Often close together: what matters is how faults meet.
        at += source.choice((0, 0.05, 0.5, 1.5, 4)) * source.uniform(0.5, 1.5)
    return faults

"""A job on five hosts whose processes are killed and stopped and whose links are cut, at random.

Four hosts run an agent each, the fifth one the store where they meet. When the time is over,
everything is healed, and the job must come to the right end: all agents end well, every step was done,
no process is left, and no line is missing from any log.

usage: chaos_test.py [--seed N] [--seconds S] [--verbose]

Environment:
  MUSTER_BIN             the program under test; without it, build/bin/muster of this source tree
  MUSTER_SEED            what --seed says; else one that nobody has tried
  MUSTER_CHAOS_SECONDS   what --seconds says; else 25
"""

import argparse
import os
import pathlib
import random
import shlex
import sys

import network

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("MUSTER_BIN") or str(ROOT / "build" / "bin" / "muster")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int,
                        default=os.environ.get("MUSTER_SEED") or random.SystemRandom().getrandbits(32))
    parser.add_argument("--seconds", type=float, default=os.environ.get("MUSTER_CHAOS_SECONDS") or 25)
    parser.add_argument("--verbose", action="store_true", help="print what happened, also if all went well")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not os.access(BINARY, os.X_OK):
        print(f"there is no program {BINARY}; build it, or name it in MUSTER_BIN", file=sys.stderr)
        return 2
    script = pathlib.Path(__file__).resolve()
    words = [f"--seed={options.seed}", f"--seconds={options.seconds:g}"]
    if options.verbose:
        words.append("--verbose")
    replay = f"MUSTER_BIN={shlex.quote(BINARY)} /usr/bin/python3 {script.relative_to(ROOT)} {' '.join(words)}"
    if not options.inside:
        print(f"replay with: {replay}", flush=True)
        reason = network.enter([str(script), *words, "--inside"])
        print(f"SKIPPED: {reason}; it takes root, or user namespaces that everybody may make", flush=True)
        return SKIPPED
    import job  # pylint: disable=import-outside-toplevel
    try:
        job.run(options.seed, options.seconds, BINARY, options.verbose)
    except job.Wrong as error:
        print(f"FAILED: {error}\nreplay with: {replay}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

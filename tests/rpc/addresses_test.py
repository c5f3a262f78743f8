"""Workers of two hosts, each a network namespace with a file of names of its own, find each other.

The name of the host of the store stands, on that host itself, for an address of loopback, as Debian
sets it up: its workers must not tell that to the others.

Environment, besides that of tests/pytorch/muster.py:
  MUSTER_RPC_WORKER   rpc_worker; without it, build/bin/rpc_worker of this source tree
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import groups_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "chaos"))
import muster  # noqa: E402
import network  # noqa: E402

SKIPPED = 77
INSIDE = "MUSTER_TEST_INSIDE"
# Gives a program another /etc/hosts.
WITH_NAMES = 'mount --bind "$0" /etc/hosts && exec "$@"'


class TwoHosts(groups_test.Case):
    hosts = None

    def setUp(self):
        if not TwoHosts.hosts:
            TwoHosts.hosts = network.make_hosts(2)
        self.hosts[0].move_in()  # where the store is
        super().setUp()
        self.server = muster.Server()  # at every address
        self.addCleanup(self.server.stop)
        self.folder = tempfile.TemporaryDirectory(prefix="muster-test-")
        self.addCleanup(self.folder.cleanup)

    def give_addresses(self, number, *addresses):
        """To that host, and no others."""
        name = self.hosts[number].name
        for family in ("-4", "-6"):
            self.ip(name, family, "address", "flush", "dev", "eth0")
        for address in addresses:
            words = ["nodad"] if ":" in address else []
            self.ip(name, "address", "add", address, "dev", "eth0", *words)

    @staticmethod
    def ip(name, *words):
        subprocess.run(["ip", "-netns", name, *words], check=True, stdin=subprocess.DEVNULL,
                       timeout=60)

    def pairs(self, own, others):
        """Two workers of each host. The name of the first one is `own` there and `others` elsewhere."""
        environment = {"PATH": os.environ["PATH"], "MASTER_ADDR": "host0", "RPC_WORKER_ADDRESS": "",
                       "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}
        workers = []
        for number, address in enumerate((own, others)):
            names = pathlib.Path(self.folder.name) / f"hosts{number}"
            names.write_text(f"127.0.0.1 localhost\n{address} host0\n")
            for _ in range(2):
                workers.append(self.worker(
                    f"worker{len(workers)}", environment=environment,
                    before=["unshare", "--mount", "sh", "-c", WITH_NAMES, str(names)],
                    move_in=self.hosts[number].move_in))
        return workers

    def assert_pairs_reach_each_other(self, own, others):
        workers = self.pairs(own, others)
        self.init_static(workers)
        self.assert_all_reach_all(workers)
        self.assert_all(workers, "shutdown graceful")

    def test_the_hosts_of_one_cable(self):
        self.give_addresses(0, "10.77.0.1/24")
        self.give_addresses(1, "10.77.0.2/24")
        self.assert_pairs_reach_each_other("127.0.1.1", "10.77.0.1")

    def test_the_default_route_decides_between_addresses(self):
        self.give_addresses(0, "10.88.0.1/32", "10.77.0.1/24")  # the other host has no way to 10.88
        self.give_addresses(1, "10.77.0.2/24")
        self.ip("host0", "route", "add", "default", "dev", "eth0", "src", "10.77.0.1")
        self.assert_pairs_reach_each_other("127.0.1.1", "10.77.0.1")

    def test_by_ipv6(self):
        if not muster.has_ipv6_loopback():
            self.skipTest("SKIPPED: there is no IPv6 here")
        self.give_addresses(0, "fd77::1/64")
        self.give_addresses(1, "fd77::2/64")
        self.assert_pairs_reach_each_other("::1", "fd77::1")


def main():
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        reason = network.enter([str(pathlib.Path(__file__).resolve()), *sys.argv[1:]])
        print(f"SKIPPED: {reason}; it takes root, or user namespaces that everybody may make",
              flush=True)
        return SKIPPED
    muster.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Workers of two hosts, each a network namespace with a file of names of its own, find each other.

The name of the host of the store stands, on that host itself, for an address of loopback, as Debian
sets it up: its workers must not tell that to the others.

Environment, besides that of tests/pytorch/muster.py:
  MUSTER_RPC_WORKER         rpc_worker; without it, build/bin/rpc_worker of this source tree
  MUSTER_PARAMETER_SERVER   the example; without it, build/bin/parameter_server of this source tree
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import groups_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "chaos"))
import launch  # noqa: E402
import muster  # noqa: E402
import network  # noqa: E402

SKIPPED = 77
INSIDE = "MUSTER_TEST_INSIDE"
# Nobody else is in the namespaces of the test.
PORT = 29400
PARAMETER_SERVER = os.environ.get("MUSTER_PARAMETER_SERVER") or str(
    ROOT / "build" / "bin" / "parameter_server")


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

    def names(self, host_name, text):
        """A file of names."""
        path = pathlib.Path(self.folder.name) / host_name
        path.write_text(text)
        return path

    @staticmethod
    def with_names(names):
        """What becomes the program that follows, with those names."""
        return ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', names]

    def pairs(self, own, others):
        """Two workers of each host. The name of the first one is `own` there and `others` elsewhere."""
        environment = {"PATH": os.environ["PATH"], "MASTER_ADDR": "host0", "RPC_WORKER_ADDRESS": "",
                       "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}
        workers = []
        for host, address in zip(self.hosts, (own, others)):
            names = self.names(host.name, f"127.0.0.1 localhost\n{address} host0\n")
            for _ in range(2):
                workers.append(self.worker(f"worker{len(workers)}", environment=environment,
                                           before=self.with_names(names), move_in=host.move_in))
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


    def test_a_job_of_two_nodes_that_meet_by_the_name_of_the_first(self):
        self.give_addresses(0, "10.77.0.1/24")
        self.give_addresses(1, "10.77.0.2/24")
        agents = []
        for host in self.hosts:
            own = f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n"
            others = "".join(f"{other.address} {other.name}\n" for other in self.hosts
                             if other is not host)
            names = self.names(host.name, own + others)
            agents.append(subprocess.Popen(
                ["unshare", "--uts", *self.with_names(names), "sh", "-c",
                 f'hostname {host.name} && exec "$0" "$@"', muster.BINARY, "run", "--nnodes=2",
                 "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=host0:{PORT}",
                 PARAMETER_SERVER],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                preexec_fn=host.move_in))
            self.addCleanup(agents[-1].kill)
        outputs = [agent.communicate(timeout=launch.PATIENCE_SECONDS)[0].decode()
                   for agent in agents]
        self.assertEqual([agent.returncode for agent in agents], [0, 0], "\n".join(outputs))
        self.assertEqual(sum(text.count("as in one process") for text in outputs), 4, outputs)


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

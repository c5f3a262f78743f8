"""Hosts as network namespaces on one bridge, and the ways in which their links can fail.

To be used in namespaces of its own (`enter`): whatever happens, the kernel takes all of it away
when the first process in there ends.
"""

import ctypes
import os
import subprocess
import sys

CLONE_NEWNET = 0x40000000
# A station that nobody has: what is sent to it is lost, and the sender is not told.
NOBODY = "02:00:00:00:ff:ff"

_libc = ctypes.CDLL(None, use_errno=True)


def enter(program):
    """Runs `program` again in namespaces of its own; the reason if that cannot be, else no return."""
    spaces = ["unshare", "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
    reason = ""
    for more in ([], ["--user", "--map-root-user"]):
        trial = "mount -t tmpfs none /run && ip netns add one && ip link add switch type bridge && "
        trial += "ip link add port type veth peer name eth0 netns one && ip link set port master switch"
        try:
            done = subprocess.run([*spaces, *more, "sh", "-c", trial], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
                                  check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{error}"
        if done.returncode == 0:
            # The shell reaps what is left without a parent; unlike us it is nobody's parent itself.
            words = [*spaces, *more, "sh", "-c", '"$@"; exit $?', "sh", sys.executable, *program]
            sys.stdout.flush()
            os.execvp(words[0], words)
        reason = done.stdout.decode(errors="replace").strip()
    return f"no network namespaces can be made here: {reason}"


def _run(*words):
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, timeout=60)


class Host:
    """One host: an address, and a cable to the switch."""

    def __init__(self, number):
        self.name = f"host{number}"
        self.address = f"10.77.0.{number + 1}"
        self.station = f"02:00:00:00:00:{number + 1:02x}"
        self._port = f"port{number}"  # of the switch
        self._has_cable = True
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0",
             "address", self.station, "netns", self.name)
        _run("ip", "link", "set", self._port, "master", "switch", "up")
        self._ip("address", "add", f"{self.address}/24", "dev", "eth0")
        self._ip("link", "set", "lo", "up")
        self._ip("link", "set", "eth0", "up")
        self._space = os.open(f"/run/netns/{self.name}", os.O_RDONLY | os.O_CLOEXEC)

    def _ip(self, *words):
        _run("ip", "-netns", self.name, *words)

    def move_in(self):
        """Moves the calling process to this host."""
        if _libc.setns(self._space, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def pull_cable(self):
        """No carrier, in either direction."""
        self._has_cable = False
        _run("ip", "link", "set", self._port, "down")

    def block_port(self):
        """The switch drops everything; the host sees a link that is fine, if there is one."""
        if self._has_cable:
            _run("bridge", "link", "set", "dev", self._port, "state", "0")

    def lose_towards(self, other):
        """What is sent to `other` is lost; what comes from there arrives."""
        self._ip("neighbour", "replace", other.address, "lladdr", NOBODY, "dev", "eth0",
                 "nud", "permanent")

    def heal(self, others):
        self._has_cable = True
        _run("ip", "link", "set", self._port, "up")
        _run("bridge", "link", "set", "dev", self._port, "state", "3")
        for other in others:
            if other is not self:
                self._ip("neighbour", "replace", other.address, "lladdr", other.station,
                         "dev", "eth0", "nud", "permanent")


def make_hosts(count):
    _run("mount", "-t", "tmpfs", "none", "/run")
    _run("ip", "link", "add", "switch", "type", "bridge", "forward_delay", "0")
    _run("ip", "link", "set", "switch", "up")
    hosts = [Host(number) for number in range(count)]
    for host in hosts:
        host.heal(hosts)
    return hosts

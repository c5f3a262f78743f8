"""Real etcd processes on free ports of this machine, with their data in a temporary folder."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import muster  # from tests/pytorch, by way of nodes

START_SECONDS_MAX = 60
ATTEMPTS_MAX = 5


def skip_if_missing():
    """Ends this program as "skipped" where there is no etcd."""
    for program in ("etcd", "etcdctl", "openssl"):
        if shutil.which(program) is None:
            print(f"SKIPPED: the program {program} is not installed (see tools/packages)",
                  flush=True)
            sys.exit(muster.SKIPPED)


def free_ports(count):
    """Ports that are free now. Somebody else may take one before etcd does: then begin again."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


class Cluster:
    """Members that serve. With `tls`, clients must show a certificate of the cluster's authority.
    With `password`, they must log in as root."""

    def __init__(self, member_count=1, tls=False, password=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-etcd-"))
        self._tls = tls
        self._password = None  # not asked for yet
        self._count = member_count
        self._processes = []
        try:
            if tls:
                self._make_certificates()
            self._start_all()
            if password is not None:
                self._ask_for(password)
        except BaseException:
            self.end()
            raise

    @property
    def endpoint(self):
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def file(self, name):
        return str(self.folder / name)

    # -- starting

    def _start_all(self):
        for _ in range(ATTEMPTS_MAX):
            ports = free_ports(2 * self._count)
            self._ports, self._peer_ports = ports[::2], ports[1::2]
            for member in range(self._count):
                shutil.rmtree(self.folder / f"member-{member}", ignore_errors=True)
            self._processes = [self._start(member) for member in range(self._count)]
            if all(self._await(member) for member in range(self._count)):
                return
            for member in range(self._count):
                self.kill(member)
        raise AssertionError(f"etcd does not start:\n{self.log(0)}")

    def _start(self, member):
        name = f"member-{member}"
        peers = ",".join(f"member-{i}=http://127.0.0.1:{port}"
                         for i, port in enumerate(self._peer_ports))
        url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._ports[member]}"
        peer_url = f"http://127.0.0.1:{self._peer_ports[member]}"
        command = [
            "etcd", f"--name={name}", f"--data-dir={self.file(name)}",
            f"--listen-client-urls={url}", f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster={peers}", f"--initial-cluster-token={self.folder.name}",
            "--initial-cluster-state=new", "--logger=zap", "--log-level=warn",
        ]
        if self._tls:
            command += [f"--trusted-ca-file={self.file('ca.pem')}",
                        f"--cert-file={self.file('server.pem')}",
                        f"--key-file={self.file('server.key')}", "--client-cert-auth"]
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    preexec_fn=muster._die_with_parent)

    def _await(self, member):
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self._processes[member].poll() is None:
            if self._control(f"127.0.0.1:{self._ports[member]}", "endpoint", "health") == 0:
                return True
        return False

    # -- etcdctl

    def _control(self, endpoint, *words):
        command = ["etcdctl", f"--endpoints={endpoint}", "--command-timeout=5s", *words]
        if self._tls:
            command += [f"--cacert={self.file('ca.pem')}", f"--cert={self.file('client.pem')}",
                        f"--key={self.file('client.key')}"]
        if self._password is not None:
            command += ["--user", f"root:{self._password}"]
        with open(self.folder / "etcdctl.log", "ab") as log:
            return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                  env={**os.environ, "ETCDCTL_API": "3"}, timeout=60).returncode

    def control(self, *words):
        """etcdctl with the addresses filled in."""
        if self._control(self.endpoint, *words) != 0:
            raise AssertionError(f"etcdctl {words} failed:\n"
                                 f"{(self.folder / 'etcdctl.log').read_text()}")

    def get(self, prefix):
        """The keys under `prefix`."""
        (self.folder / "etcdctl.log").write_bytes(b"")
        self.control("get", "--prefix", "--keys-only", prefix)
        return [line for line in (self.folder / "etcdctl.log").read_text().splitlines() if line]

    def _ask_for(self, password):
        self.control("user", "add", f"root:{password}")
        self.control("user", "grant-role", "root", "root")
        self.control("auth", "enable")
        self._password = password

    def _make_certificates(self):
        def openssl(*words):
            done = subprocess.run(["openssl", *words], capture_output=True, timeout=60)
            if done.returncode != 0:
                raise AssertionError(done.stderr.decode())

        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=test authority", "-keyout",
                self.file("ca.key"), "-out", self.file("ca.pem"))
        for role, extension in (
                ("server", "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"),
                ("client", "extendedKeyUsage=clientAuth\n")):
            (self.folder / f"{role}.ext").write_text(extension)
            openssl("req", *key, "-subj", f"/CN=test {role}", "-keyout",
                    self.file(f"{role}.key"), "-out", self.file(f"{role}.csr"))
            openssl("x509", "-req", "-in", self.file(f"{role}.csr"), "-CA", self.file("ca.pem"),
                    "-CAkey", self.file("ca.key"), "-CAcreateserial", "-days", "2", "-extfile",
                    self.file(f"{role}.ext"), "-out", self.file(f"{role}.pem"))

    # -- what is done to members

    def _signal(self, member, number):
        os.kill(self._processes[member].pid, number)

    def kill(self, member):
        self._processes[member].kill()
        self._processes[member].wait()

    def restart(self, member):
        """After `kill`; returns when it serves."""
        self._processes[member] = self._start(member)
        if not self._await(member):
            raise AssertionError(f"member {member} does not come back:\n{self.log(member)}")

    def stop_all(self):
        for member in range(self._count):
            self._signal(member, signal.SIGSTOP)

    def resume_all(self):
        for member in range(self._count):
            self._signal(member, signal.SIGCONT)

    def log(self, member):
        return (self.folder / f"member-{member}.log").read_text(errors="replace")[-2000:]

    def end(self):
        for process in self._processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

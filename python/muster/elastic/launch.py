"""Runs a function, or a program, in the workers of this node, as `muster run` does.

    from muster.elastic.launch import LaunchConfig, elastic_launch

    def train(steps):
        ...
        return loss

    if __name__ == "__main__":
        config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=4)
        losses = elastic_launch(config, train)(1000)      # {rank: what it returned}

Names and arguments are those of torch.distributed.launcher.api. The function and its arguments are
pickled (by cloudpickle, if there is one, where pickle alone cannot), and workers are fresh
processes, as with the start method "spawn".
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import uuid
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence, Union

from muster.elastic.errors import ChildFailedError, ProcessFailure

__all__ = ["ChildFailedError", "LaunchConfig", "LogsSpecs", "elastic_launch", "find_program"]

BINARY_VARIABLE = "MUSTER_BIN"
# The second: other nodes have not confirmed theirs, which is nothing that this one can help.
_SUCCESS = (0, 3)
Entrypoint = Union[Callable[..., Any], str]


@dataclass
class LogsSpecs:
    """What happens to what workers print; as --log-dir, --redirects, --tee and
    --local-ranks-filter of `muster run`."""

    log_dir: Optional[str] = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: Optional[Sequence[int]] = None


@dataclass
class LaunchConfig:
    """How to launch. See `muster run --help`, whose options these are.

    rdzv_endpoint: if it is empty and there is one node, nobody else is looked for.
    rdzv_timeout, start_method and metrics_cfg are there because PyTorch has them; monitor_interval
    makes no difference, since failures are noticed at once.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Optional[LogsSpecs] = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: Optional[str] = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: Optional[str] = None
    event_log_handler: str = "null"
    numa_options: Optional[str] = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: Optional[list[str]] = None
    duplicate_stderr_filters: Optional[list[str]] = None
    virtual_local_rank: bool = False
    shutdown_timeout: Optional[int] = None

    def options(self) -> list[str]:
        """The options of `muster run` that say the same."""
        options = [
            f"--nnodes={self.min_nodes}:{self.max_nodes}",
            f"--nproc-per-node={self.nproc_per_node}",
            f"--role={self.role}",
            f"--max-restarts={self.max_restarts}",
            f"--monitor-interval={self.monitor_interval}",
            f"--signals-to-handle={self.signals_to_handle}",
        ]
        options += self._rendezvous_options()
        for name, value in (
            ("--log-line-prefix-template", self.log_line_prefix_template),
            ("--local-addr", self.local_addr),
            ("--numa-binding", self.numa_options),
            ("--shutdown-timeout", self.shutdown_timeout),
            ("--duplicate-stdout-filters", _listed(self.duplicate_stdout_filters)),
            ("--duplicate-stderr-filters", _listed(self.duplicate_stderr_filters)),
        ):
            if value is not None:
                options.append(f"{name}={value}")
        if self.virtual_local_rank:
            options.append("--virtual-local-rank")
        logs = self.logs_specs or LogsSpecs()
        options += [f"--redirects={logs.redirects}", f"--tee={logs.tee}"]
        if logs.log_dir is not None:
            options.append(f"--log-dir={logs.log_dir}")
        if logs.local_ranks_filter is not None:
            options.append("--local-ranks-filter=" + ",".join(map(str, logs.local_ranks_filter)))
        return options

    def _rendezvous_options(self) -> list[str]:
        if not self.rdzv_endpoint and self.max_nodes == 1:
            return ["--standalone"]
        configs = dict(self.rdzv_configs)
        options = [f"--rdzv-backend={self.rdzv_backend}"]
        if self.rdzv_backend == "static":
            host, _, port = self.rdzv_endpoint.rpartition(":")
            options += [
                f"--master-addr={host.strip('[]')}",
                f"--master-port={port}",
                f"--node-rank={configs.pop('rank', 0)}",
            ]
            if self.rdzv_timeout >= 0:
                configs["timeout"] = self.rdzv_timeout
        else:
            options += [f"--rdzv-endpoint={self.rdzv_endpoint}"]
            # PyTorch's launchers give it to every backend, though it is for the static one.
            configs.pop("timeout", None)
        if self.run_id:
            options.append(f"--rdzv-id={self.run_id}")
        if configs:
            listed = ",".join(f"{name}={value}" for name, value in configs.items())
            options.append(f"--rdzv-conf={listed}")
        return options


def _listed(texts: Optional[list[str]]) -> Optional[str]:
    return ",".join(text.replace(",", ",,") for text in texts) if texts else None


def find_program() -> str:
    """The `muster` program: what MUSTER_BIN names, or the one that came with the package, or that
    of the PATH."""
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        return named
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    build = os.path.dirname(os.path.dirname(package))
    for path in (
        os.path.join(package, "bin", "muster"),
        os.path.join(sysconfig.get_path("scripts"), "muster"),
        os.path.join(build, "bin", "muster") if _is_build_folder(build) else "",
        shutil.which("muster") or "",
    ):
        if path and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise FileNotFoundError(f"there is no program `muster`; {BINARY_VARIABLE} can name it")


def _is_build_folder(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "CMakeCache.txt"))


class elastic_launch:
    """Launches what `entrypoint` is, a function or a program; called with its arguments, it
    returns what the workers of this node returned, by global rank."""

    def __init__(self, config: LaunchConfig, entrypoint: Entrypoint) -> None:
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args))


def launch_agent(config: LaunchConfig, entrypoint: Entrypoint, args: list[Any]) -> dict[int, Any]:
    """What elastic_launch does."""
    with tempfile.TemporaryDirectory(prefix="muster-launch-") as folder:
        launch = _Launch(config, entrypoint, args, folder)
        status = launch.run()
        outcomes = launch.outcomes()
        failures = {rank: one for rank, one in outcomes.items() if isinstance(one, ProcessFailure)}
        if status in _SUCCESS:
            return {rank: launch.result(rank) for rank in sorted(outcomes)}
        if failures:
            raise ChildFailedError(launch.name, failures)
        raise RuntimeError(f"`muster run` ended with status {status}; it says why")


class _Launch:
    def __init__(
        self, config: LaunchConfig, entrypoint: Entrypoint, args: list[Any], folder: str
    ) -> None:
        self._folder = folder
        self._is_function = callable(entrypoint)
        self._environment = dict(os.environ)
        # The agent tells who failed and how; where somebody else wants to know too, from his file.
        self._events = os.path.join(folder, "events")
        handler = f"file:{self._events}"
        if config.event_log_handler.startswith("file:"):
            handler, self._events = config.event_log_handler, config.event_log_handler[5:]
        elif config.event_log_handler != "null":
            raise ValueError("events can go to null or file:PATH; the launcher reads them itself")
        self._events_begin = _size(self._events)
        if callable(entrypoint):
            self.name = getattr(entrypoint, "__qualname__", repr(entrypoint))
            command = [sys.executable, "-m", "muster.elastic._worker", folder]
            _write_call(os.path.join(folder, "call"), entrypoint, args)
            package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
            paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
            self._environment["PYTHONPATH"] = os.pathsep.join(paths)
        else:
            self.name = entrypoint
            command = [entrypoint, *map(str, args)]
        self._command = [find_program(), "run", *config.options()]
        self._command += [f"--event-log-handler={handler}", "--no-python", "--", *command]
        if not config.run_id and "--standalone" not in self._command:
            self._command.insert(2, f"--rdzv-id={uuid.uuid4().int}")

    def run(self) -> int:
        with subprocess.Popen(self._command, env=self._environment) as agent:
            try:
                return agent.wait()
            except BaseException:
                # It ends its workers first, with all the time that they are given.
                agent.send_signal(signal.SIGINT)
                while agent.poll() is None:
                    try:
                        agent.wait()
                    except KeyboardInterrupt:
                        agent.send_signal(signal.SIGTERM)
                raise

    def outcomes(self) -> dict[int, Optional[ProcessFailure]]:
        """By the global ranks of the last round: how the workers of this node failed, or None."""
        found: dict[int, Optional[ProcessFailure]] = {}
        times: dict[str, float] = {}  # when a process was seen to have failed
        try:
            with open(self._events) as file:
                file.seek(self._events_begin)
                records = [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return found
        for record in records:
            if record.get("source") != "WORKER":
                continue
            about = record["metadata"]
            state = record["name"].rpartition(".")[2]
            worker, rank = about["worker_id"], about["global_rank"]
            if record["name"] == "muster.worker.failed":
                times.setdefault(worker, record["timestamp"] / 1000)
            elif state == "SUCCEEDED":
                found[rank] = None
            elif state in ("FAILED", "TERMINATED"):
                more = json.loads(about["metadata"])
                found[rank] = ProcessFailure(
                    local_rank=more["local_rank"][0],
                    pid=int(worker),
                    exitcode=more["exit_code"][0] or 0,
                    error_file_data=json.loads(about["raw_error"] or "{}"),
                    timestamp=times.get(worker, record["timestamp"] / 1000),
                )
        return found

    def result(self, rank: int) -> Any:
        if not self._is_function:
            return None
        with open(os.path.join(self._folder, f"result_{rank}"), "rb") as file:
            return pickle.load(file)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _write_call(path: str, function: Callable[..., Any], args: list[Any]) -> None:
    """What a worker needs to do it: how to become like this process, then the call."""
    from multiprocessing import spawn

    preparation = spawn.get_preparation_data("MusterWorker")
    preparation.pop("authkey", None)  # not for files
    with open(path, "wb") as file:
        pickle.dump(preparation, file)
        file.write(_pickled((function, args)))


def _pickled(what: Any) -> bytes:
    try:
        return pickle.dumps(what)
    except (pickle.PicklingError, AttributeError, TypeError):
        try:
            import cloudpickle
        except ImportError:
            cloudpickle = None
        if cloudpickle is None:
            raise
        return cloudpickle.dumps(what)

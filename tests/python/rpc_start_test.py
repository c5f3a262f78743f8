"""Starting: options, and how workers meet."""

import datetime
import os
import subprocess
import sys
import unittest

import muster.rpc as rpc
from muster import errors
from muster.rpc._testing import FaultyTensorPipeRpcBackendOptions
from workers import PATIENCE_SECONDS, TestCase, check, equal, raised


def echo(value):
    return value


def names():
    return sorted(info.name for info in rpc._get_current_rpc_agent().get_worker_infos())


class OptionsTest(unittest.TestCase):
    def test_defaults(self):
        options = rpc.TensorPipeRpcBackendOptions()
        self.assertEqual((options.num_worker_threads, options.rpc_timeout), (16, 60.0))
        self.assertEqual(options.init_method, "env://")
        self.assertEqual((options.device_maps, options.devices), ({}, []))
        base = rpc.RpcBackendOptions()
        self.assertEqual((base.rpc_timeout, base.init_method), (60.0, "env://"))
        base.rpc_timeout = 5
        self.assertEqual(base.rpc_timeout, 5.0)
        self.assertEqual(
            rpc.construct_rpc_backend_options(rpc.BackendType.TENSORPIPE, rpc_timeout=3).rpc_timeout, 3
        )

    def test_wrong_ones_are_refused(self):
        for wrong in (datetime.timedelta(seconds=1), "5", None):
            with self.assertRaisesRegex(TypeError, "incompatible constructor arguments"):
                rpc.TensorPipeRpcBackendOptions(rpc_timeout=wrong)
        with self.assertRaisesRegex(RuntimeError, "RPC Timeout must be non-negative"):
            rpc.TensorPipeRpcBackendOptions(rpc_timeout=-1)
        with self.assertRaises(TypeError):
            rpc.TensorPipeRpcBackendOptions(5)  # by name only
        for wrong in (0, -1):
            text = f"^num_worker_threads must be positive, got {wrong}$"
            with self.assertRaisesRegex(RuntimeError, text):
                rpc.TensorPipeRpcBackendOptions(num_worker_threads=wrong)

    def test_transports_and_channels_are_those_that_there_are(self):
        with self.assertRaisesRegex(RuntimeError, "^Unknown transport: pigeon"):
            rpc.TensorPipeRpcBackendOptions(_transports=["uv", "pigeon"])
        with self.assertRaisesRegex(RuntimeError, "^Unknown channel: pigeon"):
            rpc.TensorPipeRpcBackendOptions(_channels=["basic", "pigeon"])
        for transports, shares in ((None, True), (["shm", "uv"], True), (["uv"], False)):
            options = rpc.TensorPipeRpcBackendOptions(_transports=transports, _channels=["basic"])
            self.assertEqual(options.shared_memory, shares)

    def test_device_maps_are_checked(self):
        options = rpc.TensorPipeRpcBackendOptions(device_maps={"a": {0: 1}})
        options.set_device_map("a", {1: 0})
        options.set_device_map("a", {0: 1})
        with self.assertRaisesRegex(ValueError, "`set_device_map` only supports 1-to-1 mapping"):
            options.set_device_map("a", {0: 2})
        with self.assertRaisesRegex(ValueError, "`device_map` only supports 1-to-1 mapping"):
            options.set_device_map("b", {0: 1, 2: 1})
        with self.assertRaisesRegex(ValueError, "`set_devices` expect a list of CUDA devices"):
            options.set_devices(["cpu"])
        self.assertEqual(len(options.device_maps["a"]), 2)

    def test_devices_that_cannot_be_are_refused_when_they_are_set(self):
        # Without PyTorch; rpc_tensor_test.py does it with.
        self.assertNotIn("torch", sys.modules)
        options = rpc.TensorPipeRpcBackendOptions()
        for device in (-1, "cuda:-1"):
            for refused in (
                lambda: options.set_device_map("a", {device: 0}),
                lambda: options.set_device_map("a", {0: device}),
                lambda: options.set_devices([0, device]),
                lambda: rpc.TensorPipeRpcBackendOptions(device_maps={"a": {device: 0}}),
                lambda: rpc.TensorPipeRpcBackendOptions(devices=[device]),
            ):
                with self.assertRaises(RuntimeError) as raised:
                    refused()
                self.assertEqual(
                    str(raised.exception), "Device index must not be negative, and cuda:-1 is"
                )
        for device in ("", ":", "-1", "cuda:", "cuda:x", "cuda:0:0"):
            with self.assertRaisesRegex(RuntimeError, f"^Invalid device string: '{device}'$"):
                options.set_device_map("a", {device: 0})
        self.assertEqual((options.device_maps, options.devices), ({}, []))
        options.set_device_map("a", {0: "cuda:1", "cpu": "cpu"})
        self.assertEqual(options.device_maps, {"a": {"cuda:0": "cuda:1", "cpu": "cpu"}})

    def test_backends_are_registered_once(self):
        self.assertTrue(rpc.backend_registered("TENSORPIPE"))
        self.assertFalse(rpc.backend_registered("STUB"))
        stub = rpc.register_backend("STUB", lambda *_, **__: rpc.RpcBackendOptions(), lambda **_: None)
        self.assertIs(stub, rpc.BackendType.STUB)
        self.assertIs(stub, rpc.BackendType["STUB"])
        with self.assertRaisesRegex(RuntimeError, "^RPC backend .+: already registered$"):
            rpc.register_backend("STUB", None, None)

    def test_arguments_of_the_wrong_kind_are_refused(self):
        class Foreign(rpc.RpcBackendOptions):
            pass

        def start(**given):
            rpc.init_rpc("me", rank=0, world_size=1, **given)

        with self.assertRaisesRegex(TypeError, "backend must be a member of BackendType"):
            start(backend="TENSORPIPE")
        with self.assertRaisesRegex(TypeError, "must be an instance of RpcBackendOptions"):
            start(rpc_backend_options={"init_method": "file:///x"})
        with self.assertRaisesRegex(TypeError, "Could not infer backend for options"):
            start(rpc_backend_options=Foreign())
        with self.assertRaisesRegex(TypeError, "must be a `TensorPipeRpcBackendOptions`"):
            start(
                backend=rpc.BackendType.TENSORPIPE,
                rpc_backend_options=Foreign(init_method="file:///nowhere"),
            )
        self.assertFalse(rpc._is_current_rpc_agent_set())


class FaultyOptionsTest(TestCase):
    def options(self, **given):
        given = {"messages_to_fail": [], "messages_to_delay": {}, "num_fail_sends": 0, **given}
        return FaultyTensorPipeRpcBackendOptions(init_method=self.meeting, **given)

    def check_starts_only_with(self, good, bad, text, change=lambda options: None):
        """It is refused at the start with what is `bad`, and harms no start after that."""

        def body(worker):
            def start(given):
                rpc.init_rpc(
                    worker.name,
                    backend=rpc.BackendType.FAULTY_TENSORPIPE,
                    rank=worker.rank,
                    world_size=worker.size,
                    rpc_backend_options=given,
                )

            options = self.options(**bad)
            change(options)
            error = raised(RuntimeError, start, options)
            equal((type(error), str(error)), (errors.InvalidError, text))
            check(not rpc._is_current_rpc_agent_set())
            start(self.options(**good))
            equal(rpc.rpc_sync(worker.next, echo, (1,)), 1)
            rpc.shutdown()

        self.run_workers(body, body, starts=False)

    def test_a_type_of_message_that_there_is_not_is_refused(self):
        text = "No mapping to rpc::MessageType exists for NO_SUCH"
        known = ["RREF_USER_DELETE", "PYTHON_RET"]  # also answers can fail and be late
        self.check_starts_only_with(
            {"messages_to_fail": known, "num_fail_sends": 1},
            {"messages_to_fail": [*known, "NO_SUCH"], "num_fail_sends": 1},
            text,
        )
        delays = {"RREF_USER_DELETE": 0.001, "PYTHON_RET": 0}
        self.check_starts_only_with(
            {"messages_to_delay": delays}, {"messages_to_delay": {**delays, "NO_SUCH": 0}}, text
        )

    def test_a_negative_delay_is_refused(self):
        self.check_starts_only_with(
            {"messages_to_delay": {"PYTHON_CALL": 0}},
            {"messages_to_delay": {"PYTHON_CALL": -0.001}},
            "Delays passed to FaultyTensorPipeAgent must be non-negative.",
        )

    def test_a_negative_number_of_failures_is_refused(self):
        text = "numFailSends should be non-negative"
        with self.assertRaisesRegex(RuntimeError, f"^{text}$"):
            self.options(num_fail_sends=-1)
        # And so it is where it was changed later.
        self.check_starts_only_with(
            {}, {}, text, change=lambda options: setattr(options, "num_fail_sends", -1)
        )


class MeetingTest(TestCase):
    def check_meets(self, method, prepare=lambda rank: None, rank=lambda rank: rank, count=3):
        def body(worker):
            prepare(worker.rank)
            for _ in range(2):  # and once more, at the same place
                rpc.init_rpc(
                    worker.name,
                    rank=rank(worker.rank),
                    world_size=count,
                    rpc_backend_options=worker.options(init_method=method),
                )
                equal(rpc.rpc_sync(worker.next, echo, (worker.rank,)), worker.rank)
                equal(names(), [f"worker{n}" for n in range(count)])
                rpc.shutdown()

        self.run_workers(*[body] * count, starts=False)

    def test_in_a_file(self):
        self.check_meets(self.meeting)

    def test_in_a_file_with_everything_in_the_url(self):
        def body(worker):
            method = f"{self.meeting}?rank={worker.rank}&world_size=2"
            rpc.init_rpc(worker.name, rpc_backend_options=worker.options(init_method=method))
            equal(names(), ["worker0", "worker1"])
            rpc.shutdown()

        self.run_workers(body, body, starts=False)

    def test_at_an_address(self):
        self.check_meets(f"tcp://127.0.0.1:{self.take_port()}")

    def test_by_the_environment(self):
        port = self.take_port()

        def prepare(rank):
            os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank))

        self.check_meets("env://", prepare)

    def test_by_the_environment_with_a_rank_that_is_not_given(self):
        port = self.take_port()

        def prepare(rank):
            os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank))

        self.check_meets("env://", prepare, rank=lambda _: -1)

    def test_at_the_store_of_an_agent(self):
        with StoreServer() as server:

            def prepare(rank):
                os.environ.update(
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(server.port),
                    TORCHELASTIC_USE_AGENT_STORE="True",
                )

            self.check_meets("env://", prepare)

    def test_what_is_missing_is_named(self):
        for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)

        def start(method, **given):
            options = rpc.TensorPipeRpcBackendOptions(init_method=method)
            rpc.init_rpc("me", rpc_backend_options=options, **given)

        for size in (None, 1):
            for method in (self.meeting, "tcp://127.0.0.1:1"):
                with self.assertRaisesRegex(ValueError, "rank parameter missing"):
                    start(method, world_size=size)
            with self.assertRaisesRegex(ValueError, "environment variable RANK expected"):
                start("env://", world_size=size)
            with self.assertRaisesRegex(ValueError, "environment variable MASTER_ADDR expected"):
                start("env://", world_size=size, rank=0)
        with self.assertRaisesRegex(ValueError, "port number missing"):
            start("tcp://127.0.0.1", rank=0, world_size=1)
        with self.assertRaisesRegex(RuntimeError, "No rendezvous handler for nfs://"):
            start("nfs://somewhere", rank=0, world_size=1)
        self.assertFalse(rpc._is_current_rpc_agent_set())

    def test_rank_and_size_are_checked(self):
        def body(worker):
            for rank, size in ((-5, 1), (1, 1), (5, 2), (0, -2), (40000, 50000)):
                try:
                    worker.start(rank=rank, world_size=size, rpc_timeout=2)
                except (RuntimeError, ValueError):
                    pass
                else:
                    raise AssertionError(f"rank {rank} of {size} was accepted")
                check(not rpc._is_current_rpc_agent_set())

        self.run_workers(body, starts=False)


class StoreServer:
    """A server of a store, as an agent has one."""

    def __enter__(self):
        program = (
            "import sys; from muster.store import TCPStore; "
            "store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False); "
            "print(store.port, flush=True); sys.stdin.read()"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.port = int(self.process.stdout.readline())
        return self

    def __exit__(self, *_):
        self.process.communicate(timeout=PATIENCE_SECONDS)


if __name__ == "__main__":
    unittest.main()

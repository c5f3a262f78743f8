"""Tensors, operators and futures of PyTorch. Run with each PyTorch that there is."""

import gc
import math
import unittest
import weakref

# Before PyTorch: it says how many threads that has.
from workers import TestCase, check, equal, has, raised, references, wait_until

import torch

import muster.rpc as rpc
from muster.rpc import internal

try:
    import cloudpickle
except ImportError:
    cloudpickle = None

# Of pickles of tensors, whatever their size.
ENVELOPE_BYTES_MAX = 500


def echo(value):
    return value


def fill(tensor, value):
    with torch.no_grad():
        tensor.fill_(value)
    return tensor


def describe(tensor):
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad


def storage_bytes(tensor):
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage().nbytes()
    return tensor.storage().nbytes()


def same(one, other):
    return describe(one) == describe(other) and torch.equal(one.detach(), other.detach())


class PickleTest(TestCase):
    def test_tensors_are_never_copied_into_the_pickle(self):
        for tensor in (torch.rand(1 << 20), torch.rand(1024, 1024).t(), torch.rand(100)[::2]):
            packed, buffers = internal.serialize([tensor, {"again": tensor}])
            self.assertLess(len(packed), ENVELOPE_BYTES_MAX)
            self.assertEqual(len(buffers), 1)
            memory = memoryview(buffers[0])
            self.assertEqual(memory.nbytes, storage_bytes(tensor))
            # It is the memory of the tensor itself.
            tensor.fill_(7)
            seen = torch.frombuffer(memory, dtype=torch.float32)
            self.assertTrue(bool((seen[: min(5, tensor.numel())] == 7).any()))
            self.assertEqual(seen.data_ptr(), tensor.data_ptr())

    def test_a_small_part_of_a_large_storage_travels_alone(self):
        base = torch.rand(1 << 20)
        for view in (base[5:10], base.view(1024, 1024)[:, 3], base[: (1 << 19) - 1]):
            packed, buffers = internal.serialize(view)
            self.assertEqual(memoryview(buffers[0]).nbytes, view.numel() * 4)
            self.assertTrue(torch.equal(internal.deserialize(packed, buffers), view))
        # Of more than half, or of little, all is sent, and the strides stay.
        for view in (base[: (1 << 19) + 1], torch.rand(32, 32)[:, 0]):
            packed, buffers = internal.serialize(view)
            self.assertEqual(memoryview(buffers[0]).nbytes, storage_bytes(view))
            self.assertEqual(internal.deserialize(packed, buffers).stride(), view.stride())

    def test_numbers_do_not_travel_in_the_pickle_of_a_model(self):
        model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 1))
        packed, buffers = internal.serialize(model)
        self.assertEqual(
            sum(memoryview(b).nbytes for b in buffers),
            sum(p.numel() * p.element_size() for p in model.parameters()),
        )
        self.assertLess(len(packed), 4000)


class TensorTest(TestCase):
    def test_tensors_of_all_forms_arrive(self):
        def body(worker):
            base = torch.arange(60.0).reshape(3, 4, 5)
            tensors = [
                base,
                base.permute(2, 0, 1),
                base[1:, ::2],
                base.expand(2, 3, 4, 5),
                torch.tensor(5),
                torch.zeros(0, 3),
                torch.zeros(2, 0, dtype=torch.int8),
                torch.rand(1 << 18),
                torch.rand(3).requires_grad_(),
                torch.tensor([True, False]),
                torch.tensor([1 + 2j, 3 - 1j]),
                torch.tensor([1 + 2j, 3 - 1j]).conj(),
                torch.tensor([1 + 2j]).conj().imag,
                torch.tensor([1.5, math.inf]).bfloat16(),
                torch.tensor([1.5, 2.5]).half(),
                *(
                    torch.tensor([1, 2], dtype=kind)
                    for kind in (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float64)
                ),
            ]
            for tensor in tensors:
                for to in (worker.next, worker.name):
                    for call in (rpc.rpc_sync, lambda *given: rpc.remote(*given).to_here()):
                        got = call(to, echo, (tensor,))
                        equal(describe(got), describe(tensor))
                        check(torch.equal(got.detach(), tensor.detach()), tensor)

        self.run_workers(body, size=2)

    def test_special_tensors_arrive(self):
        def body(worker):
            parameter = torch.nn.Parameter(torch.rand(3))
            got = rpc.rpc_sync(worker.next, echo, (parameter,))
            equal(type(got), torch.nn.Parameter)
            check(same(got, parameter))
            for coalesced in (False, True):
                sparse = torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], [3.0, 4.0, 5.0], (2, 3))
                sparse = sparse.coalesce() if coalesced else sparse
                got = rpc.rpc_sync(worker.next, echo, (sparse,))
                equal(got.is_coalesced(), coalesced)
                check(torch.equal(got.to_dense(), sparse.to_dense()))
            csr = torch.tensor([[0.0, 1], [2, 0]]).to_sparse_csr()
            check(torch.equal(rpc.rpc_sync(worker.next, echo, (csr,)).to_dense(), csr.to_dense()))
            quantized = torch.quantize_per_tensor(torch.rand(4), 0.1, 5, torch.qint8)
            got = rpc.rpc_sync(worker.next, echo, (quantized,))
            check(torch.equal(got.dequantize(), quantized.dequantize()))
            equal(rpc.rpc_sync(worker.next, echo, (torch.float32,)), torch.float32)
            equal(rpc.rpc_sync(worker.next, echo, (torch.Size([1, 2]),)), torch.Size([1, 2]))

        self.run_workers(body, size=2)

    def test_what_arrives_is_writable_and_belongs_to_the_receiver(self):
        def body(worker):
            for size in (1, 1000, 1 << 20):
                for to in (worker.next, worker.name):
                    tensor = torch.ones(size)
                    got = rpc.rpc_sync(to, fill, (tensor, 2))
                    check(bool((got == 2).all()))
                    check(bool((tensor == 1).all()), "the memory of the caller was changed")
                    got.fill_(3)

        self.run_workers(body, size=2)

    def test_tensors_live_as_long_as_they_are_used(self):
        def body(worker):
            view = rpc.rpc_sync(worker.next, torch.arange, (1 << 20,))[5:8]
            gc.collect()
            for _ in range(20):  # others come and go in between
                rpc.rpc_sync(worker.next, torch.zeros, (1 << 16,))
            equal(view.tolist(), [5, 6, 7])
            tensor = torch.ones(1 << 20)
            witness = weakref.ref(tensor)
            rpc.rpc_sync(worker.next, echo, (tensor,))
            del tensor
            wait_until(lambda: witness() is None, "the tensor is released")

        self.run_workers(body, size=2)

    @unittest.skipUnless(cloudpickle, "needs cloudpickle")
    def test_a_closure_takes_tensors_with_it(self):
        def body(worker):
            tensor = torch.ones(1 << 16)
            equal(float(rpc.rpc_sync(worker.next, lambda: tensor.sum())), float(1 << 16))

        self.run_workers(body, size=2)


class OperatorTest(TestCase):
    def test_operators_are_called_by_their_names(self):
        def body(worker):
            one, two = torch.ones(2, 2), torch.full((2, 2), 2.0)
            for to in (worker.next, worker.name):
                check(torch.equal(rpc.rpc_sync(to, torch.add, (one, two)), one + two))
                check(torch.equal(rpc.rpc_sync(to, torch.add, (one, 3)), one + 3))
                got = rpc.rpc_sync(to, torch.add, (one, two), {"alpha": 2})
                check(torch.equal(got, one + 2 * two))
                check(torch.equal(rpc.remote(to, torch.mm, (one, two)).to_here(), one @ two))
                equal(rpc.rpc_sync(to, torch.nonzero, (one,)).shape, (4, 2))
                has(raised(RuntimeError, rpc.rpc_sync, to, torch.mm, (one, torch.ones(3, 3))), "mat")
            # Built-in functions of Python are not operators, even with names of such.
            equal(rpc.rpc_sync(worker.next, max, (1, 2)), 2)
            equal(rpc.rpc_sync(worker.next, dict, kwargs={"a": 1}), {"a": 1})
            equal(rpc.rpc_sync(worker.next, math.floor, (1.5,)), 1)

        self.run_workers(body, size=2)

    def test_an_operator_without_its_arguments_fails_at_the_call(self):
        def body(worker):
            for to in (worker.next, worker.name):
                for call in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
                    for given in ((), ((),), ([], {})):
                        error = raised(RuntimeError, call, to, torch.add, *given)
                        # 1.13 has a misprint: "to many any schema".
                        has(error, "Overloaded torch operator invoked from Python failed to ma")
                        has(error, "any schema", "aten::add.Tensor(Tensor self, Tensor other")
                    error = raised(RuntimeError, call, to, torch.det)
                    has(error, "missing value for argument", "aten::det(Tensor self)")
                check(torch.equal(rpc.rpc_sync(to, torch.add, (torch.ones(1), 1)), torch.ones(1) + 1))

        self.run_workers(body, size=2)
        # Nothing was sent: who is called prints what goes wrong there.
        self.assertNotIn("aten::", self.logs())

    def test_script_functions_are_called(self):
        def body(worker):
            for to in (worker.next, worker.name):
                equal(rpc.rpc_sync(to, scripted, (torch.ones(2), 3)).tolist(), [3, 3])
                equal(rpc.remote(to, scripted, (torch.ones(2), 4)).to_here().tolist(), [4, 4])

        self.run_workers(body, size=2)


@torch.jit.script
def scripted(tensor: torch.Tensor, times: int) -> torch.Tensor:
    return tensor * times


@rpc.functions.async_execution
def average_later(value):
    future = torch.futures.Future()
    future.set_result(value)
    return future.then(lambda done: done.wait() / 2)


@rpc.functions.async_execution
def fail_later():
    future = torch.futures.Future()
    future.set_result(1)
    return future.then(lambda done: 1 / 0)


def throw(text):
    raise KeyError(text)


class FutureTest(TestCase):
    def test_futures_of_calls_are_futures_of_pytorch(self):
        def body(worker):
            future = rpc.rpc_async(worker.next, torch.add, (torch.ones(1), 1))
            check(isinstance(future, torch.futures.Future))
            equal(future.then(lambda done: done.wait().item() + 1).wait(), 3)
            futures = [rpc.rpc_async(worker.next, echo, (n,)) for n in range(10)]
            own = torch.futures.Future()
            own.set_result(10)
            equal(torch.futures.wait_all(futures + [own]), list(range(11)))
            both = torch.futures.collect_all(futures + [own])
            equal([one.wait() for one in both.wait()], list(range(11)))
            equal(both.then(lambda done: len(done.value())).wait(), 11)
            failing = futures + [rpc.rpc_async(worker.next, throw, ("x",))]
            for way in (torch.futures.wait_all, lambda all_: torch.futures.collect_all(all_).wait()):
                try:
                    way(failing)
                except Exception as error:
                    check(isinstance(error, (KeyError, RuntimeError)), error)
                    has(error, "KeyError", "x")
                else:
                    raise AssertionError("nothing was raised")
            equal(futures[3].wait(), 3)
            equal(torch.futures.wait_all([]), [])

        self.run_workers(body, size=2)

    def test_asynchronous_functions_answer_with_futures_of_pytorch(self):
        def body(worker):
            equal(rpc.rpc_sync(worker.next, average_later, (4,)), 2)
            equal(rpc.remote(worker.next, average_later, (4,)).to_here(), 2)
            try:
                rpc.rpc_sync(worker.next, fail_later)
            except Exception as error:
                has(error, "ZeroDivisionError")
            else:
                raise AssertionError("nothing was raised")

        self.run_workers(body, size=2)

    def test_futures_are_let_go_of(self):
        def body(worker):
            future = rpc.rpc_async(worker.next, echo, (1,))
            future.wait()
            witness = weakref.ref(future)
            later = future.then(lambda done: done.wait())
            torch.futures.wait_all([future, later])
            del future, later
            wait_until(lambda: witness() is None, "the future is released")

        self.run_workers(body, size=2)

    def test_a_future_of_pytorch_is_not_sent(self):
        def body(worker):
            future = torch.futures.Future()
            for call in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
                error = raised(RuntimeError, call, worker.next, echo, (future,))
                has(error, "Can not pickle torch.futures.Future")

        self.run_workers(body, size=2)


class ProcessGroupTest(TestCase):
    def test_a_process_group_alone_is_no_rpc(self):
        def body(worker):
            import torch.distributed

            torch.distributed.init_process_group(
                "gloo", init_method=worker.meeting, rank=0, world_size=1
            )
            try:
                error = raised(RuntimeError, rpc.RRef, torch.ones(2))
                equal(type(error), RuntimeError)
                text = "Current RPC agent is not set! Did you initialize the RPC framework"
                check(str(error).startswith(text), error)
                for call in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
                    error = raised(RuntimeError, call, "worker0", echo, (1,))
                    check(str(error).startswith("RPC has not been initialized"), error)
            finally:
                torch.distributed.destroy_process_group()

        self.run_workers(body, starts=False)


class DeviceTest(TestCase):
    def test_devices_that_cannot_be_are_refused_when_they_are_set(self):
        options = rpc.TensorPipeRpcBackendOptions()
        for device, text in ((-1, "Device index must not be negative"), ("cuda:-1", "Invalid device")):
            for refused in (
                lambda: options.set_device_map("a", {device: 0}),
                lambda: options.set_device_map("a", {0: device}),
                lambda: options.set_devices([0, device]),
                lambda: rpc.TensorPipeRpcBackendOptions(device_maps={"a": {device: 0}}),
            ):
                with self.assertRaisesRegex(RuntimeError, f"^{text}"):
                    refused()
        self.assertEqual((options.device_maps, options.devices), ({}, []))

    def test_devices_are_those_of_pytorch_even_without_an_accelerator(self):
        options = rpc.TensorPipeRpcBackendOptions(device_maps={"a": {0: "cuda:1"}}, devices=[1])
        one, two = torch.device("cuda:0"), torch.device("cuda:1")
        self.assertEqual((options.device_maps, options.devices), ({"a": {one: two}}, [two]))


class LateTest(TestCase):
    def test_pytorch_may_come_after_the_first_calls(self):
        # A program of its own: this one has it already.
        self.run_script(
            """
import sys
import muster.rpc as rpc
options = rpc.TensorPipeRpcBackendOptions(init_method=sys.argv[1])
rpc.init_rpc("me", rank=0, world_size=1, rpc_backend_options=options)
before = rpc.rpc_async("me", len, ("abc",))
assert "torch" not in sys.modules
import torch
tensor = torch.ones(1 << 16)
assert torch.equal(rpc.rpc_sync("me", torch.neg, (tensor,)), -tensor)
after = rpc.rpc_async("me", len, ("abcd",))
assert before.wait() == 3 and isinstance(after, torch.futures.Future)
assert torch.futures.wait_all([before, after]) == [3, 4]
rpc.shutdown()
"""
        )


class ReferenceTest(TestCase):
    def test_values_of_tensors_are_used_through_references(self):
        def body(worker):
            rref = rpc.remote(worker.next, torch.add, (torch.ones(2), 1))
            equal(rref.rpc_sync().size(), torch.Size([2]))
            equal(rref.rpc_async().add(1).wait().tolist(), [3, 3])
            equal(rref.remote().view(2, 1).to_here().shape, (2, 1))
            equal(rref._get_type(), torch.Tensor)
            rpc.rpc_sync(worker.next, fill_reference, (rref, 9))
            equal(rref.to_here().tolist(), [9, 9])
            del rref
            wait_until(lambda: rpc.rpc_sync(worker.next, references) == (0, 0), "it is released")

        self.run_workers(body, size=2)


def fill_reference(rref, value):
    rref.local_value().fill_(value)


if __name__ == "__main__":
    unittest.main()

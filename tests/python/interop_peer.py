"""A Python worker for interop_test.py, and what that asks it to do.

    interop_peer.py NAME RANK WORLD_SIZE STORE

"plain" has neither NumPy nor PyTorch loaded; "torch" has PyTorch.
"""

import array
import sys

import muster.rpc as rpc


def echo(signature, value):
    """What comes back of a value that goes to C++ and back."""
    procedure = rpc.Procedure(f"echo {signature}", f"({signature})->{signature}")
    return rpc.rpc_sync("server", procedure, args=(value,))


def identity(value):
    return value


def length_of(reference):
    return len(reference.to_here())


def add_to(signature, counter):
    add = rpc.Procedure("counter.add", signature)
    return rpc.rpc_sync(counter.owner(), add, args=(counter, 10))


# ---- plain -------------------------------------------------------------------------------------


def plain_numbers():
    """(the code and the values of the arrays that come back, what complex numbers are)"""
    assert "numpy" not in sys.modules and "torch" not in sys.modules
    seen = {}
    for code, kind in zip("bhiqBHIQfd", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64"]):
        for value in ([1, 2, 100], array.array(code, [1, 2, 100])):
            back = echo(f"vec<{kind}>", value)
            assert type(back) is array.array, type(back)
            seen[kind] = (back.typecode, back.tolist())
    assert echo("vec<f64>", []) == array.array("d")
    many = array.array("d", range(100_000))
    assert echo("vec<f64>", many) == many
    return seen, echo("vec<c64>", [1, 2j])


# ---- with PyTorch ------------------------------------------------------------------------------


def torch_expanded_bools():
    """The shape, the strides and a row of a tensor whose elements are all over the same memory."""
    many = rpc.rpc_sync("server", rpc.Procedure("expanded_bools", "()->tensor"))
    return tuple(many.shape), many.stride(), many[12345].tolist()


def torch_round_trips():
    """The types of tensors that come back as they went."""
    import torch

    good = []
    for name in ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
                 "float64", "complex64", "complex128", "bool"):
        dtype = getattr(torch, name)
        tensor = torch.tensor([[0, 1, 2], [3, 0, 5]]).to(dtype)
        for each in (tensor, tensor.t(), tensor[:, 1:], tensor[0], tensor[0, 0], tensor[:0],
                     tensor.repeat(100, 100)):
            back = echo("tensor", each)
            assert isinstance(back, torch.Tensor) and back.dtype == dtype, (name, back)
            assert back.shape == each.shape and torch.equal(back, each), (name, each, back)
        good.append(name)
    parameter = torch.nn.Parameter(torch.ones(3))
    assert torch.equal(echo("tensor", parameter), torch.ones(3))
    conjugate = torch.tensor([1 + 2j]).conj()
    assert torch.equal(echo("tensor", conjugate), torch.tensor([1 - 2j]))
    assert echo("tensor", None) is None
    odd = rpc.rpc_sync("server", rpc.Procedure("odd_bools", "()->tensor"))
    assert odd.tolist() == [False, True, True, True], odd
    # Rows of numbers are NumPy's, which PyTorch has loaded.
    assert echo("vec<f32>", torch.arange(4.0)).tolist() == [0, 1, 2, 3]
    assert echo("vec<f32>", torch.arange(8.0)[::2]).tolist() == [0, 2, 4, 6]
    return good


def torch_refusals():
    """What is said about tensors that cannot be sent."""
    import torch

    texts = []
    for tensor in (torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        try:
            echo("tensor", tensor)
        except TypeError as error:
            texts.append(str(error))
    return texts


def main():
    name, rank, world_size, store = sys.argv[1:]
    if name == "torch":
        import torch  # noqa: F401
    options = rpc.TensorPipeRpcBackendOptions(init_method=store)
    rpc.init_rpc(name, rank=int(rank), world_size=int(world_size), rpc_backend_options=options)
    rpc.shutdown()


if __name__ == "__main__":
    # Functions of this file are known to others by its name.
    sys.modules["interop_peer"] = sys.modules["__main__"]
    main()

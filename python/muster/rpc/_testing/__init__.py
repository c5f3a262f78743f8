"""The backend that makes messages fail and be late on purpose: FAULTY_TENSORPIPE."""

from .. import backend_registry
from ..options import TensorPipeRpcBackendOptions

__all__ = ["FaultyTensorPipeRpcBackendOptions"]


class FaultyTensorPipeRpcBackendOptions(TensorPipeRpcBackendOptions):
    """messages_to_fail: names of message types whose first `num_fail_sends` sends fail.
    messages_to_delay: seconds by which messages are late, by the names of their types.
    """

    def __init__(
        self, *, messages_to_fail, messages_to_delay, num_fail_sends, **kwargs
    ):
        super().__init__(**kwargs)
        if num_fail_sends < 0:
            raise RuntimeError("numFailSends should be non-negative")
        self.messages_to_fail = list(messages_to_fail)
        self.messages_to_delay = dict(messages_to_delay)
        self.num_fail_sends = num_fail_sends


# What the backend itself has is not what its options class demands.
def _construct_options(
    rpc_timeout,
    init_method,
    messages_to_fail=(),
    messages_to_delay=None,
    num_fail_sends=0,
    **kwargs,
):
    return FaultyTensorPipeRpcBackendOptions(
        rpc_timeout=rpc_timeout,
        init_method=init_method,
        messages_to_fail=messages_to_fail,
        messages_to_delay=messages_to_delay or {},
        num_fail_sends=num_fail_sends,
        **kwargs,
    )


def _init_backend(store, name, rank, world_size, rpc_backend_options):
    from ..agent import start_agent

    if not isinstance(rpc_backend_options, FaultyTensorPipeRpcBackendOptions):
        raise TypeError(
            "`rpc_backend_options` must be a `FaultyTensorPipeRpcBackendOptions`"
        )
    faults = (
        rpc_backend_options.messages_to_fail,
        rpc_backend_options.messages_to_delay,
        rpc_backend_options.num_fail_sends,
    )
    return start_agent(store, name, rank, world_size, rpc_backend_options, faults)


backend_registry.register_backend(
    "FAULTY_TENSORPIPE", _construct_options, _init_backend
)

"""The defaults of muster.rpc, under the names of torch.distributed.rpc.constants."""

DEFAULT_RPC_TIMEOUT_SEC: float = 60.0
DEFAULT_INIT_METHOD: str = "env://"
DEFAULT_SHUTDOWN_TIMEOUT: float = 0
DEFAULT_NUM_WORKER_THREADS: int = 16
# Says that a call has no timeout of its own.
UNSET_RPC_TIMEOUT: float = -1.0

"""Calling methods of the value that a reference refers to."""

from .constants import UNSET_RPC_TIMEOUT
from .functions import async_execution, is_async


def _call_method(rref, name, args, kwargs):
    return getattr(rref.local_value(), name)(*args, **kwargs)


@async_execution
def _call_async_method(rref, name, args, kwargs):
    return getattr(rref.local_value(), name)(*args, **kwargs)


def _invoke(rref, call, name, timeout, args, kwargs):
    kind = rref._type
    method = getattr(kind, name)
    function = _call_async_method if is_async(method) else _call_method
    return call(rref.owner(), function, args=(rref, name, args, kwargs), timeout=timeout)


class _Method:
    __slots__ = ("proxy", "name")

    def __init__(self, proxy, name):
        self.proxy = proxy
        self.name = name

    def __call__(self, *args, **kwargs):
        from . import api

        rref, call, timeout = self.proxy.rref, self.proxy.rpc_api, self.proxy.rpc_timeout
        if call is not api.rpc_async:
            if rref._type is None:
                rref._get_type(timeout)
            return _invoke(rref, call, self.name, timeout, args, kwargs)
        if rref._type is not None and hasattr(rref._type, self.name):
            return _invoke(rref, call, self.name, timeout, args, kwargs)
        # The class is asked for first, without waiting for it; what is wrong comes by the future.
        done = api._future_of(api._native.Future())

        def on_result(future):
            try:
                done.set_result(future.wait())
            except BaseException as error:
                done.set_exception(error)

        def on_type(future):
            try:
                rref._type = future.wait()
                called = _invoke(rref, call, self.name, timeout, args, kwargs)
            except BaseException as error:
                done.set_exception(error)
            else:
                called.add_done_callback(on_result)

        rref._get_type(timeout, blocking=False).add_done_callback(on_type)
        return done


class RRefProxy:
    """What rref.rpc_sync(), rref.rpc_async() and rref.remote() give: its methods are the value's."""

    __slots__ = ("rref", "rpc_api", "rpc_timeout")

    def __init__(self, rref, rpc_api, timeout=UNSET_RPC_TIMEOUT):
        self.rref = rref
        self.rpc_api = rpc_api
        self.rpc_timeout = timeout

    def __getattr__(self, name):
        return _Method(self, name)

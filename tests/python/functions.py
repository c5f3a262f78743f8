"""Functions that tests have other workers call, and futures that are done already."""

import os

from muster.futures import Future
from workers import wait_until


def echo(value):
    return value


def throw(kind, text="for a reason"):
    raise kind(text)


def read(path):
    wait_until(lambda: os.path.exists(path), f"there is {path}")
    return path


def failed(error):
    future = Future()
    future.set_exception(error)
    return future


def done(value):
    future = Future()
    future.set_result(value)
    return future

"""muster.elastic, through the public package only. Needs no PyTorch.

Workers are processes of `muster run`; what they do is at the end of this file.
"""

import contextlib
import faulthandler
import importlib.util
import io
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

import muster.store as stores
from muster.elastic import errors, events, metrics, rendezvous, timer
from muster.elastic.launch import ChildFailedError, LaunchConfig, LogsSpecs, elastic_launch, find_program

SECONDS_MAX = 240  # for what takes seconds on a busy machine


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="muster-elastic-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)


class RendezvousTest(Folder):

    def setUp(self):
        super().setUp()
        self.server = stores.TCPStore("localhost", 0, is_master=True)

    def make(self, backend="muster", endpoint=None, nodes=2, run_id="run", **options):
        return rendezvous.get_rendezvous_handler(rendezvous.RendezvousParameters(
            backend, endpoint or f"localhost:{self.server.port}", run_id, nodes, nodes, "localhost", **options))

    def meet(self, *handlers):
        """What each of them gets, in the order of ranks."""
        infos = [None] * len(handlers)

        def join(index):
            infos[index] = handlers[index].next_rendezvous()

        threads = [threading.Thread(target=join, args=(index,)) for index in range(len(handlers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(infos, key=lambda info: info.rank)

    def test_two_nodes_come_together_by_every_backend(self):
        for backend, endpoint in [("muster", None), ("c10d", None), ("file", self.path("store"))]:
            with self.subTest(backend=backend):
                handlers = [self.make(backend, endpoint, run_id=backend) for _ in range(2)]
                infos = self.meet(*handlers)
                self.assertEqual([(info.rank, info.world_size, info.round) for info in infos],
                                 [(0, 2, 0), (1, 2, 0)])
                self.assertEqual(infos[0].bootstrap_store_info, infos[1].bootstrap_store_info)
                self.assertEqual(infos[0].bootstrap_store_info.master_addr, "localhost")
                infos[0].store.set("key", "value")
                self.assertEqual(infos[1].store.get("key"), b"value")
                self.assertEqual(handlers[0].get_backend(), backend)
                self.assertEqual(handlers[0].get_run_id(), backend)
                self.assertEqual(handlers[0].num_nodes_waiting(), 0)
                self.assertFalse(handlers[0].is_closed())

    def test_the_store_that_workers_begin_with_is_there(self):
        handler = self.make(nodes=1)
        info = handler.next_rendezvous()
        self.assertTrue(handler.use_agent_store)
        where = info.bootstrap_store_info
        worker = stores.TCPStore(where.master_addr, where.master_port)
        worker.set("key", "value")
        self.assertEqual(worker.get("key"), b"value")

    def test_a_static_group_is_told_its_ranks(self):
        with stores_port() as port:
            handlers = [self.make("static", f"localhost:{port}", rank=rank) for rank in range(2)]
            infos = self.meet(*handlers)
        self.assertEqual([info.rank for info in infos], [0, 1])

    def test_rounds_follow_one_another_with_stores_of_their_own(self):
        first, second = self.make(), self.make()
        before = self.meet(first, second)
        before[0].store.set("key", "value")
        after = self.meet(first, second)
        self.assertEqual([info.round for info in after], [1, 1])
        self.assertIsNone(after[0].store.try_get("key"))

    def test_a_run_that_one_closes_is_closed_for_all(self):
        first, second = self.make(), self.make()
        self.meet(first, second)
        first.set_closed()
        self.assertTrue(first.is_closed())
        with self.assertRaises(rendezvous.RendezvousClosedError):
            second.next_rendezvous()
        self.assertTrue(second.shutdown())
        self.assertTrue(second.shutdown())

    def test_errors_say_what_is_wrong(self):
        with self.assertRaises(rendezvous.RendezvousTimeoutError):
            self.make(join_timeout=1).next_rendezvous()
        with self.assertRaisesRegex(rendezvous.RendezvousConnectionError, "localhost"):
            self.make(endpoint="localhost:1", read_timeout=1)
        with self.assertRaisesRegex(rendezvous.RendezvousError, "join_timout.*join_timeout"):
            self.make(join_timout=5)

    def test_a_node_that_is_interrupted_is_not_waited_for(self):
        waiting, other = self.make(), self.make()
        sender = subprocess.Popen(["/bin/sh", "-c", f"read go; kill -INT {os.getpid()}"], stdin=subprocess.PIPE)
        with self.assertRaises(KeyboardInterrupt):
            os.write(sender.stdin.fileno(), b"go\n")
            waiting.next_rendezvous()
        sender.communicate()
        infos = self.meet(waiting, other)
        self.assertEqual([info.world_size for info in infos], [2, 2])

    def test_parameters_are_judged_and_read(self):
        make = rendezvous.RendezvousParameters
        for arguments in [("", "", "", 1, 1), ("x", "", "", 0, 1), ("x", "", "", 2, 1)]:
            with self.assertRaises(ValueError):
                make(*arguments)
        parameters = make("x", "", "", 1, 1, yes="Y", no=0, number="12", bad="x", nothing=None)
        self.assertTrue(parameters.get_as_bool("yes"))
        self.assertFalse(parameters.get_as_bool("no"))
        self.assertEqual(parameters.get_as_int("number"), 12)
        self.assertIsNone(parameters.get_as_int("nothing"))
        self.assertEqual(parameters.get_as_int("none", 7), 7)
        self.assertEqual(parameters.get("bad"), "x")
        for read in (parameters.get_as_bool, parameters.get_as_int):
            with self.assertRaisesRegex(ValueError, "'bad'"):
                read("bad")
        self.assertEqual(rendezvous.parse_config("a=1, b = x y"), {"a": "1", "b": "x y"})

    def test_the_registry_refuses_what_would_confuse(self):
        registry = rendezvous.RendezvousHandlerRegistry()
        parameters = rendezvous.RendezvousParameters("mine", "", "", 1, 1)
        with self.assertRaisesRegex(ValueError, "'mine'"):
            registry.create_handler(parameters)
        handler = unittest.mock.Mock(**{"get_backend.return_value": "mine"})
        given = []
        creator = lambda params: given.append(params) or handler  # noqa: E731
        registry.register("mine", creator)
        registry.register("mine", creator)
        self.assertIs(registry.create_handler(parameters), handler)
        self.assertIs(given[0], parameters)
        for name in ("mine", ""):
            with self.assertRaises(ValueError):
                registry.register(name, lambda params: handler)
        handler.get_backend.return_value = "other"
        with self.assertRaises(RuntimeError):
            registry.create_handler(parameters)


class ErrorsTest(Folder):

    def setUp(self):
        super().setUp()
        self.file = self.path("error.json")
        patch = unittest.mock.patch.dict(os.environ, {"TORCHELASTIC_ERROR_FILE": self.file})
        patch.start()
        self.addCleanup(patch.stop)

    def recorded(self):
        with open(self.file) as file:
            return json.load(file)

    def test_an_exception_is_recorded_and_goes_on(self):
        @errors.record
        def main(text):
            raise KeyError(text)

        with self.assertRaises(KeyError):
            main("the key")
        message = self.recorded()["message"]
        self.assertEqual(message["message"], "KeyError: 'the key'")
        self.assertIn("raise KeyError(text)", message["extraInfo"]["py_callstack"])
        self.assertLess(abs(int(message["extraInfo"]["timestamp"]) - time.time()), SECONDS_MAX)

    def test_results_and_exits_are_no_errors(self):
        self.assertEqual(errors.record(lambda number: number + 1)(1), 2)
        self.assertIsNone(errors.record(lambda: sys.exit(0))())
        with self.assertRaises(SystemExit):
            errors.record(lambda: sys.exit(3))()
        self.assertFalse(os.path.exists(self.file))

    def test_nothing_is_written_where_nobody_asked(self):
        del os.environ["TORCHELASTIC_ERROR_FILE"]
        with self.assertRaises(ValueError):
            errors.record(lambda: int("x"))()
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_launcher_passes_on_what_its_first_worker_recorded(self):
        data = {"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "stack", "timestamp": "5"}}}
        first = errors.ProcessFailure(1, 22, 3, error_file_data=data)
        later = errors.ProcessFailure(0, 21, -15, timestamp=7)
        failed = ChildFailedError("job", {0: later, 1: first})
        self.assertEqual(failed.get_first_failure(), (1, first))
        self.assertEqual(first.timestamp, 5)

        def main():
            raise failed

        with self.assertRaises(ChildFailedError):
            errors.record(main)()
        data["message"]["errorCode"] = 3
        self.assertEqual(self.recorded(), data)

    def test_the_report_names_everyone_and_ends_with_the_first(self):
        failures = {0: errors.ProcessFailure(0, 21, -15, timestamp=7), 1: errors.ProcessFailure(1, 22, 3, timestamp=6)}
        error = pickle.loads(pickle.dumps(ChildFailedError("job", failures)))
        others, _, root = str(error).partition("Root Cause")
        self.assertIn("job FAILED", others)
        self.assertIn("Signal 15 (SIGTERM) received by PID 21", others)
        self.assertIn("rank      : 1 (local_rank: 1)", root)
        self.assertIn("exitcode  : 3 (pid: 22)", root)
        self.assertNotIn("<NO_OTHER", str(error))


class LaunchTest(Folder):

    def config(self, workers=2, **more):
        more.setdefault("max_restarts", 0)
        return LaunchConfig(1, 1, workers, **more)

    def test_what_every_worker_returns_comes_back_by_rank(self):
        results = elastic_launch(self.config(), place)("a", {"b": [1, 2]})
        self.assertEqual(results, {0: ("0", "2", "a", {"b": [1, 2]}), 1: ("1", "2", "a", {"b": [1, 2]})})

    def test_what_a_worker_raises_is_in_the_error(self):
        with self.assertRaises(ChildFailedError) as caught:
            elastic_launch(self.config(), fail_on_rank_1)("a text")
        rank, failure = caught.exception.get_first_failure()
        self.assertEqual((rank, failure.local_rank, failure.exitcode), (1, 1, 1))
        self.assertEqual(failure.message["message"], "ValueError: a text")
        self.assertIn("in fail_on_rank_1", str(caught.exception))

    def test_a_worker_that_a_signal_ended_is_in_the_error(self):
        with self.assertRaises(ChildFailedError) as caught:
            elastic_launch(self.config(1), end_by_signal)()
        self.assertEqual(caught.exception.failures[0].exitcode, -signal.SIGKILL)

    def test_failed_workers_are_restarted_and_only_the_last_results_count(self):
        results = elastic_launch(self.config(max_restarts=1), fail_at_first)(self.folder)
        self.assertEqual(results, {0: "1", 1: "1"})

    @unittest.skipUnless(importlib.util.find_spec("cloudpickle"), "there is no cloudpickle")
    def test_closures_are_taken_where_there_is_cloudpickle(self):
        number = 5
        self.assertEqual(elastic_launch(self.config(1), lambda more: number + more)(1), {0: 6})

    def test_a_function_that_cannot_be_pickled_is_an_error_before_anything_starts(self):
        with self.assertRaises((TypeError, pickle.PicklingError)):
            elastic_launch(self.config(1), place)(threading.Lock())

    def test_a_program_is_run_too(self):
        self.assertEqual(elastic_launch(self.config(), "/bin/sh")("-c", "exit 0"), {0: None, 1: None})
        with self.assertRaises(ChildFailedError) as caught:
            elastic_launch(self.config(1), "/bin/sh")("-c", "exit 7")
        self.assertEqual(caught.exception.failures[0].exitcode, 7)
        self.assertEqual(caught.exception.name, "/bin/sh")

    def test_options_reach_the_agent(self):
        logs = LogsSpecs(log_dir=self.path("logs"), redirects="3")
        config = self.config(1, role="tester", logs_specs=logs, event_log_handler=f"file:{self.path('events')}")
        self.assertEqual(elastic_launch(config, role_and_print)("printed"), {0: "tester"})
        printed = [os.path.join(folder, name) for folder, _, names in os.walk(self.path("logs"))
                   for name in names if name == "stdout.log"]
        self.assertEqual([open_and_read(path) for path in printed], ["printed\n"])
        self.assertIn('"role": "tester"', open_and_read(self.path("events")))

    def test_options_that_cannot_be_are_refused(self):
        with self.assertRaisesRegex(RuntimeError, "status 1"):
            elastic_launch(LaunchConfig(2, 1, 1), place)()

    def test_two_launchers_make_one_job(self):
        server = stores.TCPStore("localhost", 0, is_master=True)
        config = LaunchConfig(2, 2, 1, run_id="job", rdzv_backend="muster", max_restarts=0, rdzv_timeout=900,
                              rdzv_endpoint=f"localhost:{server.port}", local_addr="localhost",
                              rdzv_configs={"join_timeout": SECONDS_MAX})
        results = {}

        def launch():
            results.update(elastic_launch(config, place)())

        threads = [threading.Thread(target=launch) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, {0: ("0", "2"), 1: ("1", "2")})

    def test_an_interrupted_launcher_ends_its_workers(self):
        store = stores.FileStore(self.path("store"))
        interrupter = threading.Thread(
            target=lambda: (store.get("pid"), os.kill(os.getpid(), signal.SIGINT)))
        interrupter.start()
        with self.assertRaises(KeyboardInterrupt):
            elastic_launch(self.config(1), tell_and_hang)(store.path)
        interrupter.join()
        with self.assertRaises(ProcessLookupError):
            os.kill(int(store.get("pid")), 0)

    def test_the_program_is_found(self):
        with unittest.mock.patch.dict(os.environ, {"MUSTER_BIN": "/some/where/muster"}):
            self.assertEqual(find_program(), "/some/where/muster")


class TimerTest(Folder):

    def launch(self, function, *args, **environment):
        with unittest.mock.patch.dict(os.environ, environment):
            return elastic_launch(LaunchConfig(1, 1, 1, max_restarts=1), function)(self.folder, *args)

    def test_a_worker_that_misses_a_deadline_is_killed_and_restarted(self):
        self.assertEqual(self.launch(hang_at_first, None), {0: "1"})

    def test_pytorchs_file_timers_do_the_same(self):
        self.assertEqual(self.launch(hang_at_first, "file", TORCHELASTIC_ENABLE_FILE_TIMER="1"), {0: "1"})

    def test_a_deadline_that_is_kept_ends_with_its_block(self):
        self.assertEqual(self.launch(keep_deadlines), {0: "0"})

    def test_a_worker_tells_how_it_is(self):
        self.assertEqual(self.launch(tell_the_agent), {0: "seconds are wanted"})

    def test_without_an_agent_it_says_what_to_do(self):
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("MUSTER_AGENT_SOCKET", None)
            os.environ.pop("TORCHELASTIC_TIMER_FILE", None)
            with self.assertRaisesRegex(RuntimeError, "configure"):
                with timer.expires(after=1):
                    pass
            with self.assertRaisesRegex(RuntimeError, "MUSTER_AGENT_SOCKET"):
                timer.alive()

    def test_any_keeper_can_be_configured(self):
        keeper = unittest.mock.Mock(spec=timer.TimerClient)
        timer.configure(keeper)
        self.addCleanup(timer.configure, None)
        with self.assertRaises(ValueError), timer.expires(after=60):
            raise ValueError
        scope, when = keeper.acquire.call_args.args
        self.assertRegex(scope, r"elastic_test\.py#\d+")
        self.assertLess(abs(when - time.time() - 60), SECONDS_MAX)
        keeper.release.assert_called_once_with(scope)

    def test_a_pipe_gets_what_pytorchs_server_reads(self):
        path = self.path("pipe")
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.addCleanup(os.close, pipe)
        client = timer.FileTimerClient(path, signal.SIGTERM)
        client.acquire("scope", 12.5)
        client.release("scope")
        lines = [json.loads(line) for line in os.read(pipe, 8192).splitlines()]
        self.assertEqual(lines, [
            {"version": 1, "pid": os.getpid(), "scope_id": "scope", "expiration_time": 12.5, "signal": 15},
            {"version": 1, "pid": os.getpid(), "scope_id": "scope", "expiration_time": -1, "signal": 0}])
        with self.assertRaisesRegex(ValueError, "too long"):
            client.acquire("x" * 5000, 1)


class EventsTest(Folder):

    def test_events_are_appended_to_files(self):
        one = events.Event("one", metadata={"number": 1, "text": "é", "nothing": None})
        two = events.Event("two", events.EventSource.AGENT, 123)
        for event in (one, two):
            events.record(event, f"file:{self.path('log')}")
        lines = open_and_read(self.path("log")).splitlines()
        self.assertEqual([events.Event.deserialize(line) for line in lines], [one, two])
        self.assertEqual(json.loads(lines[1]),
                         {"name": "two", "source": "AGENT", "timestamp": 123, "metadata": {}})
        self.assertLess(abs(one.timestamp / 1000 - time.time()), SECONDS_MAX)

    def test_events_go_to_sockets_of_both_kinds(self):
        event = events.Event("event")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            receiver.bind(self.path("datagrams"))
            events.record(event, f"unix:{self.path('datagrams')}")
            self.assertEqual(receiver.recv(4096).decode(), event.serialize() + "\n")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as receiver:
            receiver.bind(self.path("stream"))
            receiver.listen()
            events.record(event, f"unix:{self.path('stream')}")
            with receiver.accept()[0].makefile() as stream:
                self.assertEqual(stream.read(), event.serialize() + "\n")
        with self.assertRaises(OSError):
            events.record(event, f"unix:{self.path('none')}")

    def test_events_go_to_the_console_to_nobody_or_where_one_says(self):
        event = events.Event("event")
        with contextlib.redirect_stderr(io.StringIO()) as console:
            events.record(event)
            events.record(event, "console")
        self.assertEqual(console.getvalue(), event.serialize() + "\n")
        seen = []
        events.register_destination("mine", seen.append)
        events.record(event, "mine")
        self.assertEqual(seen, [event])
        with self.assertRaisesRegex(ValueError, "'nowhere'"):
            events.record(event, "nowhere")


class MetricsTest(unittest.TestCase):

    def test_numbers_go_to_the_handler_of_their_group(self):
        mine, others = unittest.mock.Mock(), unittest.mock.Mock()
        metrics.configure(others)
        self.addCleanup(metrics.configure, metrics.NullMetricHandler())
        metrics.configure(mine, "mine")
        metrics.put_metric("a", 1, "mine")
        metrics.put_metric("b", 2)
        self.assertEqual(mine.emit.call_args.args[0][1:], ("mine", "a", 1))
        self.assertEqual(others.emit.call_args.args[0][1:], ("torchelastic", "b", 2))

    def test_the_console_shows_them(self):
        with contextlib.redirect_stdout(io.StringIO()) as console:
            metrics.ConsoleMetricHandler().emit(metrics.MetricData(1.5, "group", "name", 3))
        self.assertEqual(console.getvalue(), "[1.5][group]: name=3\n")

    def test_timed_functions_tell_how_they_ended(self):
        handler = unittest.mock.Mock()
        metrics.configure(handler, "timed")
        self.assertEqual(metrics.prof(place, group="timed").__name__, "place")

        class Work:
            @metrics.prof(group="timed")
            def do(self, fails):
                return 1 // (not fails)

        self.assertEqual(Work().do(False), 1)
        with self.assertRaises(ZeroDivisionError):
            Work().do(True)
        names = [call.args[0].name.rpartition("Work.")[2] for call in handler.emit.call_args_list]
        self.assertEqual(names, ["do.success", "do.duration.ms", "do.failure", "do.duration.ms"])


# ---- What workers do.


def place(*args):
    return (os.environ["RANK"], os.environ["WORLD_SIZE"], *args)


def fail_on_rank_1(text):
    if os.environ["RANK"] == "1":
        raise ValueError(text)
    signal.pause()


def end_by_signal():
    os.kill(os.getpid(), signal.SIGKILL)


def life():
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


def fail_at_first(folder):
    if life() == "0" and os.environ["RANK"] == "0":
        raise ValueError("the first life")
    if life() == "0":
        return "a result that does not count"
    return life()


def role_and_print(text):
    print(text)
    return os.environ["ROLE_NAME"]


def tell_and_hang(path):
    stores.FileStore(path).set("pid", str(os.getpid()))
    signal.pause()


def hang_at_first(folder, kind):
    if kind == "file":
        timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
    with timer.expires(after=0.2 if life() == "0" else 1000, scope="the first life"):
        if life() == "0":
            signal.pause()
    return life()


def keep_deadlines(folder):
    for _ in range(100):
        with timer.expires(after=SECONDS_MAX):
            pass
    # One that is only reported when it is missed, and is then forgotten: before the agent answers.
    with timer.expires(after=0, client=timer.AgentTimerClient(signal=None)):
        for _ in range(10):
            timer.alive()
    return life()


def tell_the_agent(folder):
    timer.ready()
    timer.alive()
    timer.status("at work")
    try:
        timer.AgentTimerClient().tell("expires scope soon")
    except RuntimeError as error:
        return "seconds are wanted" if "soon" in str(error) else str(error)
    return "it was taken"


# ---- Helpers.


def open_and_read(path):
    with open(path) as file:
        return file.read()


@contextlib.contextmanager
def stores_port():
    """A port on which nothing listens."""
    port = stores.TCPStore("localhost", 0, is_master=True).port
    yield port


if __name__ == "__main__":
    faulthandler.dump_traceback_later(540, exit=True)
    unittest.main()

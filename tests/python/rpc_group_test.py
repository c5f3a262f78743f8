"""Groups: who is in them, what they do together, how they end, and workers that come and go."""

import collections
import concurrent.futures
import os
import signal
import threading
import unittest

import muster.rpc as rpc
from muster import errors
from workers import TestCase, Worker, check, equal, has, raised, wait_until


def echo(value):
    return value


def read(path):
    wait_until(lambda: os.path.exists(path), f"there is {path}")
    return path


_lock = threading.Lock()
_arrived = collections.Counter()


def arrive(where):
    with _lock:
        _arrived[where] += 1


def arrived(where):
    with _lock:
        return _arrived[where]


class Ready:
    """Is pickled only when there is a file, and says with another that it is asked for."""

    def __init__(self, asked, path):
        self.asked = asked
        self.path = path

    def __reduce__(self):
        open(self.asked, "x").close()
        return (echo, (read(self.path),))


def check_is_over():
    """RPC has ended on this worker, and whoever uses it is told so."""
    check(not rpc._is_current_rpc_agent_set())
    calls = [lambda c=c: c("worker0", echo, (1,)) for c in (rpc.rpc_sync, rpc.rpc_async, rpc.remote)]
    for call in (*calls, rpc.shutdown, rpc.get_worker_info, lambda: rpc.api._all_gather(1)):
        error = raised(RuntimeError, call)
        check(str(error).startswith("RPC has not been initialized"), error)


def names():
    return sorted(info.name for info in rpc._get_current_rpc_agent().get_worker_infos())


class StaticTest(TestCase):
    def test_alone(self):
        def body(worker):
            worker.start(name="me")
            equal(rpc.rpc_sync("me", echo, (1,)), 1)
            equal(rpc.rpc_async("me", echo, (1,)).wait(), 1)
            equal(rpc.remote("me", echo, (1,)).to_here(), 1)
            equal(rpc._get_debug_info()["agent.thread_pool_size"], "16")
            rpc.shutdown()

        self.run_workers(body, starts=False)

    def test_options_are_used(self):
        def body(worker):
            equal(rpc.get_rpc_timeout(), 7.5)
            equal(rpc._get_debug_info()["agent.thread_pool_size"], "27")
            check(rpc._get_current_rpc_agent().is_static_group)

        self.run_workers(body, size=2, num_worker_threads=27, rpc_timeout=7.5)

    def test_names_are_checked(self):
        def body(worker):
            for wrong in ("a b", "x" * 128, "\u00e9", ""):
                error = raised(
                    RuntimeError,
                    rpc.init_rpc,
                    wrong,
                    rank=0,
                    world_size=1,
                    rpc_backend_options=worker.options(),
                )
                has(error, "Worker name must match")
                check(not rpc._is_current_rpc_agent_set())

        self.run_workers(body, starts=False)

    def test_names_are_unique(self):
        def body(worker):
            has(raised(RuntimeError, worker.start, name="same"), "is not unique")
            check(not rpc._is_current_rpc_agent_set())
            raised(RuntimeError, rpc.shutdown)

        self.run_workers(body, body, body, starts=False)

    def test_a_second_start_is_refused_and_harmless(self):
        def body(worker):
            has(raised(RuntimeError, worker.start), "RPC is already initialized")
            equal(rpc.rpc_sync(worker.next, echo, (1,)), 1)

        self.run_workers(body, body)

    # S188
    def test_who_is_missing_is_named(self):
        def start(worker, seconds):
            rank = (0, 1, 3)[worker.rank]
            open(self.folder / f"ready {rank} {seconds}", "x").close()
            for other in (0, 1, 3):
                read(str(self.folder / f"ready {other} {seconds}"))
            error = raised(RuntimeError, worker.start, rank=rank, world_size=4, rpc_timeout=seconds)
            equal(type(error), errors.TimedOutError)
            check_is_over()
            return str(error)

        # Longer if one of those who have come was too slow.
        for seconds in (2, 4, 8, 16, 32):
            bodies = [lambda worker: start(worker, seconds)] * 3
            said = self.run_workers(*bodies, starts=False, meeting=f"{self.meeting}.{seconds}")
            if all(text.startswith("rank 2 of 4 has not come within ") for text in said):
                return
        self.fail(said)

    def test_wrong_device_maps_fail_everywhere(self):
        # There are no devices without PyTorch.
        for turn, (maps, text) in enumerate(
            (
                (
                    [("nobody", {0: 0})],
                    "Node worker0 has invalid target node names in its device maps: there is no nobody",
                ),
                (
                    [("worker1", {0: "cpu"})],
                    "Node worker0 has source devices with invalid indices in its device map for "
                    "worker1 (cuda:0 to cpu); there are 0 devices",
                ),
                (
                    [("worker1", {"cpu": 7})],
                    "Node worker0 has target devices with invalid indices in its device map for "
                    "worker1 (cpu to cuda:7); there are 0 devices",
                ),
                (
                    [("worker1", {0: 0}), ("worker1", {1: 0})],
                    "Node worker0 has duplicated target devices in its device map for worker1 "
                    "(cuda:0 to cuda:0, cuda:1 to cuda:0)",
                ),
            )
        ):

            def body(worker):
                options = worker.options()
                for to, map_ in maps if worker.rank == 0 else ():
                    options.set_device_map(to, map_)
                error = raised(
                    ValueError,
                    rpc.init_rpc,
                    worker.name,
                    rank=worker.rank,
                    world_size=2,
                    rpc_backend_options=options,
                )
                equal(type(error), errors.InvalidError)
                equal(str(error), text)
                check_is_over()

            with self.subTest(text):
                self.run_workers(body, body, starts=False, meeting=f"{self.meeting}.{turn}")


class TogetherTest(TestCase):
    def test_what_all_bring_is_gathered(self):
        def body(worker):
            for turn in range(3):
                expected = {f"worker{n}": (n, turn) for n in range(3)}
                equal(rpc.api._all_gather((worker.rank, turn)), expected)
            if worker.rank < 2:
                equal(
                    rpc.api._all_gather(worker.rank, {"worker0", "worker1"}),
                    {"worker0": 0, "worker1": 1},
                )
            rpc.api._wait_all_workers()
            rpc.api._wait_all_workers(10)

        self.run_workers(body, body, body)

    def test_nobody_passes_a_barrier_before_all_have_come(self):
        def pass_barrier(members, where):
            rpc.rpc_sync(members[0], arrive, (where,))
            rpc.api._barrier(members)

        def body(worker):
            everybody = [f"worker{n}" for n in range(4)]
            for members in (everybody, everybody[worker.rank % 2 :: 2], {worker.name}):
                members = sorted(members)
                for turn in range(10):
                    where = (*members, turn)
                    pass_barrier(members, where)
                    equal(rpc.rpc_sync(members[0], arrived, (where,)), len(members))
            threads = [
                threading.Thread(target=pass_barrier, args=(everybody, "from threads"))
                for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            equal(rpc.rpc_sync("worker0", arrived, ("from threads",)), 3 * len(everybody))

        self.run_workers(body, body, body, body)
        # Errors of a barrier are only logged.
        self.assertNotRegex(self.logs(), "Failed to complete barrier|Traceback")

    def test_a_barrier_that_fails_says_so_in_the_log(self):
        def body(worker):
            rpc.api._barrier({worker.name, "nobody"})
            has(
                raised(RuntimeError, rpc.api._all_gather, 1, {worker.name, "nobody"}),
                "could not find destination name nobody",
            )

        self.run_workers(body, body)
        for rank in range(2):
            has(
                (self.folder / f"log.{rank}").read_text(),
                f"Failed to complete barrier, got error name:worker{rank},rank:{rank} could not find "
                "destination name nobody",
            )

    def test_a_gather_ends_when_its_time_is_over(self):
        # The others are told by who leads, who is the first by name, whenever they come.
        def body(worker):
            path = str(self.folder / "late")
            if worker.rank == 1:
                read(path)
            error = raised(RuntimeError, rpc.api._all_gather, 1, None, 0.1 if worker.rank == 0 else 0)
            equal(str(error), "Followers [worker1] timed out in _all_gather after 0.10 seconds")
            if worker.rank == 0:
                open(path, "x").close()

        self.run_workers(body, body)

    def test_who_gathers_does_not_wait_for_the_leader_beyond_its_time(self):
        def body(worker):
            path = str(self.folder / "late")
            if worker.rank == 1:
                error = raised(RuntimeError, rpc.api._all_gather, "in time", None, 0.1)
                has(error, "RPCErr:1:RPC ran for more than set timeout")
                open(path, "x").close()
            else:
                read(path)
                gathered = rpc.api._all_gather("late")
                equal(gathered, {"worker0": "late", "worker1": "in time"})

        self.run_workers(body, body)

    # S158
    def test_debug_maps_have_keys_of_their_own(self):
        def body(worker):
            references = rpc._rref_context_get_debug_info()
            agent = rpc._get_current_rpc_agent().get_debug_info()
            # There is no distributed autograd; programs look for its figures all the same.
            autograd = {"num_current_backward_passes": 0, "num_autograd_contexts": 0}
            everything = rpc._get_debug_info()
            equal(sorted(everything), sorted([*references, *agent, *autograd]))
            equal({key: everything[key] for key in autograd}, autograd)
            for key in ("num_owner_rrefs", "num_pending_futures", "num_pending_users", "num_forks"):
                equal(references[key], "0")

        self.run_workers(body, size=1)


class EndTest(TestCase):
    def test_graceful_shutdown_waits_for_those_who_still_work(self):
        def body(worker):
            if worker.rank == 0:
                for _ in range(10):
                    futures = [rpc.rpc_async(f"worker{n}", echo, (n,)) for n in (1, 2)]
                    equal([future.wait() for future in futures], [1, 2])

        self.run_workers(body, body, body)

    def test_a_shutdown_that_is_not_graceful_waits_for_nobody(self):
        def body(worker):
            worker.start()
            rpc.rpc_sync(worker.next, echo, (1,))
            rpc.api._wait_all_workers()
            rpc.shutdown(graceful=False)
            check_is_over()

        self.run_workers(body, body, starts=False)

    def test_after_the_end_every_call_says_that_there_is_no_rpc(self):
        def body(worker):
            worker.start()
            equal(rpc.rpc_sync(worker.next, echo, (1,)), 1)
            rpc.shutdown()
            check_is_over()

        self.run_workers(body, body, starts=False)

    def test_the_time_of_a_shutdown_is_limited(self):
        texts = (
            "Followers [worker1] timed out in _all_gather after 0.20 seconds",
            "RPCErr:1:RPC ran for more than set timeout",
        )
        for waiting, text in enumerate(texts):

            def body(worker):
                path = str(self.folder / f"late {waiting}")
                worker.start()
                if worker.rank == waiting:
                    has(raised(RuntimeError, rpc.shutdown, timeout=0.2), text)
                    open(path, "x").close()
                else:
                    read(path)
                    rpc.shutdown(graceful=False)
                check_is_over()

            with self.subTest(text):
                self.run_workers(body, body, starts=False, meeting=f"{self.meeting}.{waiting}")

    def test_a_worker_that_is_not_ready_in_time_to_wait_for_all_has_ended_all_the_same(self):
        def body(worker):
            asked, over = str(self.folder / "asked"), str(self.folder / "over")
            worker.start()
            if worker.rank == 0:
                read(asked)
                error = raised(RuntimeError, rpc.shutdown, timeout=0.2)
                equal(str(error), "Followers [worker1] timed out in _all_gather after 0.20 seconds")
                open(over, "x").close()
            else:
                # What it brings is being pickled for as long as the other one waits.
                rpc.api._wait_all_workers = lambda timeout: rpc.api._all_gather(
                    Ready(asked, over), timeout=timeout
                )
                error = raised(RuntimeError, rpc.shutdown, timeout=0.01)
                has(error, "RPC ran for more than set timeout (10 ms)", "to be pickled")
                rpc.api._wait_all_workers = rpc.api._own_wait_all_workers
            check_is_over()
            again = Worker(worker.rank, worker.size, f"{self.meeting}.again")
            again.start()
            equal(rpc.rpc_sync(again.next, echo, (1,)), 1)
            rpc.shutdown()

        self.run_workers(body, body, starts=False)

    # S168, without the error of the leader: see docs/conformance.md.
    def test_a_clean_up_that_raises_is_told_there_and_ends_everybody(self):
        # Also what others have of its values, and it of theirs, holds up nobody.
        def fail():
            raise KeyError("simulated")

        for turn, failing in enumerate(({1, 2}, {0}, {0, 1, 2})):

            def body(worker):
                worker.start()
                rref = rpc.remote(worker.next, echo, ("theirs",))
                equal(rref.to_here(), "theirs")
                if worker.rank in failing:
                    rpc.api._delete_all_user_and_unforked_owner_rrefs = fail
                    equal(raised(KeyError, rpc.shutdown).args, ("simulated",))
                else:
                    rpc.shutdown()
                check_is_over()

            with self.subTest(failing):
                self.run_workers(body, body, body, starts=False, meeting=f"{self.meeting}.{turn}")

    def test_calls_under_way_end_with_the_group(self):
        def body(worker):
            worker.start()
            path = str(self.folder / "never")
            futures = [rpc.rpc_async(worker.next, read, (path,), timeout=0) for _ in range(3)]
            rref = rpc.remote(worker.next, read, (path,), timeout=0)
            later = futures[0].then(lambda f: f.wait())
            rpc.api._wait_all_workers()
            rpc.shutdown(graceful=False)
            for future in (*futures, later):
                raised(RuntimeError, future.wait)
            raised(RuntimeError, rref.to_here)
            return "ended"

        def other(worker):
            worker.start()
            rpc.api._wait_all_workers()
            os._exit(0)

        results = self.run_workers(body, other, starts=False, expects={1})
        self.assertEqual(results[0], "ended")

    def test_workers_start_and_stop_many_times(self):
        def body(worker):
            for turn in range(20):
                again = Worker(worker.rank, worker.size, f"{self.meeting}.{turn}")
                again.start()
                equal(rpc.rpc_sync(again.next, echo, (turn,)), turn)
                rpc.shutdown()
            return threading.active_count(), len(os.listdir("/proc/self/task"))

        for threads, tasks in self.run_workers(body, body, starts=False):
            self.assertEqual(threads, 1)
            # Whatever the process keeps, it is not one more for each group.
            self.assertLess(tasks, 20)


class DynamicTest(TestCase):
    """Workers that come and go. One body drives the others through files in the test's folder."""

    def path(self, name):
        return str(self.folder / name)

    def mark(self, name):
        open(self.path(name), "x").close()

    def test_newcomers_and_members_call_each_other(self):
        def first(worker):
            worker.start(name="a-1", world_size=None)
            check(not rpc._get_current_rpc_agent().is_static_group)
            self.mark("first is there")
            read(self.path("both have come"))
            wait_until(lambda: names() == ["a-1", "b-2", "c-3"], "both have come")
            for name in ("b-2", "c-3"):
                equal(rpc.rpc_sync(name, echo, (name,)), name)
                equal(rpc.remote(name, echo, (name,)).to_here(), name)
            self.mark("they may go")
            wait_until(lambda: names() == ["a-1"], "they have gone")
            has(raised(RuntimeError, rpc.rpc_sync, "b-2", echo, (1,)), "could not find destination")
            rpc.shutdown()

        def newcomer(name, is_last):
            def body(worker):
                read(self.path("first is there" if not is_last else "second is there"))
                worker.start(name=name, world_size=None)
                equal(rpc.rpc_sync("a-1", echo, (name,)), name)
                self.mark("both have come" if is_last else "second is there")
                read(self.path("they may go"))
                rpc.shutdown()

            return body

        self.run_workers(first, newcomer("b-2", False), newcomer("c-3", True), starts=False)

    def test_whoever_joins_while_others_gather_is_gathered_too(self):
        def first(worker):
            worker.start(name="a", world_size=None)
            self.mark("first is there")
            read(self.path("second is there"))
            with concurrent.futures.ThreadPoolExecutor() as pool:
                gathered = pool.submit(rpc._all_gather, "first")
                self.mark("first gathers")
                equal(gathered.result(60), {"a": "first", "b": "second", "c": "third"})
            rpc.shutdown()

        def second(worker):
            read(self.path("first is there"))
            worker.start(name="b", world_size=None)
            self.mark("second is there")
            read(self.path("third is there"))
            equal(rpc._all_gather("second"), {"a": "first", "b": "second", "c": "third"})
            rpc.shutdown()

        def third(worker):
            read(self.path("first gathers"))
            worker.start(name="c", world_size=None)
            self.mark("third is there")
            equal(rpc._all_gather("third"), {"a": "first", "b": "second", "c": "third"})
            rpc.shutdown()

        self.run_workers(first, second, third, starts=False)

    def test_a_join_that_fails_hinders_nobody(self):
        def first(worker):
            worker.start(world_size=None)
            self.mark("first is there")
            read(self.path("last is gone"))
            rpc.shutdown()

        def wrong(worker):
            read(self.path("first is there"))
            has(raised(RuntimeError, worker.start, name="worker0", world_size=None), "is not unique")
            has(raised(RuntimeError, worker.start, rank=0, world_size=None), "is not unique")
            has(
                raised(RuntimeError, worker.start, world_size=3, rpc_timeout=5),
                "mixes statically and dynamically",
            )
            self.mark("all has failed")

        def last(worker):
            read(self.path("all has failed"))
            worker.start(world_size=None)
            equal(rpc.rpc_sync("worker0", echo, (1,)), 1)
            rpc.shutdown()
            self.mark("last is gone")

        self.run_workers(first, wrong, last, starts=False)

    def test_a_number_is_free_again_when_its_worker_has_left(self):
        def first(worker):
            worker.start(world_size=None)
            self.mark("first is there")
            for turn in range(3):
                read(self.path(f"left {turn}"))
            rpc.shutdown()

        def other(worker):
            read(self.path("first is there"))
            for turn in range(3):
                worker.start(name=f"other-{turn % 2}", world_size=None)
                equal(rpc.rpc_sync("worker0", echo, (turn,)), turn)
                rref = rpc.remote("worker0", echo, (turn,))
                equal(rref.to_here(), turn)
                del rref
                rpc.shutdown()
                self.mark(f"left {turn}")

        self.run_workers(first, other, starts=False)

    def test_a_crashed_worker_disappears_and_may_come_again(self):
        def first(worker):
            worker.start(world_size=None)
            self.mark("first is there")
            read(self.path("victim is there"))
            pid = rpc.rpc_sync("victim", os.getpid)
            future = rpc.rpc_async("victim", read, (self.path("never"),), timeout=0)
            os.kill(pid, signal.SIGKILL)
            has(raised(RuntimeError, future.wait), "victim")
            self.mark("victim is dead")
            read(self.path("it is back"))
            wait_until(lambda: names() == ["victim", "worker0"], "it is seen")
            equal(rpc.rpc_sync("victim", echo, ("again",)), "again")
            self.mark("seen")
            wait_until(lambda: names() == ["worker0"], "it has left")
            rpc.shutdown()
            return "survived"

        def victim(worker):
            read(self.path("first is there"))
            worker.start(name="victim", world_size=None)
            self.mark("victim is there")
            read(self.path("never"))

        def again(worker):
            read(self.path("victim is dead"))
            # Its old self is known to be dead sooner or later; until then its name is taken.
            while True:
                try:
                    worker.start(name="victim", rank=1, world_size=None)
                    break
                except RuntimeError as error:
                    has(error, "is not unique")
            self.mark("it is back")
            equal(rpc.rpc_sync("worker0", echo, (1,)), 1)
            read(self.path("seen"))
            rpc.shutdown()

        results = self.run_workers(first, victim, again, starts=False, expects={1})
        self.assertEqual(results[0], "survived")


if __name__ == "__main__":
    unittest.main()

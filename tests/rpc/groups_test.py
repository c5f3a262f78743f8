"""Groups of real processes: they call each other, wait for each other, come, go and die.

Environment, besides that of tests/pytorch/muster.py:
  MUSTER_RPC_WORKER   rpc_worker; without it, build/bin/rpc_worker of this source tree
"""

import faulthandler
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "run"))
import launch  # noqa: E402
import muster  # noqa: E402

PROGRAM = os.environ.get("MUSTER_RPC_WORKER") or str(ROOT / "build" / "bin" / "rpc_worker")


class Worker:
    """A process that does what it is told; see rpc_worker.cpp."""

    def __init__(self, name, server, *, before=(), environment=None, move_in=None):
        """`before`: a command that becomes the program; `move_in` is called by the new process."""
        self.name = name
        self.process = subprocess.Popen(
            [*before, PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            env={"MASTER_ADDR": server.host, "MASTER_PORT": str(server.port),
                 **(environment or {})}, preexec_fn=move_in)
        self._out = launch.Stream(self.process.stdout)
        self._asked = 0

    def tell(self, order):
        """Gives an order, without waiting for the answer."""
        self._asked += 1
        self.process.stdin.write(f"{order}\n".encode())

    def has_answered(self):
        return self._out.text.count("\n") >= self._asked

    def answer(self):
        """The answer to the last order."""
        self._out.wait(r"\A(.*\n){%d}" % self._asked)
        return self._out.text.splitlines()[self._asked - 1]

    def answers(self):
        """Those to all orders."""
        self.answer()
        return self._out.text.splitlines()

    def ask(self, order):
        self.tell(order)
        return self.answer()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Closes its input; its exit status."""
        self.process.stdin.close()
        status = self.process.wait(launch.PATIENCE_SECONDS)
        self._out.close()
        return status

    def clean_up(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._out.close()
        self.process.stdin.close()


class Case(unittest.TestCase):

    def setUp(self):
        faulthandler.dump_traceback_later(muster.TEST_SECONDS_MAX, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)
        self.server = muster.Server(host="127.0.0.1")
        self.addCleanup(self.server.stop)

    def worker(self, name, **options):
        worker = Worker(name, self.server, **options)
        self.addCleanup(worker.clean_up)
        return worker

    def workers(self, count):
        return [self.worker(f"worker{rank}") for rank in range(count)]

    def ask_all(self, workers, order):
        """All do it at once; their answers."""
        for worker in workers:
            worker.tell(order)
        return [worker.answer() for worker in workers]

    def assert_all(self, workers, order, answer="ok"):
        self.assertEqual(self.ask_all(workers, order), [answer] * len(workers))

    def init_static(self, workers):
        for rank, worker in enumerate(workers):
            worker.tell(f"init {worker.name} {rank} {len(workers)}")
        self.assertEqual([worker.answer() for worker in workers], ["ok"] * len(workers))

    def static_group(self, count):
        workers = self.workers(count)
        self.init_static(workers)
        return workers

    def assert_all_reach_all(self, workers):
        for number, caller in enumerate(workers):
            for callee in workers:
                self.assertEqual(caller.ask(f"add {callee.name} {number} 100"),
                                 f"ok {number + 100}", f"{caller.name} calls {callee.name}")

    def assert_released_with_their_holders(self, owner, creator, third):
        """Kills both who hold references to a value of `owner`."""
        self.assertEqual(creator.ask("make worker0 7"), "ok 7")
        self.assertEqual(creator.ask("give worker2"), "ok 7")
        launch.wait_until(lambda: owner.ask("counts") == "ok 1 2", "both hold it")
        third.kill()
        launch.wait_until(lambda: owner.ask("counts") == "ok 1 1", "what worker2 held is released")
        self.assertEqual(creator.ask("read"), "ok 7")
        creator.kill()
        launch.wait_until(lambda: owner.ask("counts") == "ok 0 0", "the value is released")


class StaticGroup(Case):

    def test_all_call_all_and_end_together(self):
        workers = self.static_group(4)
        self.assert_all_reach_all(workers)
        self.assert_all(workers, "barrier")
        self.assert_all(workers, "workers", "ok worker0 worker1 worker2 worker3")
        self.assert_all(workers, "shutdown graceful")
        self.assertEqual([worker.end() for worker in workers], [0] * 4)

    def test_who_waits_for_the_end_goes_on_to_serve(self):
        busy, *idle = self.static_group(3)
        for worker in idle:
            worker.tell("shutdown graceful")
        for number in range(20):
            for worker in idle:
                self.assertEqual(busy.ask(f"add {worker.name} {number} 1"), f"ok {number + 1}")
        self.assertFalse(any(worker.has_answered() for worker in idle))
        self.assertEqual(busy.ask("shutdown graceful"), "ok")
        self.assertEqual([worker.answer() for worker in idle], ["ok", "ok"])

    def test_a_barrier_waits_for_the_last(self):
        *early, last = self.static_group(3)
        for worker in early:
            worker.tell("barrier")
        self.assertEqual(last.ask("add worker0 1 2"), "ok 3")
        self.assertFalse(any(worker.has_answered() for worker in early))
        self.assertEqual(last.ask("barrier"), "ok")
        self.assertEqual([worker.answer() for worker in early], ["ok", "ok"])

    # S164
    def test_what_was_done_before_a_barrier_is_seen_after_it(self):
        leader, *others = workers = self.static_group(4)
        self.assertEqual(leader.ask("counted"), "ok 0")
        counted = 0
        for threads in (1, 3) * 10:
            for worker in workers:
                worker.tell("count worker0")
                worker.tell(f"barrier {threads}")
                if worker is leader:
                    # Before the others are told anything: only the barrier makes it wait for them.
                    leader.tell("counted")
                    self.assertEqual(others[0].ask("add worker0 1 2"), "ok 3")
            counted += 4
            self.assertEqual(leader.answer(), f"ok {counted}", f"{threads} threads")
        for worker in workers:
            self.assertNotIn("error", " ".join(worker.answers()))

    # S162, S164
    def test_some_of_the_workers_gather_what_they_bring(self):
        workers = self.static_group(4)
        parts = (workers[0::2], workers[1::2])
        for _ in range(3):
            for part in parts:
                names = " ".join(worker.name for worker in part)
                for worker in part:
                    worker.tell(f"gather of-{worker.name} {names}")
            for part in parts:
                all_of_it = " ".join(f"{worker.name}=of-{worker.name}" for worker in part)
                self.assertEqual([worker.answer() for worker in part], [f"ok {all_of_it}"] * 2)
        # Some alone, while the others do something else.
        self.assertEqual(workers[2].ask("gather alone worker2"), "ok worker2=alone")
        self.assert_all(workers, "barrier")

    # S166
    def test_who_waits_in_barriers_serves_and_may_then_just_go(self):
        for barriers in (1, 2):
            with self.subTest(barriers=barriers):
                self.server = muster.Server(host="127.0.0.1")
                self.addCleanup(self.server.stop)
                busy, *idle = workers = self.static_group(3)
                for worker in idle:
                    worker.tell("barrier")
                for number in range(30):
                    for worker in idle:
                        self.assertEqual(busy.ask(f"add {worker.name} {number} 1"),
                                         f"ok {number + 1}")
                self.assertFalse(any(worker.has_answered() for worker in idle))
                self.assertEqual(busy.ask("barrier"), "ok")
                self.assertEqual([worker.answer() for worker in idle], ["ok", "ok"])
                for _ in range(barriers - 1):
                    self.assert_all(workers, "barrier")
                self.assert_all(workers, "shutdown")
                self.assertEqual([worker.end() for worker in workers], [0] * 3)

    # S49
    def test_a_group_may_start_again_through_the_same_store(self):
        workers = self.workers(3)
        for _ in range(5):
            self.init_static(workers)
            self.assert_all_reach_all(workers)
            self.assert_all(workers, "shutdown graceful")

    # S49
    def test_references_are_made_shared_and_released_after_every_start(self):
        owner, creator, third = workers = self.workers(3)
        for start in range(3):
            self.init_static(workers)
            self.assertEqual(creator.ask(f"make worker0 {start}"), f"ok {start}")
            self.assertEqual(creator.ask("give worker2"), f"ok {start}")
            launch.wait_until(lambda: owner.ask("counts") == "ok 1 2", "both hold it")
            self.assertEqual(creator.ask("drop"), "ok")
            launch.wait_until(lambda: owner.ask("counts") == "ok 1 1", "worker2 holds it")
            self.assertEqual(third.ask("drop"), "ok")
            launch.wait_until(lambda: owner.ask("counts") == "ok 0 0", "the value is released")
            # And one that is left to the end.
            self.assertEqual(creator.ask(f"make worker2 {start}"), f"ok {start}")
            self.assert_all(workers, "shutdown strict")
            self.assertEqual(creator.ask("drop"), "ok")

    def test_who_comes_again_finds_nothing_of_the_group_that_has_ended(self):
        workers = self.static_group(3)
        self.assert_all(workers, "shutdown graceful")
        self.assertIn("ranks 1 and 2 of 3 have not come", workers[0].ask("init worker0 0 3 1000"))
        self.init_static(workers)
        self.assert_all_reach_all(workers)

    # S44
    def test_workers_of_one_name_are_all_refused(self):
        workers = [self.worker("same"), self.worker("same")]
        for rank, worker in enumerate(workers):
            worker.tell(f"init same {rank} 2")
        for worker in workers:
            self.assertIn("is not unique", worker.answer())

    # S172
    def test_calls_to_a_worker_that_is_killed_fail_with_its_name_and_work_when_it_is_back(self):
        caller, _, callee = self.static_group(3)
        for _ in range(3):
            self.assertEqual(caller.ask("hold worker2"), "ok")
        self.assertEqual(caller.ask("add worker2 1 2"), "ok 3")  # so the others have got there
        callee.kill()
        for _ in range(3):
            self.assertRegex(caller.ask("held"), r"^error unreachable: .*worker2")
        self.assertEqual(caller.ask("add worker1 1 2"), "ok 3")
        again = self.worker("worker2")
        self.assertEqual(again.ask("init worker2 2 3"), "ok")
        self.assertEqual(caller.ask("add worker2 3 2"), "ok 5")
        self.assertEqual(again.ask("add worker0 2 2"), "ok 4")

    def test_a_worker_that_is_started_again_is_called_again(self):
        caller, callee = self.static_group(2)
        self.assertEqual(caller.ask("add worker1 1 2"), "ok 3")
        callee.kill()
        again = self.worker("worker1")
        self.assertEqual(again.ask("init worker1 1 2"), "ok")
        self.assertEqual(again.ask("add worker0 2 2"), "ok 4")
        # The first call may find out that the old one is gone.
        answers = [caller.ask("add worker1 3 2") for _ in range(2)]
        self.assertEqual(answers[-1], "ok 5", answers)
        self.assert_all([caller, again], "shutdown graceful")
        self.assertEqual([caller.end(), again.end()], [0, 0])

    # S173
    def test_a_graceful_end_without_a_worker_that_was_killed_names_it(self):
        for victim in (0, 1, 2):  # worker0 leads
            with self.subTest(victim=victim):
                server = muster.Server(host="127.0.0.1")
                self.addCleanup(server.stop)
                self.server = server
                workers = self.static_group(3)
                self.assert_all_reach_all(workers)
                workers.pop(victim).kill()
                for answer in self.ask_all(workers, "shutdown graceful"):
                    self.assertRegex(answer, rf"^error \w+: .*worker{victim}")
                # They have stopped all the same.
                for answer in self.ask_all(workers, "barrier"):
                    self.assertIn("RPC has not been initialized", answer)
                self.assertEqual([worker.end() for worker in workers], [0, 0])

    def test_what_a_killed_worker_held_is_released(self):
        owner, creator, third = self.static_group(3)
        self.assert_released_with_their_holders(owner, creator, third)
        # Whoever takes the place of one of them has nothing of what that had.
        again = self.worker("worker2")
        self.assertEqual(again.ask("init worker2 2 3"), "ok")
        self.assertEqual(again.ask("make worker0 8"), "ok 8")
        self.assertEqual(owner.ask("counts"), "ok 1 1")
        self.assertEqual(again.ask("drop"), "ok")
        launch.wait_until(lambda: owner.ask("counts") == "ok 0 0", "the value is released")

    def test_what_a_killed_worker_owned_fails_with_its_name(self):
        user, owner, third = self.static_group(3)
        self.assertEqual(user.ask("make worker1 7"), "ok 7")
        self.assertEqual(user.ask("give worker2"), "ok 7")
        owner.kill()
        # At once because the connection broke, and then because it is known to be dead.
        self.assertIn("worker1", user.ask("read"))
        launch.wait_until(lambda: "its process is gone" in user.ask("read"), "worker0 knows")
        self.assertRegex(user.ask("give worker2"), "^error .*worker1")
        self.assertRegex(user.ask("add worker1 1 2"), "^error unreachable: .*worker1.* has died")
        self.assertEqual(user.ask("add worker2 1 2"), "ok 3")


class DynamicGroup(Case):

    # S174
    def test_four_start_and_end(self):
        workers = self.workers(4)
        for rank, worker in enumerate(workers):
            worker.tell(f"init {worker.name} {rank}")
        self.assertEqual([worker.answer() for worker in workers], ["ok"] * 4)
        self.assert_all_reach_all(workers)
        self.assert_all(workers, "shutdown graceful")
        self.assertEqual([worker.end() for worker in workers], [0] * 4)

    # S175, S176
    def test_newcomers_and_members_call_each_other_at_once(self):
        first, *others = self.workers(4)
        self.assertEqual(first.ask("init worker0 0"), "ok")
        for rank, newcomer in enumerate(others, 1):
            self.assertEqual(newcomer.ask(f"init {newcomer.name} {rank}"), "ok")
            self.assertEqual(newcomer.ask(f"add worker0 {rank} 10"), f"ok {rank + 10}")
            self.assertEqual(first.ask(f"add {newcomer.name} {rank} 20"), f"ok {rank + 20}")
        self.assert_all_reach_all([first, *others])

    def test_who_has_left_is_not_found_and_may_come_back(self):
        stays, goes = self.workers(2)
        self.assertEqual(stays.ask("init worker0 0"), "ok")
        self.assertEqual(goes.ask("init worker1 1"), "ok")
        self.assertEqual(stays.ask("add worker1 1 2"), "ok 3")
        self.assertEqual(goes.ask("shutdown graceful"), "ok")
        launch.wait_until(lambda: "could not find destination" in stays.ask("add worker1 1 2"),
                          "worker0 forgets worker1")
        self.assertEqual(goes.ask("init worker1 1"), "ok")
        self.assertEqual(stays.ask("add worker1 1 2"), "ok 3")
        self.assertEqual(goes.ask("add worker0 1 2"), "ok 3")

    # S179
    def test_another_joins_after_one_was_killed_and_that_one_is_forgotten(self):
        stays, goes, other = self.worker("worker0"), self.worker("worker1"), self.worker("other")
        self.assertEqual(stays.ask("init worker0 0"), "ok")
        self.assertEqual(goes.ask("init worker1 1"), "ok")
        self.assert_all_reach_all([stays, goes])
        goes.kill()
        self.assertEqual(other.ask("init other 2"), "ok")
        self.assert_all_reach_all([stays, other])
        for worker in (stays, other):
            launch.wait_until(lambda: worker.ask("workers") == "ok worker0 other", "it is forgotten")
            self.assertIn("could not find destination", worker.ask("add worker1 1 2"))
        self.assert_all([stays, other], "barrier")
        self.assert_all([stays, other], "shutdown graceful")

    def test_a_name_that_is_in_use_is_refused(self):
        member, other = self.worker("a"), self.worker("a")
        self.assertEqual(member.ask("init a 0"), "ok")
        self.assertIn("is not unique", other.ask("init a 1"))
        self.assertEqual(other.ask("init b 1"), "ok")
        other.name = "b"
        self.assert_all_reach_all([member, other])

    def test_what_a_killed_worker_held_is_released(self):
        owner, creator, third = self.workers(3)
        for rank, worker in enumerate((owner, creator, third)):
            self.assertEqual(worker.ask(f"init {worker.name} {rank}"), "ok")
        self.assert_released_with_their_holders(owner, creator, third)

    def test_what_a_killed_worker_owned_fails_with_its_name(self):
        user, owner = self.workers(2)
        self.assertEqual(user.ask("init worker0 0"), "ok")
        self.assertEqual(owner.ask("init worker1 1"), "ok")
        self.assertEqual(user.ask("make worker1 7"), "ok 7")
        owner.kill()
        # At once because the connection broke, and then because the group knows.
        self.assertIn("worker1", user.ask("read"))
        launch.wait_until(lambda: "left the group" in user.ask("read"), "worker0 knows")
        self.assertEqual(user.ask("drop"), "ok")
        self.assertEqual(user.ask("shutdown graceful"), "ok")


class Barrier(Case):
    """Of workers that are started again, come and go."""

    def assert_waits_for_all(self, workers):
        """Each of them is the last one once."""
        for last in workers:
            early = [worker for worker in workers if worker is not last]
            for worker in early:
                worker.tell("barrier")
            for worker in early:
                self.assertEqual(last.ask(f"add {worker.name} 1 2"), "ok 3")
            self.assertFalse(any(worker.has_answered() for worker in early))
            self.assertEqual(last.ask("barrier"), "ok")
            self.assertEqual([worker.answer() for worker in early], ["ok"] * len(early))

    def test_a_worker_that_was_killed_and_started_again_takes_its_place(self):
        for victim in (0, 2):  # worker0 leads
            for barriers in (1, 3):
                with self.subTest(victim=victim, barriers=barriers):
                    self.server = muster.Server(host="127.0.0.1")
                    self.addCleanup(self.server.stop)
                    workers = self.static_group(3)
                    for _ in range(barriers):
                        self.assert_all(workers, "barrier")
                    workers[victim].kill()
                    again = workers[victim] = self.worker(f"worker{victim}")
                    self.assertEqual(again.ask(f"init {again.name} {victim} 3"), "ok")
                    self.assert_waits_for_all(workers)
                    self.assert_all(workers, "shutdown graceful")
                    self.assertEqual([worker.end() for worker in workers], [0] * 3)

    def test_a_graceful_end_waits_for_a_worker_that_was_started_again(self):
        *others, victim = self.static_group(3)
        for _ in range(2):
            self.assert_all([*others, victim], "barrier")
        victim.kill()
        again = self.worker("worker2")
        self.assertEqual(again.ask("init worker2 2 3"), "ok")
        for worker in others:
            worker.tell("shutdown graceful")
        for worker in others:
            self.assertEqual(again.ask(f"add {worker.name} 1 2"), "ok 3")
        self.assertFalse(any(worker.has_answered() for worker in others))
        self.assertEqual(again.ask("shutdown graceful"), "ok")
        self.assertEqual([worker.answer() for worker in others], ["ok", "ok"])

    def test_one_that_leaves_a_dynamic_group_may_come_back(self):
        workers = self.workers(3)
        for rank, worker in enumerate(workers):
            self.assertEqual(worker.ask(f"init {worker.name} {rank}"), "ok")
        for rank in (2, 0, 1):  # worker0 leads
            for _ in range(rank + 1):
                self.assert_all(workers, "barrier")
            others = [worker for worker in workers if worker is not workers[rank]]
            self.assertEqual(workers[rank].ask("shutdown graceful"), "ok")
            for worker in others:
                names = "ok " + " ".join(other.name for other in others)
                launch.wait_until(lambda: worker.ask("workers") == names, "it is forgotten")
            self.assert_all(others, "barrier")
            self.assertEqual(workers[rank].ask(f"init {workers[rank].name} {rank}"), "ok")
            self.assert_waits_for_all(workers)

    def test_one_that_joins_meanwhile_is_waited_for(self):
        # The last one leads from then on.
        first, second, third = self.worker("b"), self.worker("c"), self.worker("a")
        self.assertEqual(first.ask("init b 1"), "ok")
        first.tell("barrier")
        self.assertEqual(first.answer(), "ok")
        self.assertEqual(second.ask("init c 2"), "ok")
        self.assert_all([first, second], "barrier")
        first.tell("barrier")
        self.assertEqual(third.ask("init a 0"), "ok")
        second.tell("barrier")
        for worker in (first, second):
            self.assertEqual(third.ask(f"add {worker.name} 1 2"), "ok 3")
        self.assertFalse(first.has_answered() or second.has_answered())
        self.assertEqual(third.ask("barrier"), "ok")
        self.assertEqual([first.answer(), second.answer()], ["ok", "ok"])

    def test_the_leader_may_leave_as_soon_as_it_has_passed(self):
        workers = self.workers(3)
        for rank, worker in enumerate(workers):
            self.assertEqual(worker.ask(f"init {worker.name} {rank}"), "ok")
        for worker in workers:
            worker.tell("barrier")
            worker.tell("shutdown graceful")
        self.assertEqual([worker.answers() for worker in workers], [["ok"] * 3] * 3)

    def test_the_leader_may_leave_while_others_refer_to_what_it_owns(self):
        leader, stays = self.workers(2)
        self.assertEqual(leader.ask("init worker0 0"), "ok")
        self.assertEqual(stays.ask("init worker1 1"), "ok")
        self.assertEqual(stays.ask("make worker0 7"), "ok 7")
        stays.tell("barrier")
        launch.wait_until(lambda: leader.ask("unanswered") == "ok 1", "it waits")
        self.assertEqual(leader.ask("shutdown graceful"), "ok")
        self.assertEqual(stays.answer(), "ok")
        self.assertEqual(stays.ask("workers"), "ok worker1")


if __name__ == "__main__":
    muster.main()

"""The `muster` program as people and scripts use it: commands, exit statuses, JSON, messages, completion, examples.

MUSTER_BIN names the program; without it, build/bin/muster of this source tree.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "pytorch"))
import muster  # noqa: E402

PATIENCE_SECONDS = 60


def run(*words, status=0, stdin=None, env=None):
    """Runs the program, checks its exit status, returns (stdout, stderr) as text."""
    environment = {key: value for key, value in os.environ.items() if key != "MUSTER_STORE"}
    environment.update(env or {})
    done = subprocess.run([muster.BINARY, *words], input=stdin, capture_output=True, timeout=PATIENCE_SECONDS,
                          env=environment)
    out, err = done.stdout.decode(), done.stderr.decode()
    if done.returncode != status:
        raise AssertionError(f"{words} ended with {done.returncode}, not {status}:\n{out}\n{err}")
    return out, err


class WithServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = muster.Server(host="127.0.0.1")
        cls.addClassCleanup(cls.server.stop)

    def store(self, command, *words, status=0, stdin=None):
        return run("store", command, "--endpoint", f"127.0.0.1:{self.server.port}", *words, status=status, stdin=stdin)

    def out(self, command, *words, **options):
        return self.store(command, *words, **options)[0]


class Commands(WithServer):
    def test_set_and_get(self):
        self.assertEqual(self.out("set", "key", "value"), "")
        self.assertEqual(self.out("get", "key"), "value\n")

    def test_a_value_comes_from_standard_input(self):
        self.store("set", "piped", "-", stdin=b"line 1\nline 2")
        self.assertEqual(self.out("get", "piped"), "line 1\nline 2\n")

    def test_values_that_look_like_options_go_behind_two_dashes(self):
        self.store("set", "--", "dashed", "--value")
        self.assertEqual(self.out("get", "dashed"), "--value\n")

    def test_a_negative_number_can_be_added(self):
        self.assertEqual(self.out("add", "counter", "5"), "5\n")
        self.assertEqual(self.out("add", "counter", "-7"), "-2\n")
        self.assertEqual(self.out("add", "counter"), "-1\n")

    def test_adding_to_text_says_why_not(self):
        self.store("set", "text", "hello")
        self.assertIn("not a number", self.store("add", "text", "1", status=1)[1])

    def test_a_get_without_waiting_answers_no_with_status_5(self):
        self.assertIn("absent", self.store("get", "--no-wait", "absent", status=5)[1])

    def test_a_get_that_times_out_ends_with_status_3_and_names_the_key(self):
        self.assertIn('"late"', self.store("get", "late", "--timeout", "2s", status=3)[1])

    def test_a_get_waits_until_somebody_sets_the_key(self):
        waiting = subprocess.Popen(
            [muster.BINARY, "store", "get", "awaited", "--endpoint", f"127.0.0.1:{self.server.port}"],
            stdout=subprocess.PIPE)
        self.store("set", "awaited", "now")
        self.assertEqual(waiting.communicate(timeout=PATIENCE_SECONDS)[0], b"now\n")
        self.assertEqual(waiting.returncode, 0)

    def test_wait_and_check(self):
        self.store("set", "here", "1")
        self.store("wait", "here")
        self.assertEqual(self.out("check", "here"), "true\n")
        self.assertEqual(self.out("check", "here", "not-here", status=5), "false\n")
        self.store("wait", "here", "not-here", "--timeout", "2s", status=3)

    def test_compare_set_prints_what_is_there_and_says_no_with_status_5(self):
        self.assertEqual(self.out("compare-set", "leader", "", "a"), "a\n")
        self.assertEqual(self.out("compare-set", "leader", "", "b", status=5), "a\n")
        self.assertEqual(self.out("compare-set", "leader", "a", "b"), "b\n")

    def test_delete_and_keys(self):
        self.store("set", "dir/b", "")
        self.store("set", "dir/a", "")
        self.assertEqual(self.out("keys", "dir/"), "dir/a\ndir/b\n")
        self.assertEqual(self.out("delete", "dir/a"), "true\n")
        self.assertEqual(self.out("delete", "dir/a"), "false\n")
        self.assertEqual(self.out("keys", "dir/"), "dir/b\n")

    def test_append_and_queues(self):
        self.store("append", "log", "ab")
        self.store("append", "log", "cd")
        self.assertEqual(self.out("get", "log"), "abcd\n")
        self.store("push", "jobs", "one")
        self.store("push", "jobs", "two")
        self.assertEqual(self.out("pop", "jobs"), "one\n")
        self.assertEqual(self.out("pop", "jobs"), "two\n")
        self.assertIn("empty", self.store("pop", "jobs", "--no-wait", status=5)[1])
        self.store("pop", "jobs", "--timeout", "2s", status=3)

    def test_watch_prints_every_change(self):
        self.store("set", "watched", "1")
        watching = subprocess.Popen(
            [muster.BINARY, "store", "watch", "watched", "--count", "3", "--json", "--endpoint",
             f"127.0.0.1:{self.server.port}"], stdout=subprocess.PIPE)
        first = json.loads(watching.stdout.readline())
        self.store("set", "watched", "2")
        self.store("delete", "watched")
        rest = [json.loads(line) for line in watching.communicate(timeout=PATIENCE_SECONDS)[0].splitlines()]
        self.assertEqual([first, *rest], [
            {"change": "present", "key": "watched", "value": "1"},
            {"change": "updated", "key": "watched", "value": "2"},
            {"change": "deleted", "key": "watched", "value": ""},
        ])

    def test_namespaces_are_separate(self):
        self.store("set", "--namespace", "round-1", "key", "one")
        self.store("set", "--namespace", "round-2", "key", "two")
        self.assertEqual(self.out("get", "--namespace", "round-1", "key"), "one\n")
        self.assertEqual(self.out("keys", "--namespace", "round-3"), "")

    def test_ping_and_info(self):
        self.assertIn("Muster", self.out("ping"))
        info = json.loads(self.out("info", "--json"))
        self.assertEqual(info["server"], "muster")
        self.assertGreaterEqual(int(info["connections"]), 1)

    def test_json_everywhere(self):
        self.assertEqual(json.loads(self.out("set", "j", "1", "--json")), {"stored": True})
        self.assertEqual(json.loads(self.out("get", "j", "--json")), {"key": "j", "value": "1"})
        self.assertEqual(json.loads(self.out("add", "j", "1", "--json")), {"value": 2})
        self.assertEqual(json.loads(self.out("delete", "j", "--json")), {"deleted": True})
        self.assertEqual(json.loads(self.out("keys", "jj", "--json")), {"keys": []})
        self.assertEqual(json.loads(self.out("ping", "--json"))["dialect"], "extension")
        error = json.loads(self.out("get", "j", "--timeout", "2s", "--json", status=3))
        self.assertEqual(error["error"], "timeout")

    def test_bytes_that_are_not_text_are_base64_in_json(self):
        self.store("set", "binary", "-", stdin=b"\xff\x00\xfe")
        self.assertEqual(json.loads(self.out("get", "binary", "--json")), {"key": "binary", "value_base64": "/wD+"})

    def test_the_endpoint_comes_from_the_environment(self):
        out, _ = run("store", "ping", env={"MUSTER_STORE": f"127.0.0.1:{self.server.port}"})
        self.assertIn("Muster", out)

    def test_the_example_client_meets_its_peers(self):
        program = pathlib.Path(muster.BINARY).parent / "store_client"
        workers = [subprocess.Popen([program, f"127.0.0.1:{self.server.port}", str(rank), "3"], stdout=subprocess.PIPE)
                   for rank in range(3)]
        for rank, worker in enumerate(workers):
            out = worker.communicate(timeout=PATIENCE_SECONDS)[0].decode()
            self.assertEqual(worker.returncode, 0)
            self.assertIn(f"rank {rank} sees rank 2 at 10.0.0.3:4400", out)


class WithoutServer(unittest.TestCase):
    def test_version_and_help(self):
        self.assertRegex(run("--version")[0], r"^muster \d+\.\d+\.\d+\n$")
        for words in ([], ["store"], ["store", "serve"], ["store", "get"], ["completion"]):
            self.assertIn("Usage:", run(*words, "--help")[0])

    def test_wrong_calls_end_with_status_2_and_say_what_would_be_right(self):
        self.assertIn("did you mean get?", run("store", "gte", status=2)[1])
        self.assertIn("did you mean --timeout?", run("store", "get", "k", "--timeot", "1s", status=2)[1])
        self.assertIn("500ms, 5s or 2m", run("store", "get", "k", "--timeout", "soon", status=2)[1])
        self.assertIn("0 to 65535", run("store", "get", "k", "--endpoint", "host:99999", status=2)[1])
        self.assertIn("muster store get --help", run("store", "get", status=2)[1])
        self.assertIn("512M or 4G", run("store", "serve", "--max-memory", "lots", status=2)[1])
        self.assertIn("NAME=PORT", run("store", "serve", "--port", "0", "--namespace", "x", status=2)[1])

    def test_an_unreachable_store_ends_with_status_4_and_says_where(self):
        port = muster.free_port()
        err = run("store", "get", "k", "--endpoint", f"127.0.0.1:{port}", "--timeout", "100ms", status=4)[1]
        self.assertIn(f"127.0.0.1:{port}", err)
        self.assertIn("connection refused", err)

    def test_a_taken_port_is_named(self):
        server = muster.Server(host="127.0.0.1")
        self.addCleanup(server.stop)
        err = run("store", "serve", "--host", "127.0.0.1", "--port", str(server.port), status=1)[1]
        self.assertIn("address already in use", err)
        self.assertIn("--port", err)

    def test_the_server_announces_its_ports_and_stops_at_sigterm(self):
        process = subprocess.Popen(
            [muster.BINARY, "store", "serve", "--host", "localhost", "--port", "0", "--namespace", "other=0", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        announced = json.loads(process.stdout.readline())
        endpoint = f"localhost:{announced['port']}"
        other = f"localhost:{announced['namespaces']['other']}"
        self.assertEqual(announced["pid"], process.pid)
        run("store", "set", "key", "here", "--endpoint", endpoint)
        run("store", "get", "key", "--no-wait", "--endpoint", other, status=5)
        self.assertEqual(run("store", "keys", "--endpoint", endpoint, "--namespace", "other")[0], "")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, 0)

    def test_a_full_store_refuses_writers_and_serves_readers(self):
        with tempfile.TemporaryDirectory() as folder:
            port_file = pathlib.Path(folder) / "port"
            process = subprocess.Popen([muster.BINARY, "store", "serve", "--host", "127.0.0.1", "--port", "0", "--json",
                                        "--max-memory", "64K", "--port-file", str(port_file)],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            try:
                port = json.loads(process.stdout.readline())["port"]
                run("store", "set", "small", "1", "--endpoint", f"127.0.0.1:{port}")
                err = run("store", "set", "large", "-", "--endpoint", f"127.0.0.1:{port}", stdin=b"x" * 100_000, status=4)[1]
                self.assertIn("--max-memory", err)
                self.assertEqual(run("store", "get", "small", "--endpoint", f"127.0.0.1:{port}")[0], "1\n")
            finally:
                process.terminate()
                process.communicate(timeout=PATIENCE_SECONDS)


class Completion(unittest.TestCase):
    def complete(self, *words):
        return [line.split("\t")[0] for line in run("complete", "--", *words)[0].splitlines()]

    def test_the_program_names_its_candidates(self):
        self.assertEqual(self.complete("st"), ["store"])
        self.assertIn("serve", self.complete("store", ""))
        self.assertEqual(self.complete("store", "get", "--no-w"), ["--no-wait"])

    def test_bash_completes(self):
        script = f'''
            source <("{muster.BINARY}" completion bash)
            COMP_WORDS=("{muster.BINARY}" store ge); COMP_CWORD=2
            _muster; echo "${{COMPREPLY[@]}}"
        '''
        done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=PATIENCE_SECONDS)
        self.assertEqual(done.stdout.decode().strip(), "get", done.stderr.decode())

    def test_zsh_accepts_the_script(self):
        out, _ = run("completion", "zsh")
        try:
            done = subprocess.run(["zsh", "-n"], input=out.encode(), capture_output=True, timeout=PATIENCE_SECONDS)
        except FileNotFoundError:
            self.skipTest("zsh is not installed")
        self.assertEqual((done.returncode, done.stderr), (0, b""))


class Demonstration(unittest.TestCase):
    def test_make_demo_runs_to_its_end(self):
        # It imports PyTorch, which alone takes the better part of a minute on a busy machine.
        done = subprocess.run([ROOT / "examples" / "store_demo"], cwd=ROOT, capture_output=True, timeout=5 * PATIENCE_SECONDS,
                              env={**os.environ, "MUSTER_BIN": muster.BINARY})
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertIn("That was the store", done.stdout.decode())


if __name__ == "__main__":
    muster.main()

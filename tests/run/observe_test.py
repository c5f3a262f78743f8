"""What an agent lets the world see: health, status, metrics and events over HTTP, and sinks."""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import time

import launch

INFO = {"LOGLEVEL": "INFO", "OMP_NUM_THREADS": "1"}


class Http(launch.Case):
    def serving(self, *words, env=None):
        agent = self.start("--http=0", *words, env={**INFO, **(env or {})})
        return agent, launch.http_port(agent)

    def test_health_status_and_metrics_of_running_workers(self):
        agent, port = self.serving("--nproc-per-node=2", "--max-restarts=3", "--role=trainer",
                                   self.script(
            '"$MUSTER" tell status "step 7"; "$MUSTER" ready; note $$; wait_file go'))
        launch.wait_until(lambda: len(self.notes()) == 2, self.notes)
        status, body = launch.get(port, "/healthz")
        health = json.loads(body)
        self.assertEqual((status, health["state"], health["round"]), (200, "HEALTHY", 0))
        table = launch.get_json(port, "/status")
        self.assertEqual({name: table[name]
                          for name in ("role", "state", "round", "node_rank", "node_count",
                                                         "restarts_used", "restarts_max")},
                         {"role": "trainer", "state": "HEALTHY", "round": 0, "node_rank": 0,
                          "node_count": 1,
                          "restarts_used": 0, "restarts_max": 3})
        self.assertEqual(sorted(str(worker["pid"]) for worker in table["workers"]),
                         sorted(self.notes()))
        self.assertEqual([(worker["rank"], worker["local_rank"], worker["status"], worker["ready"])
                          for worker in table["workers"]],
                         [(0, 0, "step 7", True), (1, 1, "step 7", True)])
        self.check_metrics(launch.get(port, "/metrics")[1])
        self.touch("go")
        agent.end(0)

    def check_metrics(self, text):
        """The text format: every sample after its HELP and TYPE, nothing twice."""
        known, seen = set(), set()
        for line in text.splitlines():
            if line.startswith("# "):
                word, name = line.split()[1:3]
                self.assertIn(word, ("HELP", "TYPE"))
                known.add(name)
                continue
            match = re.fullmatch(r'([a-zA-Z_:][\w:]*)(\{(?:\w+="[^"\n]*",?)*\})? ([-+.\deE]+|\+Inf|NaN)', line)
            self.assertIsNotNone(match, line)
            self.assertIn(re.sub("_(bucket|sum|count)$", "", match[1]) if match[1] not in known
                          else match[1], known)
            self.assertNotIn(match[1] + (match[2] or ""), seen)
            seen.add(match[1] + (match[2] or ""))
        for text_part in ("workers.trainer.remaining_restarts", "workers.trainer.healthy"):
            self.assertIn(text_part, text)
        self.assertTrue(text.endswith("\n"))

    def test_other_paths_and_methods_are_refused(self):
        agent, port = self.serving(self.script("note ready; wait_file go"))
        self.wait_notes("ready")
        self.assertEqual(launch.get(port, "/nothing")[0], 404)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=launch.PATIENCE_SECONDS)
        for method, path, status in (("POST", "/healthz", 405), ("HEAD", "/healthz", 200),
                                     ("GET", "/healthz", 200)):
            connection.request(method, path)  # all on one connection
            answer = connection.getresponse()
            answer.read()
            self.assertEqual(answer.status, status)
        connection.close()
        self.touch("go")
        agent.end(0)

    def test_it_listens_on_loopback_only_unless_told_otherwise(self):
        agent, port = self.serving(self.script("note ready; wait_file go"))
        self.wait_notes("ready")
        table = open(f"/proc/{agent.pid}/net/tcp").read()
        self.assertIn(f"0100007F:{port:04X} 00000000:0000 0A", table)
        self.assertNotIn(f"00000000:{port:04X} 00000000:0000 0A", table)
        self.touch("go")
        agent.end(0)

    def test_it_answers_during_the_rendezvous_and_a_pause_before_a_restart(self):
        agent, port = self.serving("--nnodes=2", "--rdzv-backend=c10d",
                                   f"--rdzv-endpoint={self.serve().endpoint}",
                                   self.script("note no"))
        self.assertEqual(launch.get(port, "/healthz")[0], 200)
        self.assertEqual(launch.get_json(port, "/status")["workers"], [])
        agent.signal(signal.SIGTERM)
        agent.end(-signal.SIGTERM)
        agent, port = self.serving("--max-restarts=1", "--restart-delay=600", self.script("exit 3"))
        agent.err.wait("restarting in")
        self.assertEqual(launch.get(port, "/healthz")[0], 200)
        self.assertEqual(launch.get_json(port, "/status")["restarts_used"], 1)
        agent.signal(signal.SIGTERM)
        agent.end(1)

    def test_a_client_that_says_nothing_disturbs_nobody(self):
        agent, port = self.serving(self.script("note ready; wait_file go"))
        self.wait_notes("ready")
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.sendall(b"GET /heal")
            self.assertEqual(launch.get(port, "/healthz")[0], 200)
            self.touch("go")
            agent.end(0)

    def test_events_arrive_while_they_happen(self):
        agent, port = self.serving("--max-restarts=1", self.script(
            'note "start $TORCHELASTIC_RESTART_COUNT"; wait_file "go$TORCHELASTIC_RESTART_COUNT"; '
            '[ $TORCHELASTIC_RESTART_COUNT = 1 ]'))
        self.wait_notes("start 0")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=launch.PATIENCE_SECONDS)
        connection.request("GET", "/events")
        answer = connection.getresponse()
        self.assertEqual(answer.status, 200)
        before = time.time() * 1000
        self.touch("go0")
        failed = None
        while failed is None:
            line = answer.readline()
            self.assertNotEqual(line, b"")
            if line.strip():
                record = json.loads(line)
                if "failed" in record["name"].lower():
                    failed = record
        self.assertGreater(failed["timestamp"], before - 60_000)
        self.assertTrue(agent.is_running())
        self.touch("go1")
        agent.end(0)
        connection.close()

    def test_the_port_of_the_environment(self):
        port = launch.muster.free_port()
        agent = self.start(self.script("note ready; wait_file go"),
                           env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(port)})
        self.wait_notes("ready")
        self.assertEqual(launch.get(port, "/healthz")[0], 200)
        self.touch("go")
        agent.end(0)

    def test_a_port_of_the_environment_that_is_none_is_ignored_with_a_warning(self):
        agent = self.launch(self.script("note ran"), env={"TORCHELASTIC_HEALTH_CHECK_PORT": "many"})
        self.assertEqual(self.notes(), ["ran"])
        self.assertEqual(len(re.findall("TORCHELASTIC_HEALTH_CHECK_PORT", agent.err.text)), 1)


class Events(launch.Case):
    KEYS = ["run_id", "global_rank", "group_rank", "worker_id", "role", "hostname", "state",
            "total_run_time",
            "rdzv_backend", "raw_error", "metadata", "agent_restarts", "duration_ms"]

    def records(self, text):
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def check(self, records, workers):
        classic = [record for record in records if record["name"].startswith("torchelastic.")]
        for record in classic:
            self.assertEqual(sorted(record), ["metadata", "name", "source", "timestamp"])
            self.assertEqual(sorted(record["metadata"]), sorted(self.KEYS))
            self.assertGreater(record["timestamp"], 1_600_000_000_000)
        got = [(record["source"], record["metadata"]["state"]) for record in classic]
        for expected in [("AGENT", "RENDEZVOUS"), ("AGENT", "ASSIGN_WORKER_RANKS"),
                         ("WORKER", "START"), *workers,
                         ("AGENT", "SUCCEEDED")]:
            self.assertIn(expected, got)
        self.assertEqual(got[-1], ("AGENT", "SUCCEEDED"))
        return classic

    def test_to_a_file(self):
        path = self.folder / "events"
        self.launch("--nproc-per-node=2", f"--event-log-handler=file:{path}", self.script("exit 0"))
        records = self.check(self.records(path.read_text()), [("WORKER", "SUCCEEDED")])
        ends = [record for record in records
                if (record["source"], record["metadata"]["state"]) == ("WORKER", "SUCCEEDED")]
        self.assertEqual([record["metadata"]["global_rank"] for record in ends], [0, 1])
        inner = json.loads(ends[1]["metadata"]["metadata"])
        self.assertEqual((inner["local_rank"], inner["role_rank"], inner["role_world_size"],
                          inner["exit_code"]),
                         ([1], [1], [2], [0]))

    def test_to_the_console_with_a_failure(self):
        agent = self.launch("--nproc-per-node=2", "--event-log-handler=console",
                            self.script('[ "$RANK" = 1 ] && exit 3; stay'), status=1)
        records = self.check(self.records(agent.err.text),
                             [("WORKER", "FAILED"), ("WORKER", "TERMINATED")])
        (failed,) = [record for record in records if record["metadata"]["state"] == "FAILED"]
        self.assertEqual(json.loads(failed["metadata"]["raw_error"]), {"message": "<NONE>"})

    def test_to_a_unix_socket(self):
        path = str(self.folder / "sink")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen()
            listener.settimeout(launch.PATIENCE_SECONDS)
            agent = self.start(f"--event-log-handler=unix:{path}", self.script("exit 0"))
            connection, _ = listener.accept()
            with connection, connection.makefile() as lines:
                connection.settimeout(launch.PATIENCE_SECONDS)
                text = lines.read()
            agent.end(0)
        self.check(self.records(text), [("WORKER", "SUCCEEDED")])

    def test_by_variable_and_not_at_all(self):
        agent = self.launch(self.script("exit 0"), env={"PET_EVENT_LOG_HANDLER": "console"})
        self.assertNotEqual(self.records(agent.err.text), [])
        agent = self.launch("--event-log-handler=null", self.script("exit 0"),
                            env={"PET_EVENT_LOG_HANDLER": "console"})
        self.assertEqual(agent.err.text, "")

    def test_a_signal_is_a_failure_of_the_agent(self):
        path = self.folder / "events"
        agent = self.start(f"--event-log-handler=file:{path}", self.script("note ready; stay"))
        self.wait_notes("ready")
        agent.signal(signal.SIGTERM)
        agent.end(1)
        last = self.records(path.read_text())[-1]
        self.assertEqual((last["source"], last["metadata"]["state"]), ("AGENT", "FAILED"))


class Footprint(launch.Case):
    def test_an_agent_that_waits_uses_no_cpu_and_one_thread(self):
        agent = self.start("--nproc-per-node=16", "--tee=3", f"--log-dir={self.logs}",
                           self.script("note ready; exec sleep 600"))
        self.wait_notes(*["ready"] * 16)

        pids = [agent.pid, agent.inner()]

        def ticks():
            texts = [pathlib.Path(f"/proc/{pid}/stat").read_text() for pid in pids]
            fields = [text.rsplit(")", 1)[1].split() for text in texts]
            return sum(int(field[11]) + int(field[12]) for field in fields)

        before = ticks()
        time.sleep(1)
        self.assertLessEqual(ticks() - before, 1)
        threads = [len(os.listdir(f"/proc/{pid}/task")) for pid in pids]
        self.assertEqual(threads[0], 1)
        self.assertLessEqual(threads[1], 2)
        self.assertEqual(len(os.listdir(f"/proc/{agent.pid}/fd")), 3)
        self.assertLessEqual(len(os.listdir(f"/proc/{agent.inner()}/fd")), 100)
        agent.signal(signal.SIGTERM)
        agent.end(1)


if __name__ == "__main__":
    launch.main()

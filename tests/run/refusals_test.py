"""What `muster run` refuses: one line, the right status, nothing started, nothing left."""

import os
import signal
import socket

import launch


class Refusal(launch.Case):
    def setUp(self):
        super().setUp()
        self.worker = self.script("note started")

    def check_nothing_happened(self):
        self.assertEqual(self.notes(), [])
        self.assertFalse(self.logs.exists())
        self.assert_no_files()

    def refuse(self, pattern, *words, env=None, worker=True):
        """Status 1, and one line that matches `pattern`."""
        with self.subTest(words=words, env=env):
            program = [self.worker] if worker else []
            agent = self.launch(*words, *program, status=1,
                                env={"OMP_NUM_THREADS": "1", **(env or {})})
            lines = agent.err.text.splitlines()
            self.assertEqual(len(lines), 1, agent.err.text)
            self.assertRegex(lines[0], r"\Amuster( run)?: ")
            self.assertRegex(lines[0], pattern)
            self.assertEqual(agent.out.text, "")
            self.check_nothing_happened()

    def usage(self, pattern, *words, env=None, worker=True):
        """Status 2, and usage with one line that matches `pattern`."""
        with self.subTest(words=words, env=env):
            program = [self.worker] if worker else []
            agent = self.launch(*words, *program, status=2, env=env)
            text = agent.err.text
            self.assertIn("usage: muster run", text)
            self.assertRegex(text.splitlines()[-1], pattern)
            self.assertLessEqual(len(text.splitlines()), 4, text)
            self.check_nothing_happened()


class Numbers(Refusal):
    def test_numbers_of_nodes_that_are_none(self):
        self.refuse("1:2:3.*MIN:MAX", "--nnodes=1:2:3")
        for text in ("two", "1:x", "", "1.5", ":", "1:"):
            self.refuse("--nnodes.*MIN:MAX", f"--nnodes={text}")

    def test_ranges_of_nodes_that_are_empty(self):
        self.refuse("at least 1 node", "--nnodes=0")
        self.refuse("at least 1 node", "--nnodes=-1:2")
        self.refuse("minimum 3 .*maximum 2", "--nnodes=3:2")

    def test_a_range_of_nodes_with_a_static_rendezvous(self):
        self.refuse("1:2.*--rdzv-backend=c10d", "--nnodes=1:2")

    def test_negative_restarts(self):
        self.refuse("--max-restarts is -1", "--max-restarts=-1")

    def test_numbers_of_workers_that_are_none(self):
        self.refuse('"many".*auto, cpu, gpu', "--nproc-per-node=many")
        self.refuse("did you mean gpu", "--nproc-per-node=gpuu")
        for text in ("0", "-2"):
            self.refuse(f'--nproc-per-node is "{text}".*at least 1', f"--nproc-per-node={text}")

    def test_devices_that_are_not_there(self):
        self.refuse("CUDA", "--nproc-per-node=gpu", env={"CUDA_VISIBLE_DEVICES": ""})
        if not os.path.exists("/dev/dri"):
            self.refuse("XPU", "--nproc-per-node=xpu")

    def test_intervals_that_are_no_time(self):
        for text in ("0", "-1"):
            self.refuse("--monitor-interval.*above 0", f"--monitor-interval={text}")
        for text in ("nan", "inf"):
            self.usage("--monitor-interval", f"--monitor-interval={text}")

    def test_a_negative_grace(self):
        self.refuse("--shutdown-timeout is -1", "--shutdown-timeout=-1")
        self.refuse('TORCH_ELASTIC_SHUTDOWN_TIMEOUT is "soon"',
                    env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "soon"})

    def test_more_virtual_local_ranks_than_devices(self):
        self.refuse("CUDA_VISIBLE_DEVICES=0 names only 1", "--virtual-local-rank",
                    "--nproc-per-node=2",
                    env={"CUDA_VISIBLE_DEVICES": "0"})

    def test_a_node_rank_that_no_node_has(self):
        self.refuse("--node-rank is 2", "--nnodes=2", "--node-rank=2")
        self.refuse("--node-rank is -1", "--nnodes=2", "--node-rank=-1")


class Usage(Refusal):
    def test_numbers_that_are_none(self):
        for name in ("monitor-interval", "max-restarts", "node-rank", "master-port",
                     "shutdown-timeout"):
            variable = "PET_" + name.upper().replace("-", "_")
            self.usage(f'--{name}.*"?many"?', f"--{name}=many")
            self.usage(f"({variable}|--{name}).*many", env={variable: "many"})
            self.usage(f"({variable}|--{name})", env={variable: ""})

    def test_words_that_are_not_in_the_list(self):
        self.usage("--start-method.*spawn", "--start-method=thread")
        self.usage("--numa-binding.*exclusive", "--numa-binding=moon")

    def test_options_that_are_unknown_or_ambiguous(self):
        self.usage("--maximum-restarts.*did you mean --max-restarts", "--maximum-restarts=1")
        self.usage("--rdzv.*(ambiguous|could be)", "--rdzv=1")
        self.usage("-z", "-z")

    def test_a_missing_program_or_value(self):
        self.usage("program", worker=False)
        self.usage("program", "--nproc-per-node=2", worker=False)
        self.usage("--role", "--role", worker=False)

    def test_flags_in_the_environment_must_be_numbers(self):
        self.refuse("PET_STANDALONE.*(0 or 1|number)", env={"PET_STANDALONE": "yes"})


class Texts(Refusal):
    def test_streams(self):
        for option in ("--redirects", "--tee", "-r", "-t"):
            for text in ("4", "x", "0:4", "0:1,", "0-:1", "1:"):
                self.refuse("(redirects|tee).*0:3,4-7:1", option, text)

    def test_rank_filters(self):
        for text in ("a", "1,b", "1;2", "3-1"):
            self.refuse("--local-ranks-filter.*0,3,8-11", f"--local-ranks-filter={text}")

    def test_a_log_layout_that_is_not_there(self):
        self.refuse("mine.*torchrun.logs_specs", "--logs-specs=mine")

    def test_a_log_folder_that_is_a_file(self):
        file = self.folder / "file"
        file.touch()
        self.refuse("not a folder", f"--log-dir={file}")
        self.refuse("not a folder", f"--log-dir={file}/below")

    def test_a_log_folder_that_cannot_be_written(self):
        self.refuse("/proc/nothing", "--log-dir=/proc/nothing")

    def test_a_module_that_is_no_python(self):
        self.refuse("--no-python.*--module", "--module", "--no-python")

    def test_event_sinks(self):
        self.refuse("consol.*did you mean console", "--event-log-handler=consol")
        self.refuse("file:", "--event-log-handler=file:")
        self.refuse(str(self.folder), f"--event-log-handler=file:{self.folder}/missing/events")

    def test_addresses_of_the_http_server(self):
        for text in ("x", "70000", "host:port"):
            self.refuse("--http", f"--http={text}")

    def test_an_http_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.refuse("in use", f"--http={taken.getsockname()[1]}")

    def test_signals_to_forward(self):
        self.refuse("SIGUSR3.*did you mean SIGUSR", "--signals-to-forward=SIGUSR3")
        self.refuse("SIGKILL cannot", "--signals-to-forward=SIGKILL")

    def test_an_unknown_signal_to_handle_is_skipped_with_a_warning(self):
        agent = self.launch("--signals-to-handle=SIGTERM,SIGFOO", self.worker)
        self.assertRegex(agent.err.text, r"\Amuster: warning: .*SIGFOO.*skipped\n\Z")
        self.assertEqual(self.notes(), ["started"])


class Rendezvous(Refusal):
    def test_backends(self):
        self.refuse("c10.*did you mean c10d", "--rdzv-backend=c10")
        self.refuse("--rdzv-backend is empty", "--rdzv-backend=")
        self.refuse("zookeeper", "--rdzv-backend=zookeeper")

    def test_options_that_are_no_pairs(self):
        self.refuse("--rdzv-conf", "--rdzv-conf==1")
        self.refuse("--rdzv-conf.*timeout", "--rdzv-conf=timeout")
        self.refuse("--rdzv-conf.*timeout", "--rdzv-conf=timeout=")

    def test_options_that_are_unknown(self):
        self.refuse("did you mean join_timeout", "--rdzv-backend=c10d",
                    "--rdzv-conf=joint_timeout=1")
        self.refuse("bogus", "--rdzv-backend=c10d", "--rdzv-conf=bogus=1")

    def test_timeouts_that_are_none(self):
        for name in ("join_timeout", "last_call_timeout", "close_timeout", "keep_alive_interval"):
            for text in ("0", "-1", "abc"):
                if (name, text) == ("last_call_timeout", "0"):
                    continue
                self.refuse(name, "--rdzv-backend=c10d", f"--rdzv-conf={name}={text}")
        self.refuse("timeout", "--rdzv-backend=c10d", "--rdzv-conf=timeout=abc")

    def test_static_endpoints(self):
        self.refuse("has no port.*--master-addr", "--nnodes=2", "--rdzv-endpoint=host")
        self.refuse("--master-addr is empty", "--nnodes=2", "--master-addr=")
        self.refuse("--master-port is 70000", "--nnodes=2", "--master-port=70000")

    def test_endpoints(self):
        for text in ("host:70000", "host:x", "ho st:1", "host:", "a/b:1"):
            self.refuse("--rdzv-endpoint", "--rdzv-backend=c10d", f"--rdzv-endpoint={text}")

    def test_a_static_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.refuse(f"{taken.getsockname()[1]}.*in use", "--nnodes=2",
                        "--master-addr=127.0.0.1",
                        f"--master-port={taken.getsockname()[1]}")

    def test_an_explicit_port_that_a_job_on_this_host_has(self):
        port = launch.muster.free_port()
        first = self.start("--master-addr=127.0.0.1", f"--master-port={port}",
                           self.script("note first; stay", "first"))
        self.wait_notes("first")
        second = self.start("--master-addr=127.0.0.1", f"--master-port={port}", self.worker)
        second.end(1)
        self.assertRegex(second.err.text, rf"\Amuster: .*{port}.*in use.*\n\Z")
        self.assertEqual(self.notes(), ["first"])
        first.signal(signal.SIGTERM)
        first.end(1)


class Programs(Refusal):
    def start_fails(self, pattern, *words, env=None, count=3):
        """After the rendezvous: no worker stays, no file is left."""
        with self.subTest(words=words):
            agent = self.launch(f"--nproc-per-node={count}", *words, status=1,
                                env={"OMP_NUM_THREADS": "1", **(env or {})})
            lines = agent.err.text.splitlines()
            self.assertEqual(len(lines), 1, agent.err.text)
            self.assertRegex(lines[0], pattern)
            self.assert_no_files()

    def test_a_program_that_is_not_there(self):
        self.start_fails("no program.*no-such-program", "no-such-program")
        self.start_fails("no program.*/no/such", "/no/such")
        self.start_fails(r"nothing\.py", "nothing.py")

    def test_a_program_that_cannot_be_executed(self):
        plain = self.folder / "plain"
        plain.write_text("text")
        self.start_fails(r"\Amuster: .*plain.*chmod", str(plain))
        plain.chmod(0o755)
        self.start_fails(r"\Amuster: .*plain.*(format|#!)", str(plain))
        plain.write_text("#!/no/such/interpreter\n")
        self.start_fails(r"\Amuster: .*(interpreter|#!)", str(plain))
        self.start_fails(r"\Amuster: .*folder", str(self.folder))

    def test_a_temporary_folder_that_is_not_there(self):
        self.start_fails("TMPDIR", self.worker, env={"TMPDIR": str(self.folder / "missing")})
        self.assertEqual(self.notes(), [])


if __name__ == "__main__":
    launch.main()

"""The judge of logs notices what it is there for."""

import pathlib
import tempfile
import unittest

import logs

NAME = "host1-5-6-7"  # a worker of the agent with pid 5


def line(number):
    return f"{NAME} {number} {'x' * (number * 37 % 1500)}.\n".encode()


def lines(*numbers):
    return b"".join(map(line, numbers))


class Judge(unittest.TestCase):
    def judge(self, content, journal=10, killed=False, passes_through=False):
        """What is wrong with a log if the worker remembers `journal` lines."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "journals").mkdir()
            notes = "".join(f"{number}\n" for number in range(1, journal + 1))
            (folder / "journals" / NAME).write_text(notes)
            (folder / "log").write_bytes(content)
            judge = logs.Logs(folder, {("host1", 5)} if killed else set())
            try:
                judge.check([folder / "log"], "log", passes_through)
            except logs.Wrong as error:
                return str(error)
        return ""

    def test_a_whole_log_is_fine(self):
        self.assertEqual(self.judge(lines(*range(1, 11))), "")

    def test_a_line_that_its_worker_had_no_time_to_note_is_fine(self):
        self.assertEqual(self.judge(lines(*range(1, 12))), "")
        self.assertIn("12 lines, of 10", self.judge(lines(*range(1, 13))))

    def test_a_lost_line_is_noticed_wherever_it_was(self):
        self.assertIn("9 lines, of 10", self.judge(lines(*range(1, 10))))
        self.assertIn("6 after 4", self.judge(lines(1, 2, 3, 4, 6, 7, 8, 9, 10)))
        self.assertIn("2 after 0", self.judge(lines(*range(2, 11))))
        self.assertIn("0 lines, of 10", self.judge(b""))

    def test_doubled_swapped_and_foreign_lines_are_noticed(self):
        self.assertIn("5 after 5", self.judge(lines(1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10)))
        self.assertIn("3 after 1", self.judge(lines(1, 3, 2, 4, 5, 6, 7, 8, 9, 10)))
        self.assertIn("several workers",
                      self.judge(lines(*range(1, 11)) + b"host2-1-1-1 1 " + b"x" * 37 + b".\n"))

    def test_torn_lines_are_noticed(self):
        whole = lines(*range(1, 11))
        self.assertIn("torn", self.judge(whole.replace(line(5), line(5)[:-9] + b"\n")))
        self.assertIn("torn", self.judge(whole.replace(line(5), line(5)[:-1])))
        self.assertIn("middle of a line", self.judge(whole[:-1]))
        self.assertIn("middle of a line", self.judge(whole[:-1], passes_through=True))

    def test_a_killed_agent_may_have_missed_the_end_of_what_passes_through_it(self):
        part = lines(*range(1, 8))
        self.assertEqual(self.judge(part + line(8)[:7], killed=True, passes_through=True), "")
        self.assertIn("7 lines, of 10", self.judge(part, killed=True))
        self.assertIn("7 lines, of 10", self.judge(part, passes_through=True))
        self.assertIn("3 after 1", self.judge(lines(1, 3), killed=True, passes_through=True))


if __name__ == "__main__":
    unittest.main()

"""What the outcomes of the tests amount to: which count, which failures are known, and is that enough.

Pure: told what came of each test, it answers; `run` starts processes and prints, and harness_test.py
calls this.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

PASSED, FAILED, KNOWN, NOT_APPLICABLE = "passed", "failed", "known failure", "not applicable"
OUTCOMES = (PASSED, FAILED, KNOWN, NOT_APPLICABLE)

# Fixed bounds of whole suites: the share of the applicable tests that must pass, known failures or not.
BOUNDS = {"FaultyAgentRpcTest": 1.0, "RpcTest": 0.95}


@dataclass(frozen=True)
class Listed:
    """One line of a file of known failures."""

    versions: tuple  # of PyTorch, as prefixes; ("*",) for all
    reason: str

    def applies_to(self, version):
        return any(prefix == "*" or re.match(re.escape(prefix) + r"(?!\d)", version) for prefix in self.versions)


def read_list(text, name):
    """{test: Listed} from lines `test | versions | reason`; raises ValueError for any other line."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split("|", 2)]
        if len(parts) != 3 or not all(parts):
            raise ValueError(f"{name}:{number}: must be `test | versions | reason`")
        if parts[0] in found:
            raise ValueError(f"{name}:{number}: {parts[0]} is listed twice")
        found[parts[0]] = Listed(tuple(parts[1].split()), parts[2])
    return found


@dataclass
class Test:
    """One test: what came of it, and what a reader needs to know."""

    id: str  # class and method
    outcome: str
    detail: str = ""
    seconds: float = 0.0
    log: str = None

    @property
    def suite(self):
        return self.id.split(".")[0]


def heart(detail):
    """The one line of a traceback that says what went wrong, in the first worker that failed."""
    worker = re.split(r"\nProcess \d+ exited with error code", detail)[0]
    last = re.split(r"(?m)^(?:During handling of the above|The above) exception", worker)[-1]
    lines = last.rstrip().splitlines()
    # The text of an error may go on for lines, and quote a traceback: its first line is the one.
    said = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Warning)\b", line)
            and not re.match(r"RuntimeError: Process \d+ exited", line)]
    return said[0] if said else (lines or ["no reason given"])[-1]


@dataclass
class Verdict:
    """All tests that were run with one PyTorch."""

    version: str
    reference: bool  # PyTorch's own RPC was run, not Muster's
    whole: bool  # no test of the suites was left out by a pattern
    tests: list = field(default_factory=list)
    out_of_scope: list = field(default_factory=list)  # (class, number of tests, reason)
    problems: list = field(default_factory=list)  # of the whole; each makes the run fail

    def add(self, event, known, fails_in_reference):
        """Takes the event of a test from host.py; both lists are as read_list() gives them."""
        test = Test(event["id"], event["status"], event["detail"], event["seconds"], event["log"])
        listed = known.get(test.id)
        listed = listed if listed and listed.applies_to(self.version) else None
        there = fails_in_reference.get(test.id)
        there = there if there and there.applies_to(self.version) else None
        if test.outcome == "skipped":
            test.outcome, test.detail = NOT_APPLICABLE, f"it skips itself here: {test.detail}"
        elif test.outcome == FAILED and there and not self.reference:
            test.outcome, test.detail = NOT_APPLICABLE, f"PyTorch's own RPC fails it too: {there.reason}"
        elif test.outcome == FAILED and listed:
            test.outcome, test.detail = KNOWN, listed.reason
        if listed and test.outcome != KNOWN:
            self.problems.append(f"{test.id} is listed as a known failure ({listed.reason}), but is: {test.outcome}")
        self.tests.append(test)

    def finish(self, known, suites):
        """After the last test; `suites` are the classes that were to be run."""
        if self.whole:
            seen = {test.id for test in self.tests}
            for name in known:
                if name.split(".")[0] in suites and known[name].applies_to(self.version) and name not in seen:
                    self.problems.append(f"{name} is listed as a known failure, but there is no such test")
        for suite, bound in BOUNDS.items():
            count = self.count(suite)
            applicable = count[PASSED] + count[FAILED] + count[KNOWN]
            if self.whole and not self.reference and suite in suites and count[PASSED] < bound * applicable:
                self.problems.append(
                    f"{suite}: {count[PASSED]} of {applicable} applicable tests passed; {bound:.0%} must")

    def count(self, suite=None):
        return Counter(test.outcome for test in self.tests if suite in (None, test.suite))

    @property
    def good(self):
        return bool(self.tests) and not self.problems and not self.count()[FAILED]

    def summary(self):
        count = self.count()
        applicable = count[PASSED] + count[FAILED] + count[KNOWN]
        known = f" ({count[KNOWN]} of them known)" if count[KNOWN] else ""
        subject = "the reference itself, " if self.reference else ""
        return (f"conformance ({subject}PyTorch {self.version}): {count[PASSED]} of {applicable} applicable passed, "
                f"{count[FAILED] + count[KNOWN]} failed{known}, {count[NOT_APPLICABLE]} not applicable")

    def table(self):
        """Rows of text, the heading first."""
        rows = [("suite", *OUTCOMES)]
        for suite in dict.fromkeys(test.suite for test in self.tests):
            count = self.count(suite)
            rows.append((suite, *(str(count[outcome]) for outcome in OUTCOMES)))
        return rows

    def reasons(self):
        """[(how many, reason)] of what is not applicable."""
        return [(number, reason) for reason, number in Counter(
            test.detail for test in self.tests if test.outcome == NOT_APPLICABLE).most_common()]

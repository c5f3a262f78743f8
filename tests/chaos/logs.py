"""Whether the logs have what the workers have printed: no line lost, torn, doubled or misplaced."""

import pathlib
import re

PREFIX = re.compile(rb"^\[default\d+\]:")
LINE = re.compile(rb"(?P<name>\S+) (?P<number>\d+) (?P<filling>x*)\.")


class Wrong(Exception):
    pass


def numbered(content, where):
    """The lines in `content`: name -> numbers, in their order; and what follows the last line."""
    found = {}
    *lines, rest = content.split(b"\n")
    for line in lines:
        match = LINE.fullmatch(line)
        if match is None or len(match["filling"]) != int(match["number"]) * 37 % 1500:
            raise Wrong(f"{where}: a torn line: {line[:200]!r}")
        found.setdefault(match["name"].decode(), []).append(int(match["number"]))
    return found, rest


class Logs:
    """All logs of all workers, against their journals.

    Agents that were killed could not write what they had not read yet; what they wrote must still be
    the beginning of what their workers printed. That only concerns what passes through them:
    standard output, which is tee'd. Standard error goes straight to its file.
    """

    def __init__(self, folder, killed_agents):
        self._killed = killed_agents  # (host name, pid)
        self._wanted = {}
        for journal in (folder / "journals").iterdir():
            self._wanted[journal.name] = journal.read_bytes().count(b"\n")
        self.line_count = sum(self._wanted.values())

    def worker_count(self):
        return len(self._wanted)

    def _was_killed(self, name):
        host, agent, _, _ = name.split("-")
        return (host, int(agent)) in self._killed

    def check(self, paths, what, passes_through, consoles=False):
        """All of `paths` together have each worker's lines, in order and once."""
        seen = {}
        for path in paths:
            content = pathlib.Path(path).read_bytes()
            if consoles:
                content = b"\n".join(PREFIX.sub(b"", line) for line in content.split(b"\n"))
            found, rest = numbered(content, path)
            if rest and not (passes_through and all(map(self._was_killed, found))):
                raise Wrong(f"{path}: ends in the middle of a line: {rest[-80:]!r}")
            if len(found) > 1 and not consoles:
                raise Wrong(f"{path}: has the lines of several workers: {list(found)}")
            for name, numbers in found.items():
                if name in seen:
                    raise Wrong(f"{what}: the lines of {name} are in {path} and in {seen[name][0]}")
                seen[name] = (path, numbers)
        for name in set(seen) - set(self._wanted):
            raise Wrong(f"{what}: {name} in {seen[name][0]} is nobody's")
        for name, wanted in self._wanted.items():
            path, numbers = seen.get(name, ("no file", []))
            if numbers != list(range(1, len(numbers) + 1)):
                raise Wrong(f"{what}: {name} in {path}: lines are missing or in disorder: "
                            f"{gaps(numbers)}")
            # The one that it was about to note when it was killed may be there, too.
            least = 0 if passes_through and self._was_killed(name) else wanted
            if not least <= len(numbers) <= wanted + 1:
                raise Wrong(f"{what}: {name} in {path}: {len(numbers)} lines, of {wanted}")


def gaps(numbers):
    """Where `numbers` do not go up by one."""
    pairs = zip([0, *numbers], numbers)
    return [f"{later} after {earlier}" for earlier, later in pairs if later != earlier + 1][:10]

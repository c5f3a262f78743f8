"""The program that the workers of `elastic_launch` run: python -m muster.elastic._worker FOLDER"""

from __future__ import annotations

import os
import pickle
import sys

from muster.elastic.errors import record


@record
def main() -> None:
    from multiprocessing import spawn

    folder = sys.argv[1]
    with open(os.path.join(folder, "call"), "rb") as file:
        spawn.prepare(pickle.load(file))
        function, args = pickle.load(file)
    result = function(*args)
    path = os.path.join(folder, f"result_{os.environ['RANK']}")
    # Renamed, so that nobody reads half of it.
    unfinished = f"{path}.{os.getpid()}"
    with open(unfinished, "wb") as file:
        try:
            file.write(pickle.dumps(result))
        except (pickle.PicklingError, AttributeError, TypeError):
            import cloudpickle

            file.write(cloudpickle.dumps(result))
    os.replace(unfinished, path)


if __name__ == "__main__":
    main()

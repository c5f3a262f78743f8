"""torchrun of the interpreter that runs this file.

PyTorch 1.13 looks for the streams to redirect by going through the members of an enumeration of
flags. Since Python 3.11 that leaves out the members "none" and "all", so that its torchrun ends
with an AttributeError before it starts a worker. Here the same text is read without a search.
"""

from torch.distributed.elastic.multiprocessing import Std
from torch.distributed.run import main


def read_streams(text):
    if ":" not in text:
        return Std(int(text))
    pairs = (pair.split(":") for pair in text.split(","))
    return {int(rank): Std(int(streams)) for rank, streams in pairs}


if __name__ == "__main__":
    if Std.from_str("0") is None:
        Std.from_str = read_streams
    main()

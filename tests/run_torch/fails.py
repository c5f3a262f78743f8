"""A worker that fails, with PyTorch's own recorder of errors around it."""

from torch.distributed.elastic.multiprocessing.errors import record


def step():
    raise ValueError("the loss is not a number")


@record
def main():
    step()


if __name__ == "__main__":
    main()

"""Several threads of a load, for the programs that run with PyTorch."""

import threading


def in_threads(count, work):
    failures = []

    def guarded(index):
        try:
            work(index)
        except Exception as error:  # reported by the caller's thread
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]

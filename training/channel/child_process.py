"""How child processes of ours begin and end: their threads, and that
they never outlive their parent."""

import os
import signal
import sys
import threading

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Environment of what sums: numpy's BLAS reads it when it is loaded. A Gram matrix of 32 rows takes
as long with two threads as with one, and twice the processor, which is the trainer's."""


def set_thread_budget(threads: int) -> None:
    """Hold torch and the libraries under it to `threads`; called before torch is first imported.

    The libraries read their variables once, when they are loaded; torch.set_num_threads alone
    would leave pools behind that were made with the default.
    """
    assert "torch" not in sys.modules
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(threads)
    import torch

    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)


def leave_interrupts_to_parent() -> None:
    """Ctrl+C goes to the whole group; the parent decides what it means, and ends us.

    So does the SIGTERM of a service manager or `timeout`: a child that died of it would make an
    error of an orderly end. The parent ends us by closing our standard input, or with SIGKILL.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def take_control_pipe() -> tuple[int, int]:
    """Standard input and output, for frames alone: what is printed goes to standard error instead.

    Returns the descriptors to read from and to write to.
    """
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return read_fd, write_fd


def exit_now() -> None:
    """End the process from any thread, in the middle of whatever another one computes."""
    # sys.exit would end only the thread, and a training step may last long.
    os._exit(0)


def exit_when_stdin_closes(read_fd: int = 0) -> None:
    """Start a thread that ends the process when its parent closes the pipe, or is gone.

    `read_fd` is that of `take_control_pipe`, where it has moved standard input.
    """

    def watch() -> None:
        # The descriptor itself: a buffered stdin holds a lock that blocks an ordinary exit.
        while os.read(read_fd, 4096):
            pass
        exit_now()

    threading.Thread(target=watch, name="parent", daemon=True).start()


# The manifest, as a file that is named by its digest ---------------------------------------------

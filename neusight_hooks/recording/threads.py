"""Which of a program's threads does something: they share one tape."""

from __future__ import annotations

import threading

_identity = threading.get_ident


class ProgramThreads:
    """Numbers the threads of a program: the one that made this is 0, each other one has the
    smallest number that no thread has which still runs. So a program that starts a thread in each
    of its steps does the same in each.

    >>> threads = ProgramThreads()
    >>> threads.number()
    0
    >>> thread = threading.Thread(target=lambda: print(threads.number()))
    >>> thread.start(); thread.join()
    1
    """

    def __init__(self) -> None:
        self._main = _identity()
        self._own = threading.local()  # the number of a thread that has one
        self._others: dict[int, threading.Thread] = {}
        self._lock = threading.Lock()

    def number(self) -> int:
        """That of the thread that calls this."""
        if _identity() == self._main:
            return 0
        found: int | None = getattr(self._own, "number", None)
        return self._new_number() if found is None else found

    def _new_number(self) -> int:
        with self._lock:
            others = self._others
            number = 1
            while number in others and others[number].is_alive():
                number += 1
            others[number] = threading.current_thread()
            self._own.number = number
            return number


def is_elsewhere(entry: object) -> bool:
    """Whether an entry of a tape or of a step is of another thread than the main one. Backward
    passes are of autograd's thread, whoever starts them."""
    return bool(getattr(entry, "thread", 0)) and getattr(entry, "phase", "") != "backward"

"""What a script does at its end, done while its forecast is still open."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import multiprocessing.util
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Seconds that threads get which a script left running when it was ended in its midst: they may
#: wait for work that never comes.
GRACE_SECONDS = 2.0


class ExitHandlers:
    """The functions that a script registered with `atexit`, to be called by `run`."""

    def __init__(self, register: Callable[..., Any], unregister: Callable[..., Any]) -> None:
        self._register, self._unregister = register, unregister
        self._handlers: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._threads = set(threading.enumerate())

    def register(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Instead of atexit.register. What Python's own modules register is about the process,
        which may go on: that stays theirs."""
        module = getattr(function, "__module__", None) or ""
        if not callable(function) or module.partition(".")[0] in sys.stdlib_module_names:
            return self._register(function, *args, **kwargs)
        self._handlers.append((function, args, kwargs))
        return function

    def unregister(self, function: Any) -> None:
        """Instead of atexit.unregister."""
        self._handlers = [handler for handler in self._handlers if handler[0] != function]
        self._unregister(function)

    def run(self) -> None:
        """Calls them, last registered first; what one raises is shown, as Python does, and the next
        one is called."""
        while self._handlers:
            function, args, kwargs = self._handlers.pop()
            try:
                function(*args, **kwargs)
            except KeyboardInterrupt:
                raise
            except SystemExit:
                continue
            except Exception:
                sys.stderr.write(f"Exception ignored in atexit callback {function!r}:\n")
                traceback.print_exc()

    def wait_for_threads(self, *, ended_well: bool) -> None:
        """Waits for the threads that the script left, as Python does at its end; not for long where
        the script was ended in its midst. For a process that ends after it."""
        if ended_well:
            # What Python itself calls there: it also ends the threads of executors.
            threading._shutdown()  # type: ignore[attr-defined]
            return
        left = [one for one in threading.enumerate() if one not in self._threads and not one.daemon]
        for thread in left:
            thread.join(GRACE_SECONDS / len(left))

    def end_process(self, *, ended_well: bool) -> None:
        """What Python's own modules do at the end: child processes are waited for (ended, where the
        script was), logs are flushed."""
        for child in [] if ended_well else multiprocessing.active_children():
            child.terminate()
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]  # as its own forks do
        logging.shutdown()


@contextmanager
def collecting_exit_handlers() -> Iterator[ExitHandlers]:
    """While open, what a script registers for its exit is collected."""
    register, unregister = atexit.register, atexit.unregister
    handlers = ExitHandlers(register, unregister)
    atexit.register, atexit.unregister = handlers.register, handlers.unregister
    try:
        yield handlers
    finally:
        atexit.register, atexit.unregister = register, unregister

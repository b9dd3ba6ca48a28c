"""Who is called at an event of the recording: functions subscribe, and unsubscribe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

__all__ = ["Listeners"]

P = ParamSpec("P")


class Listeners(Generic[P]):
    """The functions that are called at an event, in the order in which they subscribed.

    >>> waits, heard = Listeners[[str]](), []
    >>> end = waits.subscribe(heard.append)
    >>> waits("item")
    >>> end()
    >>> waits("item")
    >>> heard
    ['item']
    """

    __slots__ = ("functions",)

    def __init__(self) -> None:
        self.functions: tuple[Callable[P, object], ...] = ()

    def subscribe(self, function: Callable[P, object]) -> Callable[[], None]:
        """From now on it is called once at each event, until what is returned is called."""
        if function not in self.functions:
            self.functions = (*self.functions, function)

        def unsubscribe() -> None:
            self.functions = tuple(known for known in self.functions if known != function)

        return unsubscribe

    def __bool__(self) -> bool:
        return bool(self.functions)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for function in self.functions:
            function(*args, **kwargs)

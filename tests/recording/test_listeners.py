"""Functions are called at an event as long as they are subscribed, in the order they came."""

from __future__ import annotations

from neusight.recording.listeners import Listeners


def test_listeners_are_called_in_the_order_in_which_they_subscribed() -> None:
    event, calls = Listeners[[int]](), list[str]()
    event.subscribe(lambda number: calls.append(f"first {number}"))
    event.subscribe(lambda number: calls.append(f"second {number}"))

    event(7)

    assert calls == ["first 7", "second 7"]


def test_one_that_unsubscribed_is_not_called_and_the_others_are() -> None:
    event, calls = Listeners[[]](), list[str]()
    end = event.subscribe(lambda: calls.append("first"))
    event.subscribe(lambda: calls.append("second"))

    end()
    event()
    end()

    assert calls == ["second"]
    assert event


def test_a_listener_may_unsubscribe_while_it_is_called() -> None:
    event, calls = Listeners[[]](), list[str]()

    def once() -> None:
        end()
        calls.append("once")

    end = event.subscribe(once)
    event.subscribe(lambda: calls.append("always"))

    event()
    event()

    assert calls == ["once", "always", "always"]


def test_a_function_that_subscribes_again_is_called_once() -> None:
    event, calls = Listeners[[int]](), list[int]()

    for _ in range(2):
        event.subscribe(calls.append)
    event(1)

    assert calls == [1]

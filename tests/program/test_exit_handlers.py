"""What a script leaves for its exit is done inside its forecast, once, as Python would."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref

import pytest

from neusight.integrations.program.exit_handlers import ExitHandlers, collecting_exit_handlers


def never(*args: object) -> None:
    raise AssertionError("Python's own atexit was asked")


def test_handlers_run_last_first_with_their_arguments() -> None:
    called: list[object] = []

    def take(*args: object, **kwargs: object) -> None:
        called.append((args, kwargs))

    handlers = ExitHandlers(never, never)
    handlers.register(take, 1)
    assert handlers.register(take, name="two") is take
    handlers.run()
    handlers.run()

    assert called == [((), {"name": "two"}), ((1,), {})]


def test_a_handler_may_register_another_and_one_that_fails_stops_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    called: list[str] = []

    def fails() -> None:
        raise ValueError("full disk")

    def leaves() -> None:
        handlers.register(called.append, "last")
        raise SystemExit(1)

    handlers = ExitHandlers(never, never)
    handlers.register(lambda: called.append("first"))
    handlers.register(fails)
    handlers.register(lambda: handlers.register(lambda: called.append("another")))
    handlers.register(leaves)
    handlers.run()

    assert called == ["last", "another", "first"]
    assert "Exception ignored in atexit callback" in capsys.readouterr().err


def test_ctrl_c_ends_them() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    handlers = ExitHandlers(never, never)
    handlers.register(interrupted)

    with pytest.raises(KeyboardInterrupt):
        handlers.run()


def test_what_was_unregistered_is_not_called() -> None:
    with collecting_exit_handlers() as handlers:
        atexit.register(never)
        atexit.register(never, 1)
        atexit.unregister(never)
        handlers.run()


def test_atexit_is_as_before_afterwards() -> None:
    before = atexit.register, atexit.unregister

    with pytest.raises(ZeroDivisionError), collecting_exit_handlers():
        raise ZeroDivisionError

    assert (atexit.register, atexit.unregister) == before


def test_what_python_registers_is_about_the_process_and_stays() -> None:
    kept: list[object] = []

    handlers = ExitHandlers(kept.append, kept.append)
    handlers.register(logging.shutdown)
    handlers.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
    handlers.run()

    assert len(kept) == 2


def test_threads_of_a_script_that_was_ended_are_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from neusight.integrations.program import exit_handlers

    monkeypatch.setattr(exit_handlers, "GRACE_SECONDS", 0.01)
    handlers, end = ExitHandlers(never, never), threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()

    handlers.wait_for_threads(ended_well=False)

    assert thread.is_alive()
    end.set()
    handlers.wait_for_threads(ended_well=False)
    thread.join()

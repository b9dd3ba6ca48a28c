"""What is replaced comes back exactly, in reverse order, whatever fails."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import pytest

from neusight.fake_cuda.patching import Patches


def module() -> ModuleType:
    made = ModuleType("patched")
    exec(
        "empty = None\n"
        "def greet(name, *, mark='!'): return 'hello ' + name + mark\n"
        "def twice(name): return greet(name) * 2\n",
        made.__dict__,
    )
    return made


def test_none_comes_back_as_none_and_absent_as_absent() -> None:
    owner, patches = module(), Patches()
    before = dict(vars(owner))

    patches.set(owner, "empty", 1)
    patches.set(owner, "empty", 2)
    patches.set(owner, "new", 3)
    assert (owner.empty, owner.new) == (2, 3)
    patches.restore()

    assert vars(owner) == before


def test_a_module_that_was_imported_meanwhile_keeps_the_original(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner, importing, patches = module(), ModuleType("importing"), Patches()
    original = owner.greet

    patches.set(owner, "greet", lambda name: "patched")
    vars(importing)["welcome"] = owner.greet
    monkeypatch.setitem(sys.modules, "importing", importing)
    patches.restore()

    assert vars(importing)["welcome"] is owner.greet is original


def test_an_inherited_attribute_is_inherited_again() -> None:
    class Base:
        def method(self) -> str:
            return "base"

    class Child(Base):
        pass

    patches = Patches()
    patches.set(Child, "method", lambda self: "patched")
    assert Child().method() == "patched"
    patches.restore()

    assert "method" not in vars(Child)
    assert Child().method() == "base"


def test_a_function_taken_by_name_before_answers_otherwise_and_then_as_before() -> None:
    owner, patches = module(), Patches()
    taken = owner.greet
    code = taken.__code__

    original = patches.replace_code(owner, "greet", lambda *args, **kwargs: "patched")
    inside = (taken("you"), owner.twice("you"), owner.greet is taken, original("you", mark="?"))
    patches.restore()

    assert inside == ("patched", "patchedpatched", True, "hello you?")
    assert taken("you") == "hello you!"
    assert taken.__code__ is code
    assert not [name for name in vars(owner) if name.startswith("_neusight")]


def test_what_is_no_plain_function_is_replaced_as_an_attribute() -> None:
    owner, patches = module(), Patches()
    owner.__dict__["size"] = len

    original = patches.replace_code(owner, "size", lambda value: -1)
    assert (owner.size("abc"), original("abc")) == (-1, 3)
    patches.restore()

    assert owner.size is len


def test_answering_one_function_twice_is_a_mistake() -> None:
    owner, patches = module(), Patches()
    patches.replace_code(owner, "greet", lambda name: "once")

    with pytest.raises(KeyError, match="greet is answered already"):
        patches.replace_code(owner, "greet", lambda name: "twice")
    patches.restore()

    assert owner.greet("you") == "hello you!"


def test_torch_is_as_it_was_for_a_while() -> None:
    owner, other, patches = module(), module(), Patches()
    owner.__name__ = owner.greet.__module__ = "torch.patched"
    before = {**vars(owner), "said": "hello you!"}
    patches.set(owner, "empty", 1)
    patches.set(owner, "empty", 2)
    patches.set(owner, "new", 3)
    patches.replace_code(owner, "greet", lambda name: "patched")
    patches.set(other, "empty", 4)

    with patches.torch_as_it_was():
        with patches.torch_as_it_was():
            pass  # modules load each other
        inside = {**vars(owner), "said": owner.greet("you")}
        assert other.empty == 4, "other packages are as the forecast has them"
    afterwards = (owner.empty, owner.new, owner.greet("you"))
    patches.restore()

    inside.pop("_neusight_answers")
    assert inside == before
    assert afterwards == (2, 3, "patched")
    assert owner.greet("you") == "hello you!"


def test_a_failure_while_restoring_does_not_stop_the_rest() -> None:
    owner, patches = module(), Patches()
    order: list[str] = []

    def fail() -> None:
        order.append("failed")
        raise ValueError("broken")

    patches.set(owner, "empty", 1)
    patches.on_restore(fail)
    patches.on_restore(lambda: order.append("last in, first out"))

    with pytest.raises(ValueError, match="broken"):
        patches.restore()
    assert order == ["last in, first out", "failed"]
    assert owner.empty is None


def test_every_fault_in_the_middle_of_a_change_leaves_nothing() -> None:
    class Fault(BaseException):
        pass

    def at_line(position: int) -> Callable[[FrameType, str, object], Any]:
        lines = iter(range(position))

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            if not frame.f_code.co_filename.endswith("fake_cuda/patching.py"):
                return None
            if event == "line" and next(lines, None) is None:
                sys.settrace(before_all)
                raise Fault
            return trace

        return trace

    def change(owner: ModuleType, patches: Patches) -> None:
        patches.set(owner, "empty", 1)
        patches.set(owner, "new", 2)
        patches.replace_code(owner, "greet", lambda name: "patched")

    before_all = sys.gettrace()
    faults = 0
    for position in range(1000):
        owner, patches = module(), Patches()
        before, code = dict(vars(owner)), owner.greet.__code__
        try:
            sys.settrace(at_line(position))
            change(owner, patches)
        except Fault:
            faults += 1
        else:
            break
        finally:
            sys.settrace(before_all)
            patches.restore()
        assert (vars(owner), owner.greet.__code__) == (before, code)
    assert faults > 20


def test_an_answer_that_was_left_behind_is_taken_over_and_then_undone() -> None:
    owner, lost, patches = module(), Patches(), Patches()
    code = owner.greet.__code__
    lost.replace_code(owner, "greet", lambda name: "of the one before")

    original = patches.replace_code(owner, "greet", lambda name: "of this one")
    assert (owner.greet("you"), original("you")) == ("of this one", "hello you!")
    patches.restore()

    assert owner.greet.__code__ is code
    assert owner.greet("you") == "hello you!"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_whatever_is_raised_while_restoring_all_else_is_restored(
    error: type[BaseException],
) -> None:
    owner, patches = module(), Patches()

    def fail() -> None:
        raise error

    patches.set(owner, "empty", 1)
    patches.on_restore(fail)
    patches.set(owner, "new", 1)

    with pytest.raises(error):
        patches.restore()
    assert owner.empty is None
    assert not hasattr(owner, "new")

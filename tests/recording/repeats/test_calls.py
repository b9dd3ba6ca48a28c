"""Equal calls before training are repeated on the tape, and the recording is the same."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from compiled_net import quiet
from torch import nn
from torch._dynamo.utils import counters

from neusight.fake_cuda.session import fake_cuda
from neusight.predictors.gpu import find_gpu
from neusight.recording.recorder import Recorder
from neusight.recording.recording import Step
from neusight.recording.repeats.calls import CALLS_RUN
from neusight.timeline.host import PLAIN

#: More steps than any program here makes: they run to their end.
_NEVER = 10_000

_CALLS = 30

_IS_SCALED = False

Program = Callable[[], object]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU())
        self.out = nn.Linear(32, 16)
        self.scale = 2
        self.weights = torch.ones(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.hidden(x)) * self.scale
        return found


@contextmanager
def listened_to(recorder: Recorder) -> Iterator[None]:
    """What the block does goes to the recorder, and is not priced."""
    gc.collect()
    gc.disable()  # tensors of earlier tests that are collected within a call keep it from repeating
    try:
        with fake_cuda(
            recorder, find_gpu("H100"), price=lambda call: (), host=PLAIN,
            on_query=lambda *query: None,
        ):  # fmt: skip
            yield
            recorder.cutter.finish()
    finally:
        gc.enable()


def recorded(program: Program, *, repeats: bool = True) -> tuple[list[Step], int]:
    """The steps of a program, and how many calls were repeated in place of being run."""
    recorder = Recorder(steady_steps=_NEVER if repeats else None)
    with listened_to(recorder):
        program()
    return recorder.cutter.steps, recorder.repeats.num_repeated.total()


def assert_repeats_unseen(program: Program, *, times: int = 1) -> None:
    """All but the first calls are repeated, and the recording is that of a program whose calls all
    ran; so many modules are called, or with so many shapes."""
    ran, none = recorded(program, repeats=False)
    steps, num_repeated = recorded(program)

    assert (none, num_repeated) == (0, times * (_CALLS - CALLS_RUN))
    assert steps == ran


def evaluated(model: nn.Module, calls: int = _CALLS) -> list[float]:
    losses = []
    with torch.no_grad():
        for _ in range(calls):
            x = torch.ones(4, 16).cuda()
            losses.append(model(x).float().pow(2).mean().item())
    return losses


def trained(model: nn.Module, steps: int = 6) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.ones(4, 16).cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_recording_is_that_of_a_program_whose_calls_all_ran() -> None:
    losses: list[list[float]] = []

    def program() -> None:
        model = Net().cuda().eval()
        losses.append(evaluated(model))
        trained(model.train())

    assert_repeats_unseen(program)
    assert losses[0] == losses[1]


def test_work_on_the_cpu_that_changes_nothing_is_repeated_too() -> None:
    class Scaled(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * torch.full((), 16).sqrt()

    assert_repeats_unseen(lambda: evaluated(Scaled().cuda()))


def test_calls_in_turn_of_several_modules_are_repeated() -> None:
    def program() -> None:
        first, second = Net().cuda(), nn.Linear(16, 4).cuda()
        with torch.no_grad():
            for _ in range(_CALLS):
                second(first(torch.ones(4, 16).cuda())).argmax(-1).cpu()

    assert_repeats_unseen(program, times=2)


def test_outputs_are_made_again_as_they_were_nested() -> None:
    class Several(Net):
        def forward(self, x: torch.Tensor) -> Any:
            out = super().forward(x)
            return {"out": out, "loss": (out.sum(), None), "x": x, "kind": "plain"}

    found: list[Any] = []

    def program() -> None:
        model = Several().cuda()
        with torch.no_grad():
            for _ in range(_CALLS):
                x = torch.ones(4, 16).cuda()
                found.append(model(x))
                assert found[-1]["x"] is x

    _, num_repeated = recorded(program)

    assert num_repeated == _CALLS - CALLS_RUN
    first, last = found[0], found[-1]
    assert last.keys() == first.keys()
    assert last["out"].shape == first["out"].shape == (4, 16)
    assert last["out"] is not found[-2]["out"]
    assert last["loss"][1] is None and last["kind"] == "plain"


class Cache:
    """What a call computed, as a model of Hugging Face returns keys and values."""

    def __init__(self, keys: torch.Tensor) -> None:
        self.layers = [keys]
        self.is_sliding = False


class WithCache(Net):
    def forward(self, x: torch.Tensor) -> Any:
        out = super().forward(x)
        # A new tensor of the host's values: the host waits for its copy.
        return out, Cache(torch.cat([torch.tensor([], device=x.device), out.flatten()]))


def test_an_object_that_each_call_makes_is_made_again() -> None:
    def program_of(found: list[Any]) -> Program:
        def program() -> None:
            model = WithCache().cuda()
            with torch.no_grad():
                for _ in range(_CALLS):
                    out, cache = model(torch.ones(4, 16).cuda())
                    found[:] = [*found[-1:], cache]
                    (out.sum() + cache.layers[0].sum()).item()

        return program

    last: list[Any] = []
    steps, num_repeated = recorded(program_of(last))
    ran, _ = recorded(program_of([]), repeats=False)

    before, cache = last
    assert num_repeated == _CALLS - CALLS_RUN
    assert type(cache) is Cache
    assert cache is not before and cache.layers[0] is not before.layers[0]
    assert (cache.layers[0].shape, cache.is_sliding) == ((64,), False)
    assert steps == ran


def test_an_object_that_all_calls_return_is_not_made_again() -> None:
    kept = Cache(torch.zeros(1))

    class Keeping(Net):
        def forward(self, x: torch.Tensor) -> Any:
            kept.layers = [super().forward(x)]
            return kept

    def program() -> None:
        model = Keeping().cuda()
        with torch.no_grad():
            assert all(model(torch.ones(4, 16).cuda()) is kept for _ in range(_CALLS))

    assert recorded(program)[1] == 0


def test_nothing_is_repeated_once_training_has_begun() -> None:
    def program() -> None:
        model = Net().cuda()
        trained(model, steps=1)
        evaluated(model)

    assert recorded(program)[1] == 0


def test_calls_with_gradients_are_run() -> None:
    def program() -> None:
        model = Net().cuda()
        for _ in range(_CALLS):
            model(torch.ones(4, 16).cuda())

    assert recorded(program)[1] == 0


def test_a_module_is_left_as_it_was() -> None:
    model = Net()
    before = dict(vars(model))

    def program() -> None:
        evaluated(model.cuda())

    assert recorded(program)[1] > 0
    assert vars(model).keys() == before.keys()


# -- what the program could notice ----------------------------------------------------------------

SEEN: list[int] = []


class Doing(Net):
    """A network that does more with its output: `more(self, input, output)`."""

    more: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return type(self).more(self, x, super().forward(x))


def doing(more: Callable[..., torch.Tensor], **attributes: object) -> Doing:
    model: Doing = type("Doing", (Doing,), {"more": more})()
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def counting(self: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    self.calls += 1
    return out


def counting_in_class(self: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    type(self).calls += 1
    return out


def counting_globally(self: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    SEEN.append(len(SEEN))
    return out


def printing(self: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    print("called")
    return out


def caching(self: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    self.cache.copy_(out)
    return out


def growing(self: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    kept: torch.Tensor = x if self.kept is None else torch.cat([self.kept, x])
    self.kept = kept
    return kept


def on_the_cpu(self: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    self.counted.add_(1)
    return out


def test_a_call_that_does_no_more_is_repeated() -> None:
    assert_repeats_unseen(lambda: evaluated(doing(lambda self, x, out: out).cuda()))


@pytest.mark.parametrize(
    ("more", "attributes"),
    [
        (counting, {}),
        (counting_in_class, {}),
        (counting_globally, {}),
        (printing, {}),
        (caching, {"cache": nn.Buffer(torch.zeros(4, 16))}),
        (growing, {"kept": None}),
        (on_the_cpu, {"counted": torch.zeros(1)}),
        pytest.param(lambda self, x, out: out if random.random() < 2 else x, {}, id="drawing"),
        pytest.param(
            lambda self, x, out: out * next(self.scales),
            {"scales": iter(range(1, 1000))},
            id="stepping",
        ),
        pytest.param(lambda self, x, out: nn.functional.dropout(out, 0.5), {}, id="dropping"),
        pytest.param(
            lambda self, x, out: self.norm(out), {"norm": nn.BatchNorm1d(16)}, id="normalizing"
        ),
        pytest.param(lambda self, x, out: out * x.sum().item(), {}, id="reading"),
        pytest.param(lambda self, x, out: out * torch.rand(()).ceil(), {}, id="drawing on the CPU"),
        pytest.param(lambda self, x, out: torch.arange(16, device="cuda"), {}, id="known"),
    ],
)
def test_a_call_that_does_more_is_run_each_time(
    more: Callable[..., torch.Tensor],
    attributes: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    SEEN.clear()
    model = doing(more, **attributes)

    def program() -> None:
        torch.manual_seed(0)
        evaluated(model.cuda())

    assert recorded(program)[1] == 0
    assert model.calls == (_CALLS if more in (counting, counting_in_class) else 0)
    assert len(SEEN) == (_CALLS if more is counting_globally else 0)
    assert capsys.readouterr().out.count("called") == (_CALLS if more is printing else 0)
    if more is on_the_cpu:
        assert attributes["counted"] == _CALLS


def test_a_call_with_a_hook_is_run_each_time() -> None:
    SEEN.clear()

    def program() -> None:
        model = Net().cuda()
        model.out.register_forward_hook(lambda *_: SEEN.append(1))
        evaluated(model)

    assert recorded(program)[1] == 0
    assert len(SEEN) == _CALLS


def _with_other_scale(model: Net) -> object:
    model.scale = 3
    model.out = nn.Linear(32, 64).cuda()
    return None


@pytest.mark.parametrize(
    "change",
    [
        _with_other_scale,
        lambda model: model.half() and model.float().double(),
        lambda model: model.hidden.append(nn.GELU()),
        lambda model: model.weights.mul_(2),
        lambda model: model.hidden[0].register_forward_hook(lambda *_: SEEN.append(1)),
        lambda model: torch.set_float32_matmul_precision("high"),
    ],
    ids=["attribute", "dtype", "part", "values", "hook", "switch"],
)
def test_a_change_between_calls_is_seen(change: Callable[[Any], object]) -> None:
    def program() -> None:
        model = Net().cuda()
        evaluated(model)
        change(model)
        for _ in range(2):
            with torch.no_grad():
                model(torch.ones(4, 16, dtype=model.out.weight.dtype).cuda())

    before = torch.get_float32_matmul_precision()
    try:
        ran, _ = recorded(program, repeats=False)
        torch.set_float32_matmul_precision(before)
        steps, num_repeated = recorded(program)
    finally:
        torch.set_float32_matmul_precision(before)

    assert num_repeated == _CALLS - CALLS_RUN
    assert steps == ran


def test_other_shapes_are_run_and_then_repeated() -> None:
    def program() -> None:
        model = Net().cuda()
        with torch.no_grad():
            for rows in (4, 8):
                for _ in range(_CALLS):
                    model(torch.ones(rows, 16).cuda())

    assert_repeats_unseen(program, times=2)


def test_a_call_that_fails_fails_again() -> None:
    class Failing(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            super().forward(x)
            raise ValueError("no output")

    failures = []

    def program() -> None:
        model = Failing().cuda()
        for _ in range(_CALLS):
            try:
                evaluated(model, calls=1)
            except ValueError as error:
                failures.append(str(error))

    assert recorded(program)[1] == 0
    assert failures == ["no output"] * _CALLS


@pytest.mark.parametrize("backend", ["inductor", "eager"])
def test_a_compiled_model_runs_each_time(backend: str) -> None:
    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = torch.addmm(self.bias, x, self.weight)
            return found * 3 if _IS_SCALED else found

    def program() -> None:
        global _IS_SCALED
        model: Any = torch.compile(Scaled(16, 16).cuda(), backend=backend)
        for _IS_SCALED in (False, True):  # which guards read, and not the compiled code
            evaluated(model)

    counters.clear()
    with quiet():
        ran, _ = recorded(program, repeats=False)
        steps, num_repeated = recorded(program)

    assert num_repeated == 0
    assert counters["stats"]["unique_graphs"] == 2 * 2
    assert [step.count for step in steps] == [step.count for step in ran]


def test_the_report_names_the_module_and_the_line() -> None:
    recorder = Recorder(steady_steps=_NEVER)
    with listened_to(recorder):
        evaluated(Net().cuda())

    line = recorder.repeats.report()

    assert len(line) == 1
    assert line[0].startswith("22 of 30 calls of Net at test_calls.py:")
    assert line[0].endswith(
        "are equal to those before them and were not run again (--steps all runs all)"
    )

"""Steps are found without help: in training, accumulation, taking turns, inference, validation."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.fake_cuda.session import fake_cuda
from neusight.predictors.gpu import find_gpu
from neusight.recording.recorder import Recorder
from neusight.recording.recording import (
    Alloc,
    EventRecord,
    EventWait,
    Free,
    HostWork,
    ModelInput,
    OpCall,
    Recording,
    Step,
    Synchronize,
)
from neusight.recording.steps.period_detection import Lookahead
from neusight.recording.tape import EnoughSteps, RunawayLoop
from neusight.timeline.host import PLAIN
from recorded_programs import forecast_of


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 16)).cuda()


def inputs(width: int = 16) -> torch.Tensor:
    return torch.randn(4, width, device="cuda")


def sgd(*nets: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([each for net in nets for each in net.parameters()], lr=0.1)


def update(optimizer: Any, *nets: Callable[[Any], Any], data: torch.Tensor | None = None) -> None:
    """A training step: forward through the networks, one behind the other, backward, a step."""
    out = inputs() if data is None else data
    for net in nets:
        out = net(out)
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def training(num_steps: int = 1000) -> None:
    net = model()
    optimizer = sgd(net)
    for _ in range(num_steps):
        update(optimizer, net)


def evaluate(net: nn.Module, times: int = 1) -> None:
    net.eval()
    with torch.no_grad():
        for _ in range(times):
            net(inputs())
    net.train()


def shape_of(forecast: neusight.Forecast) -> list[tuple[str, int]]:
    """Kinds and counts, runs of one kind joined: what there is however much of it is equal."""
    found: list[tuple[str, int]] = []
    for step in forecast.recording.steps:
        if found and found[-1][0] == step.kind:
            found[-1] = (step.kind, found[-1][1] + step.count)
        else:
            found.append((step.kind, step.count))
    return found


def trained(num_steps: int) -> list[tuple[str, int]]:
    return [("setup", 1), ("train", num_steps)]


def step_is(forecast: neusight.Forecast) -> str:
    return forecast.recording.options["step_is"]


def listened_to(recorder: Recorder) -> AbstractContextManager[None]:
    """What the block does goes to the recorder, and is not priced."""
    return fake_cuda(
        recorder,
        find_gpu("H100"),
        price=lambda call: (),
        host=PLAIN,
        on_query=lambda *query: None,
    )


def recorded(
    program: Callable[[], object],
    *,
    steady_steps: int | None = None,
    max_ops: int | None = None,
    lookahead: Lookahead | None = None,
) -> tuple[list[Step], type[BaseException] | None]:
    """The steps of a program that may be stopped from inside, and what stopped it."""
    recorder = Recorder(steady_steps=steady_steps, max_ops=max_ops)
    recorder.cutter.lookahead = lookahead or recorder.cutter.lookahead
    stopped = None
    with listened_to(recorder):
        try:
            program()
        except (EnoughSteps, RunawayLoop) as error:
            stopped = type(error)
        recorder.cutter.finish()
    return recorder.cutter.steps, stopped


def count(steps: list[Step], kind: str) -> int:
    return sum(step.count for step in steps if step.kind == kind)


# -- training --------------------------------------------------------------------------------------


def test_each_optimizer_step_ends_a_step() -> None:
    forecast = forecast_of(lambda: training(6))

    assert shape_of(forecast)[:2] == trained(6)
    assert forecast.recording.steps[-2].count >= 3


@pytest.mark.parametrize("created_before", [True, False])
def test_accumulated_gradients_belong_to_one_step(created_before: bool) -> None:
    net = nn.Linear(16, 16)
    before = sgd(net) if created_before else None

    def train() -> None:
        net.cuda()
        optimizer = before or sgd(net)
        for number in range(12):
            net(inputs()).sum().backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    forecast = forecast_of(train)

    assert shape_of(forecast)[:2] == trained(3)
    calls = [e for e in forecast.recording.steps[1].entries if isinstance(e, OpCall)]
    assert sum(call.signature.op == "aten::addmm" for call in calls) == 4


@pytest.mark.parametrize("created_before", [True, False])
def test_optimizers_that_take_turns_are_one_cycle(created_before: bool) -> None:
    generator, critic = nn.Linear(16, 16), nn.Linear(16, 1)

    def optimizers() -> tuple[Any, Any]:
        adam = torch.optim.Adam
        return adam(critic.parameters()), adam(generator.parameters())

    before = optimizers() if created_before else None

    def train() -> None:
        generator.cuda()
        critic.cuda()
        of_critic, of_generator = before or optimizers()
        for _ in range(4):
            fake = generator(inputs())
            critic(inputs()).sum().backward()
            update(of_critic, critic, data=fake.detach())
            update(of_generator, critic, data=fake)

    assert shape_of(forecast_of(train))[:2] == trained(4)


def a_teacher_without_gradients() -> None:
    teacher, student = model().eval(), model()
    optimizer = sgd(student)
    for _ in range(4):
        data = inputs()
        with torch.no_grad():
            target = teacher(data)
        update(optimizer, student, lambda out: (out - target).square(), data=data)  # noqa: B023


def layers_called_one_by_one() -> None:
    layers = [nn.Linear(16, 16).cuda() for _ in range(40)]
    optimizer = sgd(*layers)
    for _ in range(4):
        update(optimizer, *layers)


def a_closure(*, by_name: bool = False) -> None:
    net = model()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = net(inputs()).square().sum()
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure=closure) if by_name else optimizer.step(closure)


def checkpointed_blocks() -> None:
    from torch.utils.checkpoint import checkpoint

    blocks = [model(), model()]
    optimizer = sgd(*blocks)
    for _ in range(4):
        x = inputs().requires_grad_()
        for number, block in enumerate(blocks):
            x = checkpoint(block, x, use_reentrant=number == 0)
        update(optimizer, data=x)


def a_scaler() -> None:
    net = model()
    optimizer, scaler = sgd(net), torch.amp.GradScaler("cuda")
    for _ in range(4):
        scaler.scale(net(inputs()).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def the_scripts_profiler() -> None:
    net = model()
    optimizer = sgd(net)
    none = torch.profiler.ProfilerAction.NONE
    with torch.profiler.profile(schedule=lambda step: none) as prof:
        for _ in range(4):
            update(optimizer, net)
            prof.step()


@pytest.mark.parametrize(
    "train",
    [
        a_teacher_without_gradients, layers_called_one_by_one, a_closure,
        partial(a_closure, by_name=True), checkpointed_blocks, a_scaler, the_scripts_profiler,
    ],
)  # fmt: skip
def test_this_does_not_cut_the_step_of_an_optimizer(train: Callable[[], None]) -> None:
    assert shape_of(forecast_of(train))[:2] == trained(4)


@pytest.mark.parametrize(("wait", "num_steps"), [(2, 5), (6, 9)])
def test_a_program_ends_early_only_after_the_first_results_of_its_profiler(
    wait: int, num_steps: int
) -> None:
    plan = torch.profiler.schedule(wait=wait, warmup=1, active=1)
    done: list[str] = []

    def train() -> None:
        net = model()
        optimizer = sgd(net)
        with torch.profiler.profile(
            schedule=plan, on_trace_ready=lambda _: done.append("results")
        ) as prof:
            for _ in range(1000):
                update(optimizer, net)
                prof.step()
        done.append("behind the block")
        update(optimizer, net)
        done.append("another step")

    steps, stopped = recorded(train, steady_steps=3)

    assert done == ["results", "behind the block"]
    assert stopped is EnoughSteps
    assert count(steps, "train") == num_steps


# -- validation and inference ----------------------------------------------------------------------


@pytest.mark.parametrize("validate_first", [True, False])
def test_validation_between_epochs_is_eval(validate_first: bool) -> None:
    def train() -> None:
        net = model()
        optimizer = sgd(net)
        if validate_first:
            evaluate(net, times=2)
        for _ in range(2):
            for _ in range(3):
                update(optimizer, net)
            evaluate(net, times=2)

    found = shape_of(forecast_of(train))

    epochs = [("train", 3), ("eval", 2), ("train", 3), ("eval", 2)]
    assert found[0] == ("setup", 1)
    assert found[1 : 6 if validate_first else 5] == [("eval", 2)] * validate_first + epochs


def test_validation_after_the_very_first_step_is_not_part_of_it() -> None:
    def train() -> None:
        net = model()
        optimizer = sgd(net)
        for _ in range(2):
            update(optimizer, net)
            evaluate(net)

    assert shape_of(forecast_of(train))[1:] == [
        ("train", 1), ("eval", 1), ("train", 1), ("eval", 1)
    ]  # fmt: skip


def test_each_forward_without_gradients_is_a_step_of_inference() -> None:
    assert shape_of(forecast_of(lambda: evaluate(model(), times=6)))[:2] == [
        ("setup", 1),
        ("eval", 6),
    ]


@pytest.mark.parametrize("num_forwards", [1, 3, 50])
def test_so_is_a_forward_with_gradients_that_nobody_uses(num_forwards: int) -> None:
    def infer() -> None:
        net = model().eval()
        for _ in range(num_forwards):
            net(inputs())

    assert shape_of(forecast_of(infer))[:2] == [("setup", 1), ("eval", num_forwards)]


def test_a_block_without_modules_is_one_step() -> None:
    def compute() -> None:
        x = inputs()
        for _ in range(3):
            x = x @ x.T @ x

    assert shape_of(forecast_of(compute)) == [("eval", 1)]


# -- what takes turns ------------------------------------------------------------------------------


def num_ops_of(forecast: neusight.Forecast, kind: str) -> list[int]:
    """Ops of each run of equal steps of that kind."""
    return [
        sum(isinstance(entry, OpCall) for entry in step.entries)
        for step in forecast.recording.steps
        if step.kind == kind
    ]


def gan(num_iterations: int, *, generator_at: int = 4) -> None:
    """Five updates of a critic and one of the generator, after the critic's of that number."""
    generator, critic = model(), model()
    of_generator, of_critic = (torch.optim.RMSprop(net.parameters()) for net in (generator, critic))
    for _ in range(num_iterations):
        for number in range(5):
            critic(generator(inputs()).detach()).sum().backward()
            of_critic.step()
            of_critic.zero_grad()
            if number == generator_at:
                critic(generator(inputs())).sum().backward()
                of_generator.step()
                of_generator.zero_grad()


@pytest.mark.parametrize("generator_first", [True, False])
def test_five_updates_of_the_critic_and_one_of_the_generator_are_one_step(
    generator_first: bool,
) -> None:
    forecast = forecast_of(lambda: gan(6, generator_at=0 if generator_first else 4))

    assert shape_of(forecast)[:2] == trained(6)
    if not generator_first:
        assert step_is(forecast) == (
            "5 steps of RMSprop of critic, then one step of RMSprop of generator"
        )


def test_a_thread_that_trains_is_not_ended() -> None:
    done = []

    def train() -> None:
        net = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number in range(9):
            update(optimizer, net, data=torch.ones(2, 8, device="cuda"))
            done.append(number)

    def program() -> None:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()

    steps, stopped = recorded(program, steady_steps=3)

    assert len(done) == count(steps, "train") == 9
    assert stopped is None


def test_a_script_is_not_ended_before_all_its_optimizers_stepped() -> None:
    steps, stopped = recorded(lambda: gan(1000), steady_steps=5)

    assert stopped is EnoughSteps
    assert count(steps, "train") == 6


@pytest.mark.slow
def test_thousands_of_iterations_in_turn_keep_the_memory_of_a_few() -> None:
    steps, _ = recorded(lambda: gan(200))

    assert count(steps, "train") == 200
    assert len(steps) <= 6


def test_an_optimizer_that_never_steps_is_not_waited_for_for_long() -> None:
    spare = nn.Linear(2, 2)

    def train() -> None:
        unused = sgd(spare)
        training()
        assert unused.param_groups

    steps, stopped = recorded(train, steady_steps=5, lookahead=Lookahead(least_ops=500))

    assert stopped is EnoughSteps
    assert 6 <= count(steps, "train") < 30


def reinforce(num_iterations: int, updates: int = 16, calls: int = 32) -> None:
    agent = model()
    optimizer = torch.optim.Adam(agent.parameters())
    for _ in range(num_iterations):
        for _ in range(calls):
            with torch.no_grad():
                agent(inputs())
        for _ in range(updates):
            update(optimizer, agent)


def test_an_agent_that_acts_in_evaluation_mode_between_updates_does_not_cut_their_cycle() -> None:
    """As TD3 does: the actor is updated after every second update of the critic."""

    def train() -> None:
        actor, critic = model(), model()
        of_actor, of_critic = (torch.optim.Adam(net.parameters()) for net in (actor, critic))
        for number in range(40):
            actor.eval()
            with torch.no_grad():
                actor(inputs()[:1]).cpu()
            actor.train()
            update(of_critic, critic)
            if number % 2:
                update(of_actor, actor, critic)

    forecast = forecast_of(train)

    found = [step for step in forecast.recording.steps if step.kind == "train"]
    assert 18 <= sum(step.count for step in found) <= 20
    most = max(found, key=lambda step: step.count)
    calls = [entry.signature.op for entry in most.entries if isinstance(entry, OpCall)]
    assert calls.count("aten::_foreach_lerp_") == 3
    assert forecast.verdict.batch.samples == 8


def test_a_validation_of_one_batch_after_each_update_stays_apart() -> None:
    def train() -> None:
        net = model()
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(12):
            update(optimizer, net)
            evaluate(net)

    found: Counter[str] = Counter()
    for step in forecast_of(train).recording.steps:
        found[step.kind] += step.count
    assert found == {"setup": 1, "train": 12, "eval": 12}


def test_a_rollout_and_the_updates_after_it_are_one_step() -> None:
    forecast = forecast_of(lambda: reinforce(5))

    assert shape_of(forecast)[:2] == trained(5)
    assert step_is(forecast) == "32 calls without gradients, then 16 steps of Adam"
    assert forecast.recording.steps[1].batch.samples == 32 * 4
    _, stopped = recorded(lambda: reinforce(1000), steady_steps=3)
    assert stopped is EnoughSteps


def test_a_few_calls_are_a_rollout_where_the_updates_use_them_again() -> None:
    def of_targets() -> None:
        """Each network is updated once, by what another computes: no rollout."""
        actor, critic, target = model(), model(), model()
        of_actor, of_critic = (torch.optim.Adam(net.parameters()) for net in (actor, critic))
        for _ in range(5):
            with torch.no_grad():
                target(inputs())
                critic(inputs())
            for optimizer, net in ((of_critic, critic), (of_actor, actor)):
                update(optimizer, net, data=torch.ones(16, 16, device="cuda"))

    used_again, once = forecast_of(lambda: reinforce(5, calls=3)), forecast_of(of_targets)

    assert step_is(used_again) == "3 calls without gradients, then 16 steps of Adam"
    assert used_again.recording.steps[1].batch.samples == 3 * 4
    assert step_is(once).startswith("one call without gradients, then one step of Adam of critic")
    assert once.recording.steps[1].batch.samples == 16


@pytest.mark.parametrize("draws", [True, False])
def test_an_agent_in_evaluation_mode_rolls_out_where_it_draws_its_actions(draws: bool) -> None:
    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, seen: torch.Tensor) -> torch.Tensor:
            scores = self.layer(seen)
            actions: torch.Tensor
            actions = scores.softmax(-1).multinomial(1) if draws else scores.argmax(-1)
            return actions

    def train() -> None:
        agent = Agent().cuda()
        _ = [torch.ones(2, device="cuda") for _ in range(20)]  # a setup of more ops than a call
        optimizer = torch.optim.Adam(agent.parameters())
        for _ in range(5):
            agent.eval()
            for _ in range(12):
                with torch.no_grad():
                    agent(torch.ones(2, 8, device="cuda")).tolist()
            agent.train()
            for _ in range(6):
                update(optimizer, agent.layer, data=torch.ones(16, 8, device="cuda"))

    forecast = forecast_of(train)

    steps = forecast.recording.steps
    if draws:
        assert step_is(forecast) == "12 calls without gradients, then 6 steps of Adam"
        assert {step.batch.samples for step in steps if step.kind == "train"} == {24}
    else:  # it validates
        assert step_is(forecast) == "one step of Adam"
        assert {step.batch.samples for step in steps if step.kind == "train"} == {16}


def test_an_iteration_may_be_long() -> None:
    """Of more ops than a longer cycle is looked for in where no rollout was seen."""
    steps, stopped = recorded(
        lambda: reinforce(1000, updates=64), steady_steps=2, lookahead=Lookahead(least_ops=100)
    )

    assert stopped is EnoughSteps
    assert [step.kind for step in steps] == ["setup", *["train"] * 3]


def test_an_optimizer_that_steps_others_takes_one_turn() -> None:
    class Both(torch.optim.Optimizer):
        def __init__(self, nets: list[nn.Sequential]) -> None:
            super().__init__([each for net in nets for each in net.parameters()], {})
            self.parts = [sgd(net) for net in nets]

        def step(self, closure: Any = None) -> Any:
            for part in self.parts:
                part.step()

    def train() -> None:
        nets = [model(), model()]
        both = Both(nets)
        for _ in range(6):
            update(both, *nets)

    forecast = forecast_of(train)

    assert dict(shape_of(forecast))["train"] == 6
    assert step_is(forecast) == "one step of Both"


def test_a_second_optimizer_may_join_later() -> None:
    def train() -> None:
        nets = [model(), model()]
        optimizers = [sgd(nets[0])]
        for number in range(12):
            if number == 6:
                optimizers.append(sgd(nets[1]))
            for net, optimizer in zip(nets, optimizers, strict=False):
                update(optimizer, net)

    forecast = forecast_of(train)

    assert 12 <= dict(shape_of(forecast))["train"] <= 13
    assert step_is(forecast) == "one step of SGD, then one step of SGD"


@pytest.mark.parametrize(
    ("gradients", "num_modules"), [(False, 1), (False, 2), (True, 2), (False, 40)]
)
def test_modules_called_in_turn_are_one_step_of_inference(
    gradients: bool, num_modules: int
) -> None:
    def infer() -> None:
        nets = [nn.Linear(16, 16).cuda() for _ in range(num_modules)]
        with torch.set_grad_enabled(gradients):
            for _ in range(5):
                x = inputs()
                for net in nets:
                    x = nn.ReLU()(net(x))

    forecast = forecast_of(infer)

    assert shape_of(forecast)[:2] == [("setup", 1), ("eval", 5)]
    if num_modules == 40:
        assert step_is(forecast) == "80 calls in turn, of 41 different ones"


def test_an_encoder_called_once_does_not_make_all_of_decoding_one_step() -> None:
    def generate() -> None:
        evaluate(model())
        evaluate(model(), times=100)

    steps, stopped = recorded(generate, steady_steps=5)

    assert stopped is EnoughSteps
    assert count(steps, "eval") == 6


# -- without an optimizer --------------------------------------------------------------------------


def update_data(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.data -= 0.1 * parameter.grad
    parameter.grad = None


def update_in_place(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    with torch.no_grad():
        parameter -= 0.1 * parameter.grad
        parameter.grad.zero_()


def train_by_hand(
    net: nn.Module, num_steps: int, change: Callable[[torch.Tensor], None] = update_data
) -> None:
    for _ in range(num_steps):
        net(inputs()).sum().backward()
        for parameter in net.parameters():
            change(parameter)


@pytest.mark.parametrize("change", [update_data, update_in_place])
@pytest.mark.parametrize("rounds", [1, 4])
def test_training_without_an_optimizer_has_steps(
    change: Callable[[torch.Tensor], None], rounds: int
) -> None:
    def train() -> None:
        net = model()
        for _ in range(20):
            for _ in range(rounds - 1):
                net(inputs()).sum().backward()
            train_by_hand(net, 1, change)

    forecast = forecast_of(train)

    assert shape_of(forecast) == trained(20)
    assert "(no torch.optim)" in step_is(forecast)


def test_validation_between_epochs_by_hand_is_eval() -> None:
    def train() -> None:
        net = model()
        for _ in range(2):
            train_by_hand(net, 5)
            evaluate(net)

    found = [(kind, number) for kind, number in shape_of(forecast_of(train)) if kind != "setup"]
    assert found == [("train", 5), ("eval", 1), ("train", 5), ("eval", 1)]


def test_training_by_hand_is_ended_after_enough_steps() -> None:
    steps, stopped = recorded(lambda: train_by_hand(model(), 1000), steady_steps=5)

    assert stopped is EnoughSteps
    assert count(steps, "train") == 6
    assert len(steps) <= 4


@pytest.mark.parametrize("trains", [True, False])
def test_functions_without_modules_have_steps_too(trains: bool) -> None:
    def compute() -> None:
        weights = [torch.randn(16, 16, device="cuda", requires_grad=trains) for _ in range(2)]
        for _ in range(20):
            x = inputs()
            for weight in weights:
                x = (x @ weight).relu()
            if trains:
                x.sum().backward()
                for weight in weights:
                    update_data(weight)
        if not trains:
            x.sum().item()

    forecast = forecast_of(compute)

    if trains:
        assert shape_of(forecast) == trained(20)
    else:
        assert shape_of(forecast) == [("setup", 1), ("eval", 20), ("setup", 1)]
        assert step_is(forecast) == "5 ops that come 20 times"
        assert forecast.verdict.num_steps == 19


def test_equal_ops_on_two_streams_are_two_ops_of_a_step() -> None:
    def compute() -> None:
        x, side = inputs(), torch.cuda.Stream()
        for _ in range(20):
            with torch.cuda.stream(side):
                x.relu()
            x.relu()

    assert step_is(forecast_of(compute)) == "2 ops that come 20 times"


def test_a_block_of_different_ops_is_one_step() -> None:
    forecast = forecast_of(lambda: [inputs(width).sum() for width in range(8, 20)])

    assert shape_of(forecast) == [("eval", 1)]
    assert step_is(forecast) == "all of it"


def test_the_summary_says_what_was_taken_for_a_step() -> None:
    forecast = forecast_of(lambda: training(4))

    assert "  step      one step of SGD; 4 training, 2 setup" in forecast.summary().splitlines()
    assert forecast.to_json()["step_is"] == "one step of SGD"


# -- what the script says --------------------------------------------------------------------------


def test_steps_that_the_script_names_are_the_only_ones() -> None:
    with neusight.forecast_on("H100") as forecast:
        net = model()
        optimizer = sgd(net)
        for _ in range(4):
            for _ in range(2):
                update(optimizer, net)
            forecast.step()

    found = [step for step in forecast.recording.steps if step.kind == "train"]
    assert found[-1].count == 3
    steady = [e for e in found[-1].entries if isinstance(e, OpCall)]
    assert sum(call.signature.op == "aten::addmm" for call in steady) == 4


def test_steps_cut_before_the_script_spoke_are_setup() -> None:
    with neusight.forecast_on("H100") as forecast:
        net = model()
        optimizer = sgd(net)
        for _ in range(6):
            update(optimizer, net, data=torch.randn(64, 16, device="cuda"))
        for _ in range(5):
            for _ in range(3):
                update(optimizer, net)
            forecast.step()

    assert [kind for kind, _ in shape_of(forecast)] == ["setup", "train"]
    assert dict(shape_of(forecast))["train"] == 5
    steady = num_ops_of(forecast, "train")[-1]
    assert sum(row["count"] for row in forecast.steps if row["kind"] == "train") == 5
    assert steady > 2 * num_ops_of(forecast, "train")[0]  # whose beginning nobody could know
    assert step_is(forecast) == "what the script says, from one step() to the next"


def test_what_takes_turns_before_the_first_named_step_belongs_to_it() -> None:
    with neusight.forecast_on("H100") as forecast:
        critic, generator = model(), model()
        optimizers = [sgd(critic), sgd(generator)]
        for _ in range(4):
            for optimizer in (*optimizers[:1] * 5, optimizers[1]):
                update(optimizer, generator, critic)
            forecast.step()

    assert shape_of(forecast)[:2] == trained(4)


# -- folding ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_thousands_of_equal_steps_keep_the_memory_of_a_few() -> None:
    num_objects = []

    def train() -> None:
        net = nn.Linear(8, 8).cuda()
        data = torch.ones(2, 8, device="cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True)
        for number in range(2000):
            update(optimizer, net, data=data)
            data.sum().item()
            if number in (500, 1999):
                gc.collect()
                num_objects.append(len(gc.get_objects()))

    steps, _ = recorded(train)

    assert len(steps) <= 6
    assert count(steps, "train") == 2000
    assert num_objects[1] - num_objects[0] < 500  # not one for each of 1500 steps


def test_equal_steps_fold_though_events_are_new_and_cpu_work_differs() -> None:
    def train() -> None:
        net = model()
        optimizer = sgd(net)
        for number in range(20):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            data = torch.ones(4, 16)
            for _ in range(20 + number % 3):
                data = data + 1
            torch.cuda.current_stream().wait_event(start)
            update(optimizer, net, data=data.cuda())
            end.record()
            end.synchronize()

    steps, _ = recorded(train)

    found = [step for step in steps if step.kind == "train"]
    assert count(steps, "train") == 20
    assert len(found) <= 3
    steady = max(found, key=lambda step: step.count).entries
    assert [e.event for e in steady if isinstance(e, EventRecord)] == [1, 2]
    assert [e.event for e in steady if isinstance(e, EventWait)] == [2]
    assert [e.event for e in steady if isinstance(e, Synchronize) and e.event is not None] == [1]
    assert any(isinstance(entry, HostWork) for entry in steady)


def test_a_step_that_differs_is_kept_apart() -> None:
    def train() -> None:
        net = model()
        optimizer = sgd(net)
        for number in range(9):
            update(optimizer, net, data=torch.randn(8 if number == 5 else 4, 16, device="cuda"))

    steps, _ = recorded(train)

    sizes = [
        next(e.signature.input_tensors[1].shape[0] for e in step.entries
             if isinstance(e, OpCall) and e.signature.op == "aten::addmm")
        for step in steps if step.kind == "train"
    ]  # fmt: skip
    assert [b for a, b in pairwise([0, *sizes]) if a != b] == [4, 8, 4]


def num_allocations(step: Step) -> int:
    return sum(isinstance(entry, Alloc) for entry in step.entries)


def test_every_storage_that_is_freed_was_allocated() -> None:
    recording: Recording = forecast_of(lambda: training(5)).recording

    index = 0
    num_allocated: dict[int, int] = {}
    for step in recording.steps:
        num_allocated.update(dict.fromkeys(range(index, index + step.count), num_allocations(step)))
        for entry in step.entries:
            if isinstance(entry, Free):
                home = index + step.count - 1 - entry.storage.age
                assert entry.storage.ordinal < num_allocated[home]
        index += step.count


# -- ending the script -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "kind"),
    [(training, "train"), (lambda: evaluate(model(), times=1000), "eval")],
    ids=["training", "inference"],
)
def test_enough_steady_steps_end_the_script(program: Callable[[], None], kind: str) -> None:
    steps, stopped = recorded(program, steady_steps=5)

    assert stopped is EnoughSteps
    assert count(steps, kind) == 6


def test_evaluation_before_training_does_not_end_it() -> None:
    def train() -> None:
        net = model()
        optimizer = sgd(net)
        evaluate(net, times=50)
        for _ in range(1000):
            update(optimizer, net)

    steps, stopped = recorded(train, steady_steps=5)

    assert stopped is EnoughSteps
    assert (count(steps, "eval"), count(steps, "train")) == (50, 6)


def test_a_bare_except_does_not_keep_the_script_going() -> None:
    swallowed = []

    def train() -> None:
        net = model()
        optimizer = sgd(net)
        for number in range(1000):
            try:
                update(optimizer, net)
            except:  # noqa: E722  (what some scripts do)
                swallowed.append(number)
                if len(swallowed) == 3:
                    raise

    steps, stopped = recorded(train, steady_steps=5)

    assert stopped is EnoughSteps
    assert swallowed == [5, 6, 7] or swallowed == [6, 7, 8]
    assert count(steps, "train") == 6


def test_clean_up_after_the_end_may_still_compute() -> None:
    cleaned = []

    def train() -> None:
        net = model()
        optimizer = sgd(net)
        try:
            for _ in range(1000):
                update(optimizer, net)
        finally:
            net.cpu()
            cleaned.append(torch.ones(2, device="cuda").sum().item())

    _, stopped = recorded(train, steady_steps=5)

    assert stopped is EnoughSteps
    assert cleaned == [2.0]


@pytest.mark.parametrize(
    "read",
    [torch.Tensor.item, float, lambda x: x, lambda x: float(f"{x:.5f}"), torch.Tensor.cpu],
    ids=["item", "float", "compared", "printed", "cpu"],
)
def test_a_loop_that_waits_for_a_small_loss_ends(read: Callable[[Any], Any]) -> None:
    def train() -> None:
        net = model()
        optimizer = sgd(net)
        loss = torch.tensor(10.0, device="cuda")
        for _ in range(10_000):
            if read(loss.detach()) < 0.5:
                return
            loss = net(inputs()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        raise AssertionError("the loop did not end")

    _, stopped = recorded(train)

    assert stopped is None


def test_early_stopping_sees_progress() -> None:
    def train() -> None:
        net = model()
        optimizer = sgd(net)
        best, patience, epochs = float("inf"), 0, 0
        while patience < 3 and epochs < 20:
            update(optimizer, net)
            loss = net(inputs()).mean().item()
            patience = 0 if loss < best else patience + 1
            best, epochs = min(best, loss), epochs + 1
        assert epochs == 20

    recorded(train)


def test_an_endless_loop_is_stopped_and_its_line_named() -> None:
    line = 0

    def wait() -> None:
        nonlocal line
        x = inputs()
        line = sys._getframe().f_lineno + 2
        while not (x.sum() > 1e9):
            x = x * 2

    with pytest.raises(RunawayLoop) as caught, listened_to(Recorder(max_ops=500)):
        wait()

    named = int(str(caught.value).partition("test_cutter.py:")[2].partition(":")[0])
    assert named in (line - 1, line, line + 1)
    assert "--max-ops" in str(caught.value)


def test_a_bare_except_does_not_keep_an_endless_loop_going() -> None:
    swallowed = 0

    def wait() -> None:
        nonlocal swallowed
        x = inputs()
        while True:
            try:
                x = x * 2
            except:  # noqa: E722  (what some scripts do)
                swallowed += 1
                if swallowed == 2:
                    raise

    with pytest.raises(RunawayLoop), listened_to(Recorder(max_ops=500)):
        wait()


def test_long_training_is_no_endless_loop() -> None:
    steps, stopped = recorded(lambda: training(100), max_ops=100)

    assert stopped is None
    assert count(steps, "train") == 100


def test_parameters_made_on_the_gpu_are_known_as_such_before_any_optimizer_steps() -> None:
    with neusight.forecast_on("H100") as forecast:
        first = nn.Linear(1024, 1024, device="cuda")
        second = nn.Linear(1024, 1024, device="cuda")
        data = torch.randn(8, 1024, device="cuda")
        for _ in range(3):
            first(data).mean().backward()
            second(data).mean().backward()

    held = {(row.kind, row.num_bytes) for row in forecast.memory.alive if row.num_bytes > 2**20}
    assert ("parameter", 2 * 4 * (1024 * 1024 + 1024)) in held


def test_storages_freed_together_are_kept_in_one_order() -> None:
    def program(order: tuple[int, ...]) -> Recording:
        with neusight.forecast_on("H100") as forecast:
            kept = {number: torch.ones(8, device="cuda") for number in range(4)}
            for number in order:
                del kept[number]
            torch.ones(8, device="cuda")
        return forecast.recording

    assert program((2, 0, 3, 1)) == program((0, 1, 2, 3))


# -- names of optimizers that take turns -----------------------------------------------------------


class Generator(nn.Linear):
    """Makes samples."""


class Discriminator(nn.Linear):
    """Judges them."""


def modules_of_different_classes() -> None:
    generator, discriminator = Generator(16, 16).cuda(), Discriminator(16, 1).cuda()
    of_generator, of_discriminator = sgd(generator), sgd(discriminator)
    for _ in range(4):
        made = generator(inputs())
        update(of_discriminator, discriminator, data=made.detach())
        update(of_generator, discriminator, data=made)


class Trainer:
    def __init__(self) -> None:
        self.actor, self.critic = model(), model()
        self.of_actor, self.of_critic = sgd(self.actor), sgd(self.critic)

    def update(self) -> None:
        self.actor(inputs()).sum().backward()
        self.of_actor.step()
        self.critic(inputs()).sum().backward()
        self.of_critic.step()


def equal_modules_of_a_trainer() -> None:
    trainer = Trainer()
    for _ in range(4):
        trainer.update()


def equal_modules_in_a_list() -> None:
    nets = [model(), model()]
    optimizers = [sgd(net) for net in nets]
    for _ in range(4):
        for net, optimizer in zip(nets, optimizers, strict=True):
            update(optimizer, net)


@pytest.mark.parametrize(
    ("train", "first", "second"),
    [
        (modules_of_different_classes, " of Discriminator", " of Generator"),
        (equal_modules_of_a_trainer, " of actor", " of critic"),
        (equal_modules_in_a_list, "", ""),
    ],
)
def test_optimizers_that_take_turns_are_named_by_the_modules_they_update(
    train: Callable[[], None], first: str, second: str
) -> None:
    forecast = forecast_of(train)

    assert step_is(forecast) == f"one step of SGD{first}, then one step of SGD{second}"


# -- speculative decoding --------------------------------------------------------------------------


def test_a_round_of_drafts_and_their_verification_is_a_step() -> None:
    def program() -> None:
        target, draft = (nn.Sequential(nn.Embedding(64, 8), nn.Linear(8, 64)).cuda() for _ in "ab")
        ids = torch.zeros(1, 32, dtype=torch.long, device="cuda")
        with torch.no_grad():
            target(ids), draft(ids)
            for _ in range(200):
                for _ in range(4):
                    draft(ids[:, :1])
                target(ids[:, :5])

    steps, stopped = recorded(program, steady_steps=5, lookahead=Lookahead(least_ops=100))

    inputs = [entry for entry in steps[-1].entries if isinstance(entry, ModelInput)]
    assert stopped is EnoughSteps
    assert [(entry.length, entry.drafted) for entry in inputs] == [(1, 0)] * 4 + [(5, 4)]

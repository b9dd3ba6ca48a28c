"""Steps are found without help: in training, accumulation, taking turns, inference, validation."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
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


def model(width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.Dropout(0.1), nn.Linear(width, width)).cuda()


def inputs(width: int = 16) -> torch.Tensor:
    return torch.randn(4, width, device="cuda")


def shape_of(forecast: neusight.Forecast) -> list[tuple[str, int]]:
    """Kinds and counts, runs of one kind joined: what there is however much of it is equal."""
    found: list[tuple[str, int]] = []
    for step in forecast.recording.steps:
        if found and found[-1][0] == step.kind:
            found[-1] = (step.kind, found[-1][1] + step.count)
        else:
            found.append((step.kind, step.count))
    return found


def forecast_of(program: Callable[[neusight.Forecast], object]) -> neusight.Forecast:
    with neusight.forecast_on("H100") as forecast:
        program(forecast)
    return forecast


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
    def train(_: object) -> None:
        net = model()
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(6):
            net(inputs()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    forecast = forecast_of(train)

    assert shape_of(forecast)[:2] == [("setup", 1), ("train", 6)]
    assert forecast.recording.steps[-2].count >= 3


@pytest.mark.parametrize("created_before", [True, False])
def test_accumulated_gradients_belong_to_one_step(created_before: bool) -> None:
    net = nn.Linear(16, 16)
    before = torch.optim.SGD(net.parameters(), lr=0.1) if created_before else None

    def train(_: object) -> None:
        net.cuda()
        optimizer = before or torch.optim.SGD(net.parameters(), lr=0.1)
        for number in range(12):
            net(inputs()).sum().backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    forecast = forecast_of(train)

    assert shape_of(forecast)[:2] == [("setup", 1), ("train", 3)]
    calls = [e for e in forecast.recording.steps[1].entries if isinstance(e, OpCall)]
    assert sum(call.signature.op == "aten::addmm" for call in calls) == 4


@pytest.mark.parametrize("created_before", [True, False])
def test_optimizers_that_take_turns_are_one_cycle(created_before: bool) -> None:
    generator, critic = nn.Linear(16, 16), nn.Linear(16, 1)

    def optimizers() -> tuple[Any, Any]:
        adam = torch.optim.Adam
        return adam(critic.parameters()), adam(generator.parameters())

    before = optimizers() if created_before else None

    def train(_: object) -> None:
        generator.cuda()
        critic.cuda()
        of_critic, of_generator = before or optimizers()
        for _ in range(4):
            of_critic.zero_grad()
            fake = generator(inputs())
            critic(inputs()).sum().backward()
            critic(fake.detach()).sum().backward()
            of_critic.step()
            of_generator.zero_grad()
            critic(fake).sum().backward()
            of_generator.step()

    assert shape_of(forecast_of(train))[:2] == [("setup", 1), ("train", 4)]


def test_a_teacher_without_gradients_does_not_cut() -> None:
    def train(_: object) -> None:
        teacher, student = model().eval(), model()
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        for _ in range(4):
            data = inputs()
            with torch.no_grad():
                target = teacher(data)
            (student(data) - target).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert shape_of(forecast_of(train))[:2] == [("setup", 1), ("train", 4)]


def test_layers_called_one_by_one_are_not_inference() -> None:
    def train(_: object) -> None:
        layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(40)]).cuda()
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        for _ in range(3):
            x = inputs()
            for layer in layers:
                x = layer(x)
            x.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert shape_of(forecast_of(train))[:2] == [("setup", 1), ("train", 3)]


def test_a_closure_steps_once() -> None:
    def train(_: object) -> None:
        net = model()
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = net(inputs()).square().sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)

    assert shape_of(forecast_of(train))[:2] == [("setup", 1), ("train", 3)]


def test_checkpointed_blocks_do_not_cut() -> None:
    from torch.utils.checkpoint import checkpoint

    def train(_: object) -> None:
        blocks = [model(), model()]
        optimizer = torch.optim.SGD([p for b in blocks for p in b.parameters()], lr=0.1)
        for _ in range(3):
            x = inputs().requires_grad_()
            for number, block in enumerate(blocks):
                x = checkpoint(block, x, use_reentrant=number == 0)
            x.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert shape_of(forecast_of(train))[:2] == [("setup", 1), ("train", 3)]


# -- validation and inference ----------------------------------------------------------------------


@pytest.mark.parametrize("validate_first", [True, False])
def test_validation_between_epochs_is_eval(validate_first: bool) -> None:
    def train(_: object) -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def validate() -> None:
            net.eval()
            with torch.no_grad():
                for _ in range(2):
                    net(inputs())
            net.train()

        if validate_first:
            validate()
        for _ in range(2):
            for _ in range(3):
                net(inputs()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            validate()

    found = shape_of(forecast_of(train))
    epochs = [("train", 3), ("eval", 2), ("train", 3), ("eval", 2)]
    assert found[0] == ("setup", 1)
    assert found[1 : 6 if validate_first else 5] == [("eval", 2)] * validate_first + epochs


def test_validation_after_the_very_first_step_is_not_part_of_it() -> None:
    def train(_: object) -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            net(inputs()).sum().backward()
            optimizer.step()
            net.eval()
            with torch.no_grad():
                net(inputs())
            net.train()

    assert shape_of(forecast_of(train))[1:] == [
        ("train", 1), ("eval", 1), ("train", 1), ("eval", 1)
    ]  # fmt: skip


def test_each_forward_without_gradients_is_a_step_of_inference() -> None:
    def infer(_: object) -> None:
        net = model().eval()
        with torch.no_grad():
            for _ in range(6):
                net(inputs()).argmax(-1)

    found = shape_of(forecast_of(infer))
    assert found[:2] == [("setup", 1), ("eval", 6)]


@pytest.mark.parametrize("num_forwards", [1, 3, 50])
def test_so_is_a_forward_with_gradients_that_nobody_uses(num_forwards: int) -> None:
    def infer(_: object) -> None:
        net = model().eval()
        for _ in range(num_forwards):
            net(inputs())

    assert shape_of(forecast_of(infer))[:2] == [("setup", 1), ("eval", num_forwards)]


def test_a_block_without_modules_is_one_step() -> None:
    def compute(_: object) -> None:
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


def step_is(forecast: neusight.Forecast) -> str:
    return forecast.recording.options["step_is"]


@pytest.mark.parametrize("generator_first", [True, False])
def test_five_updates_of_the_critic_and_one_of_the_generator_are_one_step(
    generator_first: bool,
) -> None:
    def train(_: object) -> None:
        generator, critic = model(), model()
        of_generator, of_critic = (
            torch.optim.RMSprop(net.parameters()) for net in (generator, critic)
        )
        for number in range(30):
            (critic(inputs()) - critic(generator(inputs()).detach())).mean().backward()
            of_critic.step()
            of_critic.zero_grad()
            if number % 5 == (0 if generator_first else 4):
                critic(generator(inputs())).mean().backward()
                of_generator.step()
                of_generator.zero_grad()

    forecast = forecast_of(train)

    assert shape_of(forecast)[:2] == [("setup", 1), ("train", 6)]
    if not generator_first:
        assert step_is(forecast) == (
            "5 steps of RMSprop of critic, then one step of RMSprop of generator"
        )


def gan_of(num_iterations: int) -> Callable[[], None]:
    def train() -> None:
        generator, critic = model(), model()
        of_generator, of_critic = (
            torch.optim.RMSprop(net.parameters()) for net in (generator, critic)
        )
        for _ in range(num_iterations):
            for _ in range(5):
                critic(generator(inputs()).detach()).mean().backward()
                of_critic.step()
                of_critic.zero_grad()
            critic(generator(inputs())).mean().backward()
            of_generator.step()
            of_generator.zero_grad()

    return train


def test_a_script_is_not_ended_before_all_its_optimizers_stepped() -> None:
    steps, stopped = recorded(gan_of(1000), steady_steps=5)

    assert stopped is EnoughSteps
    assert count(steps, "train") == 6


@pytest.mark.slow
def test_thousands_of_iterations_in_turn_keep_the_memory_of_a_few() -> None:
    steps, _ = recorded(gan_of(200))

    assert count(steps, "train") == 200
    assert len(steps) <= 6


def test_an_optimizer_that_never_steps_is_not_waited_for_for_long() -> None:
    spare = nn.Linear(2, 2)

    def train() -> None:
        net = model()
        optimizer, unused = (torch.optim.SGD(p.parameters(), lr=0.1) for p in (net, spare))
        for _ in range(1000):
            net(inputs()).sum().backward()
            optimizer.step()
        assert unused.param_groups

    steps, stopped = recorded(train, steady_steps=5, lookahead=Lookahead(least_ops=500))

    assert stopped is EnoughSteps
    assert 6 <= count(steps, "train") < 30


def reinforce(num_iterations: int, updates: int = 16) -> Callable[[object], None]:
    def train(_: object) -> None:
        agent = model()
        optimizer = torch.optim.Adam(agent.parameters())
        for _ in range(num_iterations):
            for _ in range(32):
                with torch.no_grad():
                    agent(inputs())
            for _ in range(updates):
                agent(inputs()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    return train


def test_an_agent_that_acts_in_evaluation_mode_between_updates_does_not_cut_their_cycle() -> None:
    """As TD3 does: the actor is updated after every second update of the critic."""

    def train(_: object) -> None:
        actor, critic = model(), model()
        of_actor = torch.optim.Adam(actor.parameters())
        of_critic = torch.optim.Adam(critic.parameters())
        for number in range(40):
            actor.eval()
            with torch.no_grad():
                actor(inputs()[:1]).cpu()
            actor.train()
            critic(inputs()).sum().backward()
            of_critic.step()
            if number % 2:
                critic(actor(inputs())).sum().backward()
                of_actor.step()

    forecast = forecast_of(train)

    trained = [step for step in forecast.recording.steps if step.kind == "train"]
    assert 18 <= sum(step.count for step in trained) <= 20
    most = max(trained, key=lambda step: step.count)
    calls = [entry.signature.op for entry in most.entries if isinstance(entry, OpCall)]
    assert calls.count("aten::_foreach_lerp_") == 3
    assert forecast.verdict.batch.samples == 8


def test_a_validation_of_one_batch_after_each_update_stays_apart() -> None:
    def train(_: object) -> None:
        net = model()
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(12):
            net.train()(inputs()).sum().backward()
            optimizer.step()
            with torch.no_grad():
                net.eval()(inputs())

    assert dict(count_by_kind(forecast_of(train))) == {"setup": 1, "train": 12, "eval": 12}


def count_by_kind(forecast: neusight.Forecast) -> Counter[str]:
    found: Counter[str] = Counter()
    for step in forecast.recording.steps:
        found[step.kind] += step.count
    return found


def test_a_rollout_and_the_updates_after_it_are_one_step() -> None:
    forecast = forecast_of(reinforce(5))

    assert shape_of(forecast)[:2] == [("setup", 1), ("train", 5)]
    assert step_is(forecast) == "32 calls without gradients, then 16 steps of Adam"
    assert forecast.recording.steps[1].batch.samples == 32 * 4
    _, stopped = recorded(lambda: reinforce(1000)(None), steady_steps=3)
    assert stopped is EnoughSteps


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

    def train(_: object) -> None:
        agent = Agent().cuda()
        optimizer = torch.optim.Adam(agent.parameters())
        for _ in range(5):
            agent.eval()
            for _ in range(12):
                with torch.no_grad():
                    agent(torch.ones(2, 8, device="cuda")).tolist()
            agent.train()
            for _ in range(6):
                agent.layer(torch.ones(16, 8, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

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
    train = reinforce(1000, updates=64)

    steps, stopped = recorded(
        lambda: train(None), steady_steps=2, lookahead=Lookahead(least_ops=100)
    )

    assert stopped is EnoughSteps
    assert [step.kind for step in steps] == ["setup", *["train"] * 3]


def test_an_optimizer_that_steps_others_takes_one_turn() -> None:
    class Both(torch.optim.Optimizer):
        def __init__(self, nets: list[nn.Sequential]) -> None:
            super().__init__([each for net in nets for each in net.parameters()], {})
            self.parts = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]

        def step(self, closure: Any = None) -> Any:
            for part in self.parts:
                part.step()

    def train(_: object) -> None:
        nets = [model(), model()]
        both = Both(nets)
        for _ in range(6):
            nets[1](nets[0](inputs())).sum().backward()
            both.step()
            both.zero_grad()

    forecast = forecast_of(train)

    assert dict(shape_of(forecast))["train"] == 6
    assert step_is(forecast) == "one step of Both"


def test_a_second_optimizer_may_join_later() -> None:
    def train(_: object) -> None:
        nets = [model(), model()]
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets[:1]]
        for number in range(12):
            if number == 6:
                optimizers.append(torch.optim.SGD(nets[1].parameters(), lr=0.1))
            for net, optimizer in zip(nets, optimizers, strict=False):
                net(inputs()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    forecast = forecast_of(train)

    assert 12 <= dict(shape_of(forecast))["train"] <= 13
    assert step_is(forecast) == "one step of SGD, then one step of SGD"


def test_steps_of_a_scaler_are_those_of_its_optimizer() -> None:
    def train(_: object) -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(8):
            scaler.scale(net(inputs()).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    assert shape_of(forecast_of(train))[:2] == [("setup", 1), ("train", 8)]


def test_modules_called_in_turn_are_one_step_of_inference() -> None:
    def infer(gradients: bool, num_modules: int) -> Callable[[object], None]:
        def program(_: object) -> None:
            nets = [nn.Linear(16, 16).cuda() for _ in range(num_modules)]
            with torch.set_grad_enabled(gradients):
                for _ in range(5):
                    x = inputs()
                    for net in nets:
                        x = nn.ReLU()(net(x))

        return program

    for gradients, num_modules in [(False, 1), (False, 2), (True, 2), (False, 40)]:
        forecast = forecast_of(infer(gradients, num_modules))
        assert shape_of(forecast)[:2] == [("setup", 1), ("eval", 5)], (gradients, num_modules)
    assert step_is(forecast) == "80 calls in turn, of 41 different ones"


def test_an_encoder_called_once_does_not_make_all_of_decoding_one_step() -> None:
    def generate() -> None:
        encoder, decoder = model(), model()
        with torch.no_grad():
            encoder(inputs())
            for _ in range(100):
                decoder(inputs())

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


@pytest.mark.parametrize("update", [update_data, update_in_place])
@pytest.mark.parametrize("rounds", [1, 4])
def test_training_without_an_optimizer_has_steps(
    update: Callable[[torch.Tensor], None], rounds: int
) -> None:
    def train(_: object) -> None:
        net = model()
        for number in range(20 * rounds):
            net(inputs()).sum().backward()
            if number % rounds == rounds - 1:
                for parameter in net.parameters():
                    update(parameter)

    forecast = forecast_of(train)

    assert shape_of(forecast) == [("setup", 1), ("train", 20)]
    assert "(no torch.optim)" in step_is(forecast)


def test_validation_between_epochs_by_hand_is_eval() -> None:
    def train(_: object) -> None:
        net = model()
        for _ in range(2):
            for _ in range(5):
                net(inputs()).sum().backward()
                for parameter in net.parameters():
                    update_data(parameter)
            net.eval()
            with torch.no_grad():
                net(inputs())
            net.train()

    found = [(kind, number) for kind, number in shape_of(forecast_of(train)) if kind != "setup"]
    assert found == [("train", 5), ("eval", 1), ("train", 5), ("eval", 1)]


def test_training_by_hand_is_ended_after_enough_steps() -> None:
    def train() -> None:
        net = model()
        for _ in range(1000):
            net(inputs()).sum().backward()
            for parameter in net.parameters():
                update_data(parameter)

    steps, stopped = recorded(train, steady_steps=5)

    assert stopped is EnoughSteps
    assert count(steps, "train") == 6
    assert len(steps) <= 4


def test_functions_without_modules_have_steps_too() -> None:
    def train(_: object) -> None:
        weights = [torch.randn(16, 16, device="cuda", requires_grad=True) for _ in range(2)]
        for _ in range(20):
            x = inputs()
            for weight in weights:
                x = (x @ weight).relu()
            x.sum().backward()
            for weight in weights:
                update_data(weight)

    def infer(_: object) -> None:
        weights = [torch.randn(16, 16, device="cuda") for _ in range(2)]
        for _ in range(20):
            x = inputs()
            for weight in weights:
                x = (x @ weight).relu()
        x.sum().item()

    assert shape_of(forecast_of(train)) == [("setup", 1), ("train", 20)]
    inferred = forecast_of(infer)
    assert shape_of(inferred) == [("setup", 1), ("eval", 20), ("setup", 1)]
    assert step_is(inferred) == "5 ops that come 20 times"
    assert inferred.verdict.num_steps == 19


def test_a_block_of_different_ops_is_one_step() -> None:
    forecast = forecast_of(lambda _: [inputs(width).sum() for width in range(8, 20)])

    assert shape_of(forecast) == [("eval", 1)]
    assert step_is(forecast) == "all of it"


def test_the_summary_tells_what_was_taken_for_a_step() -> None:
    def train(_: object) -> None:
        net = model()
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(4):
            net(inputs()).sum().backward()
            optimizer.step()

    forecast = forecast_of(train)

    assert "  step      one step of AdamW; 4 training, 1 setup" in forecast.summary().splitlines()
    assert forecast.to_json()["step_is"] == "one step of AdamW"


# -- what the script says --------------------------------------------------------------------------


def test_steps_that_the_script_names_are_the_only_ones() -> None:
    def train(forecast: neusight.Forecast) -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            for _ in range(2):
                net(inputs()).sum().backward()
                optimizer.step()
            forecast.step()

    forecast = forecast_of(train)
    trained = [step for step in forecast.recording.steps if step.kind == "train"]
    assert trained[-1].count == 3
    steady = [e for e in trained[-1].entries if isinstance(e, OpCall)]
    assert sum(call.signature.op == "aten::addmm" for call in steady) == 4


def test_steps_cut_before_the_script_spoke_are_setup() -> None:
    def train(forecast: neusight.Forecast) -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def update(batch: int) -> None:
            net(torch.randn(batch, 16, device="cuda")).sum().backward()
            optimizer.step()

        for _ in range(6):
            update(64)
        for _ in range(5):
            for _ in range(3):
                update(4)
            forecast.step()

    forecast = forecast_of(train)

    assert [kind for kind, _ in shape_of(forecast)] == ["setup", "train"]
    assert dict(shape_of(forecast))["train"] == 5
    steady = num_ops_of(forecast, "train")[-1]
    assert sum(row["count"] for row in forecast.steps if row["kind"] == "train") == 5
    assert steady > 2 * num_ops_of(forecast, "train")[0]  # whose beginning nobody could know
    assert step_is(forecast) == "what the script says, from one step() to the next"


def test_what_takes_turns_before_the_first_named_step_belongs_to_it() -> None:
    def train(forecast: neusight.Forecast) -> None:
        critic, generator = model(), model()
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (critic, generator)]
        for _ in range(4):
            for optimizer in (*optimizers[:1] * 5, optimizers[1]):
                critic(generator(inputs())).sum().backward()
                optimizer.step()
            forecast.step()

    assert shape_of(forecast_of(train))[:2] == [("setup", 1), ("train", 4)]


def test_the_scripts_profiler_names_them_too() -> None:
    def train(_: object) -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        none = torch.profiler.ProfilerAction.NONE
        with torch.profiler.profile(schedule=lambda step: none) as prof:
            for _ in range(5):
                net(inputs()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                prof.step()

    assert shape_of(forecast_of(train))[:2] == [("setup", 1), ("train", 5)]


# -- folding ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_thousands_of_equal_steps_keep_the_memory_of_a_few() -> None:
    num_objects = []

    def train() -> None:
        net = nn.Linear(8, 8).cuda()
        data = torch.ones(2, 8, device="cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True)
        for number in range(2000):
            loss = net(data).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
            if number in (500, 1999):
                gc.collect()
                num_objects.append(len(gc.get_objects()))

    recorder = Recorder()
    with listened_to(recorder):
        train()
    recorder.cutter.finish()

    assert len(recorder.cutter.steps) <= 6
    assert count(recorder.cutter.steps, "train") == 2000
    assert num_objects[1] - num_objects[0] < 500  # not one for each of 1500 steps


def test_equal_steps_fold_though_events_are_new_and_cpu_work_differs() -> None:
    def train() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number in range(20):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            data = torch.ones(4, 16)
            for _ in range(20 + number % 3):
                data = data + 1
            net(data.cuda()).sum().backward()
            side = torch.cuda.Stream(priority=-1) if number < 0 else torch.cuda.current_stream()
            side.wait_event(start)
            optimizer.step()
            optimizer.zero_grad()
            end.record()
            end.synchronize()

    steps, _ = recorded(train)

    trained = [step for step in steps if step.kind == "train"]
    assert count(steps, "train") == 20
    assert len(trained) <= 3
    steady = max(trained, key=lambda step: step.count).entries
    assert sum(isinstance(entry, EventRecord) for entry in steady) == 2
    assert [e.event for e in steady if isinstance(e, EventRecord)] == [1, 2]
    assert [e.event for e in steady if isinstance(e, EventWait)] == [2]
    assert [e.event for e in steady if isinstance(e, Synchronize) and e.event is not None] == [1]
    assert any(isinstance(entry, HostWork) for entry in steady)


def test_a_step_that_differs_is_kept_apart() -> None:
    def train() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number in range(9):
            net(torch.randn(8 if number == 5 else 4, 16, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

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
    def train(_: object) -> None:
        net = model()
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(5):
            net(inputs()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    forecast = forecast_of(train)
    recording: Recording = forecast.recording

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


def training_loop(num_steps: int = 1000, **options: Any) -> Callable[[], None]:
    def train() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(num_steps):
            net(inputs()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


def test_enough_steady_steps_end_the_script() -> None:
    steps, stopped = recorded(training_loop(), steady_steps=5)

    assert stopped is EnoughSteps
    assert count(steps, "train") == 6


def test_enough_steps_of_inference_end_it_too() -> None:
    def infer() -> None:
        net = model().eval()
        with torch.no_grad():
            for _ in range(1000):
                net(inputs())

    steps, stopped = recorded(infer, steady_steps=5)

    assert stopped is EnoughSteps
    assert count(steps, "eval") == 6


def test_evaluation_before_training_does_not_end_it() -> None:
    def train() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net.eval()
        with torch.no_grad():
            for _ in range(50):
                net(inputs())
        net.train()
        for _ in range(1000):
            net(inputs()).sum().backward()
            optimizer.step()

    steps, stopped = recorded(train, steady_steps=5)

    assert stopped is EnoughSteps
    assert (count(steps, "eval"), count(steps, "train")) == (50, 6)


def test_a_bare_except_does_not_keep_the_script_going() -> None:
    swallowed = []

    def train() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number in range(1000):
            try:
                net(inputs()).sum().backward()
                optimizer.step()
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
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        try:
            for _ in range(1000):
                net(inputs()).sum().backward()
                optimizer.step()
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
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
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
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        best, lookahead, epochs = float("inf"), 0, 0
        while lookahead < 3 and epochs < 20:
            net(inputs()).sum().backward()
            optimizer.step()
            loss = net(inputs()).mean().item()
            lookahead = 0 if loss < best else lookahead + 1
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

    with pytest.raises(RunawayLoop) as caught:
        run(wait, max_ops=500)

    named = int(str(caught.value).partition("test_cutter.py:")[2].partition(":")[0])
    assert named in (line - 1, line, line + 1)
    assert "--max-ops" in str(caught.value)


def run(program: Callable[[], object], *, max_ops: int) -> None:
    recorder = Recorder(max_ops=max_ops)
    with listened_to(recorder):
        program()


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

    with pytest.raises(RunawayLoop):
        run(wait, max_ops=500)


def test_long_training_is_no_endless_loop() -> None:
    steps, stopped = recorded(training_loop(100), max_ops=100)

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


class Generator(nn.Linear):
    """Makes samples."""


class Discriminator(nn.Linear):
    """Judges them."""


def test_optimizers_that_take_turns_are_named_by_the_modules_they_update() -> None:
    def train(_: object) -> None:
        generator, discriminator = Generator(16, 16).cuda(), Discriminator(16, 1).cuda()
        of_generator = torch.optim.Adam(generator.parameters())
        of_discriminator = torch.optim.Adam(discriminator.parameters())
        for _ in range(4):
            made = generator(inputs())
            of_discriminator.zero_grad()
            discriminator(made.detach()).sum().backward()
            of_discriminator.step()
            of_generator.zero_grad()
            discriminator(made).sum().backward()
            of_generator.step()

    forecast = forecast_of(train)

    assert step_is(forecast) == (
        "one step of Adam of Discriminator, then one step of Adam of Generator"
    )


def test_equal_modules_are_named_by_their_attributes() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.actor, self.critic = model(), model()
            self.of_actor = torch.optim.Adam(self.actor.parameters())
            self.of_critic = torch.optim.Adam(self.critic.parameters())

        def update(self) -> None:
            self.actor(inputs()).sum().backward()
            self.of_actor.step()
            self.critic(inputs()).sum().backward()
            self.of_critic.step()

    def train(_: object) -> None:
        trainer = Trainer()
        for _ in range(4):
            trainer.update()

    forecast = forecast_of(train)

    assert step_is(forecast) == "one step of Adam of actor, then one step of Adam of critic"


def test_equal_modules_without_names_of_their_own_are_not_named() -> None:
    def train(_: object) -> None:
        nets = [model(), model()]
        optimizers = [torch.optim.Adam(net.parameters()) for net in nets]
        for _ in range(4):
            for net, optimizer in zip(nets, optimizers, strict=True):
                net(inputs()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    forecast = forecast_of(train)

    assert step_is(forecast) == "one step of Adam, then one step of Adam"


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

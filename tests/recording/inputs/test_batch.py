"""The batch of a step is what enters it: small programs, and what they are found to consume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import neusight
from neusight.forecast import Forecast
from neusight.recording.inputs.batch import batch_of_step
from neusight.recording.recording import Batch

NUM_STEPS = 4


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.tokens(tokens))
        return out


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return torch.optim.SGD(parameters, lr=0.1)


def forecast_of(program: Callable[[], Callable[[], object]], **options: object) -> Forecast:
    """The forecast of a program whose step is what it returns."""
    with neusight.forecast_on("H100", **options) as forecast:  # type: ignore[arg-type]
        step = program()
        for _ in range(NUM_STEPS):
            step()
    return forecast


def batch_of(program: Callable[[], Callable[[], object]]) -> Batch:
    return forecast_of(program).verdict.batch


def ids(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long, device="cuda")


# -- loaders --------------------------------------------------------------------------------------


def test_a_loader_gives_the_batch_and_its_line() -> None:
    def program() -> Callable[[], object]:
        model = Language().cuda()
        optimizer = sgd(model)
        loader = DataLoader(TensorDataset(torch.zeros(64, 16, dtype=torch.long)), batch_size=8)
        batches = iter(loader)

        def step() -> None:
            [tokens] = next(batches)
            model(tokens.cuda()).mean().backward()
            optimizer.step()

        return step

    found = batch_of(program)

    assert (found.samples, found.tokens, found.source) == (8, 128, "loader")
    assert found.known_by.startswith("token ids [8 x 16] from the DataLoader at test_batch")


def test_batches_of_accumulated_gradients_add_up_as_the_loader_yields_them() -> None:
    def program() -> Callable[[], object]:
        model = nn.Linear(8, 8).cuda()
        optimizer = sgd(model)
        batches = iter(DataLoader(TensorDataset(torch.zeros(256, 8)), batch_size=8))

        def step() -> None:
            for _ in range(4):
                model(next(batches)[0].cuda()).mean().backward()
            optimizer.step()

        return step

    found = batch_of(program)

    assert (found.samples, found.tokens) == (32, None)
    assert found.known_by.startswith("4 times input [8 x 8] from the DataLoader")


def test_windows_made_inside_a_model_are_not_the_batch() -> None:
    """As in PatchTST: 32 series of 7 channels become 224 rows."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 4)

        def forward(self, series: torch.Tensor) -> torch.Tensor:
            rows = series.transpose(1, 2).reshape(-1, 6, 16)
            out: torch.Tensor = self.head(rows)
            return out

    def program() -> Callable[[], object]:
        model = Patches().cuda()
        optimizer = sgd(model)
        series = torch.zeros(32, 96, 7, device="cuda")

        def step() -> None:
            model(series).mean().backward()
            optimizer.step()

        return step

    assert batch_of(program).samples == 32


def test_batches_of_an_evaluation_inside_the_step_do_not_count() -> None:
    def program() -> Callable[[], object]:
        model = nn.Linear(8, 8).cuda()
        optimizer = sgd(model)
        train = iter(DataLoader(TensorDataset(torch.zeros(256, 8)), batch_size=8))
        valid = iter(DataLoader(TensorDataset(torch.zeros(640, 8)), batch_size=64))

        def step() -> None:
            model(next(train)[0].cuda()).mean().backward()
            model(next(valid)[0].cuda()).mean()
            optimizer.step()

        return step

    assert batch_of(program).samples == 8


def test_a_gan_has_the_batch_that_its_loader_yields() -> None:
    def program() -> Callable[[], object]:
        discriminator, generator = nn.Linear(8, 1).cuda(), nn.Linear(4, 8).cuda()
        of_discriminator, of_generator = sgd(discriminator), sgd(generator)
        batches = iter(DataLoader(TensorDataset(torch.zeros(256, 8)), batch_size=16))

        def step() -> None:
            [real] = next(batches)
            discriminator(real.cuda()).mean().backward()
            fake = generator(torch.randn(16, 4, device="cuda"))
            discriminator(fake.detach()).mean().backward()
            of_discriminator.step()
            discriminator(fake).mean().backward()
            of_generator.step()

        return step

    found = batch_of(program)

    assert (found.samples, found.source) == (16, "loader")


def test_items_of_a_data_set_count_where_a_loader_makes_other_objects_of_them() -> None:
    """As loaders of graphs do."""

    class Graphs:
        pass

    def program() -> Callable[[], object]:
        model = nn.Linear(8, 8).cuda()
        optimizer = sgd(model)
        batches = iter(DataLoader(range(100), batch_size=10, collate_fn=lambda _: Graphs()))  # type: ignore[arg-type]

        def step() -> None:
            next(batches)
            model(torch.zeros(77, 8, device="cuda")).mean().backward()
            optimizer.step()

        return step

    found = batch_of(program)

    assert (found.samples, found.source) == (10, "loader")
    assert found.known_by.startswith("10 items from the DataLoader at ")


def test_a_loader_of_another_thread_is_as_one_that_is_not_there() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def program() -> Callable[[], object]:
        model = nn.Linear(8, 8).cuda()
        optimizer = sgd(model)
        batches = iter(DataLoader(TensorDataset(torch.zeros(256, 8)), batch_size=8))
        pool = ThreadPoolExecutor(1)

        def step() -> None:
            [rows] = pool.submit(next, batches).result()
            model(rows.cuda()).mean().backward()
            optimizer.step()

        return step

    found = batch_of(program)

    assert (found.samples, found.source) == (8, "input")


# -- calls of modules -----------------------------------------------------------------------------


def test_token_ids_by_keyword_give_samples_and_tokens() -> None:
    class Model(Language):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(input_ids).mean() + labels.sum()

    def program() -> Callable[[], object]:
        model = Model().cuda()
        optimizer = sgd(model)
        tokens, labels = ids(4, 16), ids(4, 3)

        def step() -> None:
            model(labels=labels, input_ids=tokens).backward()
            optimizer.step()

        return step

    found = batch_of(program)

    assert (found.samples, found.tokens, found.source) == (4, 64, "input")
    assert found.known_by.startswith("token ids [4 x 16] into Model at test_batch.py:")


def test_micro_batches_add_up_and_calls_for_one_backward_do_not() -> None:
    def program() -> Callable[[], object]:
        model = Language().cuda()
        optimizer = sgd(model)

        def step() -> None:
            for _ in range(3):
                (model(ids(4, 16)).mean() + model(ids(4, 8)).mean()).backward()
            optimizer.step()

        return step

    found = batch_of(program)

    assert (found.samples, found.tokens) == (12, 192)


def test_micro_batches_of_a_pipeline_add_up_though_all_forwards_come_first() -> None:
    def program() -> Callable[[], object]:
        model = nn.Linear(8, 8).cuda()
        optimizer = sgd(model)

        def step() -> None:
            losses = [model(torch.zeros(4, 8, device="cuda")).mean() for _ in range(3)]
            for loss in losses:
                loss.backward()
            optimizer.step()

        return step

    assert batch_of(program).samples == 12


def test_siblings_that_see_the_same_samples_do_not_add_up() -> None:
    def program() -> Callable[[], object]:
        first, second = nn.Sequential(nn.Linear(8, 8)).cuda(), nn.Sequential(nn.Linear(8, 8)).cuda()
        optimizer = sgd(first, second)

        def step() -> None:
            rows = torch.zeros(16, 8, device="cuda")
            (first(rows) + second(rows)).mean().backward()
            optimizer.step()

        return step

    assert batch_of(program).samples == 16


def test_a_decoder_of_what_an_encoder_returned_has_the_samples_of_the_encoder() -> None:
    def program() -> Callable[[], object]:
        encoder, decoder = nn.Linear(8, 8).cuda(), nn.Linear(4, 4).cuda()
        optimizer = sgd(encoder, decoder)

        def step() -> None:
            decoder(encoder(torch.zeros(16, 8, device="cuda")).view(32, 4)).mean().backward()
            optimizer.step()

        return step

    found = batch_of(program)

    assert found.samples == 16
    assert "[16 x 8] into Linear" in found.known_by


def test_a_frozen_encoder_has_the_samples_of_what_is_trained_on_it() -> None:
    def program() -> Callable[[], object]:
        encoder, head = nn.Linear(8, 8).cuda().requires_grad_(False), nn.Linear(4, 4).cuda()
        optimizer = sgd(head)

        def step() -> None:
            head(encoder(torch.zeros(16, 8, device="cuda")).view(32, 4)).mean().backward()
            optimizer.step()

        return step

    assert batch_of(program).samples == 16


@pytest.mark.parametrize("keeps_gradients", [True, False])
def test_an_evaluation_inside_the_step_does_not_count(keeps_gradients: bool) -> None:
    def program() -> Callable[[], object]:
        model = Language().cuda()
        optimizer = sgd(model)

        def step() -> None:
            model(ids(4, 16)).mean().backward()
            with torch.set_grad_enabled(keeps_gradients):
                model(ids(32, 16)).mean()
            optimizer.step()

        return step

    found = batch_of(program)

    assert (found.samples, found.tokens) == (4, 64)


def test_a_gan_without_a_loader_has_the_batch_of_one_network() -> None:
    def program() -> Callable[[], object]:
        discriminator, generator = nn.Linear(8, 1).cuda(), nn.Linear(4, 8).cuda()
        of_discriminator, of_generator = sgd(discriminator), sgd(generator)

        def step() -> None:
            discriminator(torch.zeros(16, 8, device="cuda")).mean().backward()
            fake = (generator(torch.randn(16, 4, device="cuda")) + 1) / 2
            discriminator(fake.detach()).mean().backward()
            of_discriminator.step()
            discriminator(fake).mean().backward()
            of_generator.step()

        return step

    assert batch_of(program).samples == 16


@pytest.mark.parametrize("is_detached", [True, False])
def test_what_a_generator_is_given_for_its_critic_is_no_batch(is_detached: bool) -> None:
    """As in a Wasserstein GAN: five batches for the critic, then samples for the generator."""

    def program() -> Callable[[], object]:
        critic, generator = nn.Linear(8, 1).cuda(), nn.Linear(4, 8).cuda()
        of_critic, of_generator = sgd(critic), sgd(generator)

        def step() -> None:
            for _ in range(5):
                made = generator(torch.randn(16, 4, device="cuda"))
                judged = critic(made.detach() if is_detached else made).mean()
                (judged - critic(torch.zeros(16, 8, device="cuda")).mean()).backward()
                of_critic.step()
            critic(generator(torch.randn(16, 4, device="cuda"))).mean().backward()
            of_generator.step()

        return step

    assert batch_of(program).samples == 5 * 16


def test_networks_trained_in_turn_on_the_same_samples_have_them_once() -> None:
    """As in soft actor-critic: the critic's batch is the actor's."""

    def program() -> Callable[[], object]:
        actor, critic = nn.Linear(8, 2).cuda(), nn.Linear(10, 1).cuda()
        of_actor, of_critic = sgd(actor), sgd(critic)
        replay = torch.zeros(1000, 8, device="cuda")

        def value(states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = critic(torch.cat([states, actions], 1))
            return out

        def step() -> None:
            states = replay[torch.randint(1000, (256,), device="cuda")]
            with torch.no_grad():
                target = value(states, actor(states))
            (value(states, torch.zeros(256, 2, device="cuda")) - target).mean().backward()
            of_critic.step()
            for _ in range(2):
                value(states, actor(states)).mean().backward()
                of_actor.step()

        return step

    assert batch_of(program).samples == 256


def test_several_optimizers_of_one_model_have_its_batch() -> None:
    """As Muon for matrices beside SGD for all else."""

    def program() -> Callable[[], object]:
        model = nn.Linear(8, 8).cuda()
        optimizers = [torch.optim.Adam([model.weight]), torch.optim.SGD([model.bias], lr=0.1)]

        def step() -> None:
            model(torch.zeros(16, 8, device="cuda")).mean().backward()
            for optimizer in optimizers:
                optimizer.step()

        return step

    assert batch_of(program).samples == 16


def test_a_closure_that_an_optimizer_calls_again_has_its_samples_once() -> None:
    def program() -> Callable[[], object]:
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        rows = torch.randn(16, 8).cuda()

        def closure() -> torch.Tensor:
            loss = model(rows).square().mean()
            loss.backward()
            out: torch.Tensor = loss
            return out

        return lambda: optimizer.step(closure)

    assert batch_of(program).samples == 16


def test_nodes_of_a_graph_are_no_samples() -> None:
    class GraphNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(16, 4)

        def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            values = self.lin(nodes)
            return torch.zeros_like(values).index_add(0, edges[1], values[edges[0]])

    def program() -> Callable[[], object]:
        model = GraphNet().cuda()
        optimizer = sgd(model)
        nodes, edges = torch.randn(100, 16).cuda(), ids(2, 500)

        def step() -> None:
            model(nodes, edges).mean().backward()
            optimizer.step()

        return step

    assert batch_of(program) == Batch()


def test_a_sparse_matrix_beside_the_nodes_fails_no_summary() -> None:
    class GraphNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(16, 4)

        def forward(self, nodes: torch.Tensor, joined: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = torch.sparse.mm(joined, self.lin(nodes))
            return out

    def program() -> Callable[[], object]:
        model = GraphNet().cuda()
        optimizer = sgd(model)
        nodes, joined = torch.randn(100, 16).cuda(), torch.eye(100).to_sparse().cuda()

        def step() -> None:
            model(nodes, joined).mean().backward()
            optimizer.step()

        return step

    forecast = forecast_of(program)

    assert forecast.verdict.batch == Batch()
    assert "per training step" in forecast.summary()


def test_rows_that_a_sparse_matrix_multiplies_are_no_samples() -> None:
    def program() -> Callable[[], object]:
        linear = nn.Linear(16, 4).cuda()
        optimizer = sgd(linear)
        nodes, joined = torch.randn(100, 16).cuda(), torch.eye(100).to_sparse().cuda()

        def step() -> None:
            torch.sparse.mm(joined, linear(nodes)).mean().backward()
            optimizer.step()

        return step

    summary = forecast_of(program).summary()

    assert "batch     not known; --samples N or --tokens N of a step gives" in summary


def test_of_a_recurrent_network_only_tokens_are_known() -> None:
    """torch's recurrent layers have the sequence first unless the program says otherwise."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.net = nn.Embedding(50, 8), nn.GRU(8, 8)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.net(self.tokens(tokens))[0]
            return out

    def program() -> Callable[[], object]:
        model = Words().cuda()
        optimizer = sgd(model)

        def step() -> None:
            model(ids(35, 20)).mean().backward()
            optimizer.step()

        return step

    found = batch_of(program)

    assert (found.samples, found.tokens) == (None, 700)


def test_recomputation_does_not_count_twice() -> None:
    class Checkpointed(Language):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            from torch.utils.checkpoint import checkpoint

            out: torch.Tensor = checkpoint(super().forward, tokens, use_reentrant=False)
            return out

    def program() -> Callable[[], object]:
        model = Checkpointed().cuda()
        optimizer = sgd(model)

        def step() -> None:
            model(ids(4, 16)).mean().backward()
            optimizer.step()

        return step

    assert batch_of(program).tokens == 64


@pytest.mark.parametrize("data", [lambda: torch.randn(4, 8), lambda: torch.randn(4, 20, 8)])
def test_plain_functions_have_the_data_that_their_first_product_joins(
    data: Callable[[], torch.Tensor],
) -> None:
    def program() -> Callable[[], object]:
        first, last = (torch.randn(8, 8, device="cuda", requires_grad=True) for _ in range(2))
        optimizer = torch.optim.SGD([first, last], lr=0.1)

        def step() -> None:
            for _ in range(2):
                (torch.relu(data().cuda() @ first) @ last).mean().backward()
            optimizer.step()

        return step

    found = batch_of(program)

    assert (found.samples, found.tokens) == (8, None)
    assert found.known_by.startswith("2 times input [4 x ")


def test_token_ids_that_plain_functions_look_up_are_samples_and_tokens() -> None:
    def program() -> Callable[[], object]:
        table = torch.randn(100, 8, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([table], lr=0.1)

        def step() -> None:
            nn.functional.embedding(ids(4, 16), table).mean().backward()
            optimizer.step()

        return step

    found = batch_of(program)

    assert (found.samples, found.tokens) == (4, 64)


def test_a_product_of_what_is_trained_alone_tells_nothing() -> None:
    def program() -> Callable[[], object]:
        users, items = (torch.randn(30, 4, device="cuda", requires_grad=True) for _ in range(2))
        optimizer = torch.optim.SGD([users, items], lr=0.1)
        ratings = torch.randn(30, 30, device="cuda")

        def step() -> None:
            (users @ items.T @ ratings).mean().backward()
            optimizer.step()

        return step

    assert batch_of(program) == Batch()


def test_targets_of_other_networks_are_no_rollout() -> None:
    """As soft actor-critic does: two updates of a critic, each after calls without gradients."""

    def program() -> Callable[[], object]:
        actor, critic, target = (nn.Linear(8, 8).cuda() for _ in range(3))
        of_critic, of_actor = sgd(critic), sgd(actor)

        def step() -> None:
            actor(torch.randn(1, 8).cuda()).cpu()
            for _ in range(2):
                seen = torch.randn(64, 8).cuda()
                with torch.no_grad():
                    wanted = target(actor(seen))
                (critic(seen) - wanted).pow(2).mean().backward()
                of_critic.step()
            critic(actor(seen)).mean().backward()
            of_actor.step()

        return step

    assert batch_of(program).samples == 128


def test_a_product_outside_of_modules_tells_nothing() -> None:
    def program() -> Callable[[], object]:
        weight = torch.randn(8, 8).cuda()
        return lambda: torch.randn(4, 8).cuda() @ weight

    assert batch_of(program) == Batch()


def test_position_ids_alone_tell_nothing() -> None:
    def program() -> Callable[[], object]:
        model = nn.Embedding(16, 8).cuda()
        optimizer = sgd(model)

        def step() -> None:
            model(torch.arange(16, device="cuda")).mean().backward()
            optimizer.step()

        return step

    assert batch_of(program) == Batch()


def test_an_empty_step_consumes_nothing() -> None:
    assert batch_of_step([], trains=True) == Batch()


# -- inference ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_one_step", "tokens"), [(True, 32), (False, 4)])
def test_a_decode_loop_counts_the_tokens_that_it_generates(is_one_step: bool, tokens: int) -> None:
    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        model = Language().cuda()
        for _ in range(3):
            model(ids(4, 100))
            for _ in range(7):
                model(ids(4, 1))
            if is_one_step:
                forecast.step()

    found = forecast.verdict.batch

    assert (found.samples, found.tokens) == (4, tokens)


def test_the_prompt_gives_a_token_where_another_function_decodes() -> None:
    def program() -> Callable[[], object]:
        model = Language().cuda()
        decode = torch.compile(lambda tokens: model(tokens))

        def step() -> None:
            with torch.no_grad():
                model(ids(2, 9))
                for _ in range(3):
                    decode(ids(2, 1))

        return step

    with neusight.forecast_on("H100") as forecast:
        step = program()
        for _ in range(NUM_STEPS):
            step()
            forecast.step()

    assert forecast.verdict.batch.tokens == 2 * 4


def test_decoding_without_a_cache_counts_one_token_a_call() -> None:
    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        model = Language().cuda()
        for length in [10, 11, 12, 13, 13, 13, 13, 13]:
            model(ids(2, length))

    found = forecast.verdict.batch

    assert (found.samples, found.tokens) == (2, 2)


def test_scoring_counts_all_tokens() -> None:
    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        model = Language().cuda()
        for _ in range(4):
            model(ids(4, 100))

    assert forecast.verdict.batch.tokens == 400


# -- what was compiled, captured and saved --------------------------------------------------------


def compiled_module() -> Callable[[], object]:
    model: Any = torch.compile(Language().cuda())
    optimizer = sgd(model)

    def step() -> None:
        model(ids(8, 1024)).mean().backward()
        optimizer.step()

    return step


def compiled_function() -> Callable[[], object]:
    model = Language().cuda()
    optimizer = sgd(model)

    @torch.compile
    def loss(tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(tokens).mean()
        return out

    def step() -> None:
        loss(ids(8, 1024)).backward()
        optimizer.step()

    return step


def compiled_in_place() -> Callable[[], object]:
    model = Language().cuda()
    model.compile()
    optimizer = sgd(model)

    def step() -> None:
        model(tokens=ids(8, 1024)).mean().backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("program", [compiled_module, compiled_function, compiled_in_place])
def test_a_compiled_language_model_has_the_batch_of_the_eager_one(
    program: Callable[[], Callable[[], object]],
) -> None:
    found = batch_of(program)

    assert (found.samples, found.tokens, found.source) == (8, 8192, "input")
    assert "[8 x 1024]" in found.known_by


def test_a_captured_step_has_its_batch_each_time_it_is_launched() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = Language().cuda()
        optimizer = sgd(model)
        tokens = ids(4, 16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(tokens).mean().backward()
            optimizer.step()
        for _ in range(NUM_STEPS):
            tokens.copy_(ids(4, 16))
            graph.replay()

    found = forecast.verdict.batch

    assert (found.samples, found.tokens) == (4, 64)


@pytest.fixture
def accumulated() -> Iterator[Forecast]:
    def program() -> Callable[[], object]:
        model = Language().cuda()
        optimizer = sgd(model)

        def step() -> None:
            for _ in range(2):
                model(ids(4, 16)).mean().backward()
            optimizer.step()

        return step

    yield forecast_of(program)


def test_the_batch_is_kept_for_other_gpus_and_in_files(
    accumulated: Forecast, tmp_path: Path
) -> None:
    accumulated.save(tmp_path / "f.json")

    loaded = Forecast.load(tmp_path / "f.json")

    assert accumulated.verdict.batch.tokens == 128
    assert accumulated.on("A100").verdict.batch == accumulated.verdict.batch
    assert loaded.recording == accumulated.recording
    assert loaded.to_json()["batch_source"] == "input"


def test_equal_steps_with_their_batch_are_kept_once(accumulated: Forecast) -> None:
    assert accumulated.recording.steps[-1].count >= NUM_STEPS - 2

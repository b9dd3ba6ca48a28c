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


def forecast_of(step: Callable[[], object], *modules: nn.Module, trains: bool = True) -> Forecast:
    """The forecast of some steps of modules on the GPU, each ended by an optimizer of them all."""
    with neusight.forecast_on("H100") as forecast:
        for module in modules:
            module.cuda()
        optimizer = sgd(*modules) if trains else None
        for _ in range(NUM_STEPS):
            step()
            if optimizer is not None:
                optimizer.step()
    return forecast


def batch_of(step: Callable[[], object], *modules: nn.Module, trains: bool = True) -> Batch:
    return forecast_of(step, *modules, trains=trains).verdict.batch


def ids(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long, device="cuda")


def rows(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, device="cuda")


def loader(*shape: int, batch_size: int, dtype: torch.dtype = torch.float32) -> Iterator[Any]:
    return iter(DataLoader(TensorDataset(torch.zeros(*shape, dtype=dtype)), batch_size=batch_size))


# -- loaders --------------------------------------------------------------------------------------


def test_a_loader_gives_the_batch_and_its_line() -> None:
    model, batches = Language(), loader(64, 16, batch_size=8, dtype=torch.long)

    found = batch_of(lambda: model(next(batches)[0].cuda()).mean().backward(), model)

    assert (found.samples, found.tokens, found.source) == (8, 128, "loader")
    assert found.known_by.startswith("token ids [8 x 16] from the DataLoader at test_batch")


def test_workers_of_a_loader_are_said_to_keep_up() -> None:
    model, batches = Language(), loader(64, 16, batch_size=8, dtype=torch.long)
    batches._num_workers = 2  # type: ignore[attr-defined]

    found = batch_of(lambda: model(next(batches)[0].cuda()).mean().backward(), model)

    words = "token ids [8 x 16] from the DataLoader (num_workers=2: taken to keep up) at test_batch"
    assert found.known_by.startswith(words)


def test_batches_of_accumulated_gradients_add_up_as_the_loader_yields_them() -> None:
    model, batches = nn.Linear(8, 8), loader(256, 8, batch_size=8)

    def step() -> None:
        for _ in range(4):
            model(next(batches)[0].cuda()).mean().backward()

    found = batch_of(step, model)

    assert (found.samples, found.tokens) == (32, None)
    assert found.known_by.startswith("4 times input [8 x 8] from the DataLoader")


def test_data_that_two_passes_see_after_an_update_count_twice() -> None:
    model, before = nn.Linear(8, 8), sgd(nn.Linear(8, 8))

    def step() -> None:
        before.step()
        data = rows(8, 8)
        for _ in range(2):
            model(data).mean().backward()

    assert batch_of(step, model).samples == 16


def test_windows_made_inside_a_model_are_not_the_batch() -> None:
    """As in PatchTST: 32 series of 7 channels become 224 rows."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 4)

        def forward(self, series: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(series.transpose(1, 2).reshape(-1, 6, 16))
            return out

    model = Patches()

    assert batch_of(lambda: model(rows(32, 96, 7)).mean().backward(), model).samples == 32


def test_batches_of_an_evaluation_inside_the_step_do_not_count() -> None:
    model = nn.Linear(8, 8)
    train, valid = loader(256, 8, batch_size=8), loader(640, 8, batch_size=64)

    def step() -> None:
        model(next(train)[0].cuda()).mean().backward()
        model(next(valid)[0].cuda()).mean()

    assert batch_of(step, model).samples == 8


def test_items_of_a_data_set_count_where_a_loader_makes_other_objects_of_them() -> None:
    """As loaders of graphs do."""

    class Graphs:
        pass

    model = nn.Linear(8, 8)
    batches = iter(DataLoader(range(100), batch_size=10, collate_fn=lambda _: Graphs()))  # type: ignore[arg-type]

    def step() -> None:
        next(batches)
        model(rows(77, 8)).mean().backward()

    found = batch_of(step, model)

    assert (found.samples, found.source) == (10, "loader")
    assert found.known_by.startswith("10 items from the DataLoader at ")


def test_a_loader_of_another_thread_is_as_one_that_is_not_there() -> None:
    from concurrent.futures import ThreadPoolExecutor

    model, batches, pool = nn.Linear(8, 8), loader(256, 8, batch_size=8), ThreadPoolExecutor(1)

    def step() -> None:
        [data] = pool.submit(next, batches).result()
        model(data.cuda()).mean().backward()

    found = batch_of(step, model)

    assert (found.samples, found.source) == (8, "input")


# -- calls of modules -----------------------------------------------------------------------------


def test_token_ids_by_keyword_give_samples_and_tokens() -> None:
    class Model(Language):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(input_ids).mean() + labels.sum()

    model = Model()

    found = batch_of(lambda: model(labels=ids(4, 3), input_ids=ids(4, 16)).backward(), model)

    assert (found.samples, found.tokens, found.source) == (4, 64, "input")
    assert found.known_by.startswith("token ids [4 x 16] into Model at test_batch.py:")


def test_micro_batches_add_up_and_calls_for_one_backward_do_not() -> None:
    model = Language()

    def step() -> None:
        for _ in range(3):
            (model(ids(4, 16)).mean() + model(ids(4, 8)).mean()).backward()

    found = batch_of(step, model)

    assert (found.samples, found.tokens) == (12, 192)


def test_micro_batches_of_a_pipeline_add_up_though_all_forwards_come_first() -> None:
    model = nn.Linear(8, 8)

    def step() -> None:
        for loss in [model(rows(4, 8)).mean() for _ in range(3)]:
            loss.backward()

    assert batch_of(step, model).samples == 12


def test_siblings_that_see_the_same_samples_do_not_add_up() -> None:
    first, second = nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 8))

    def step() -> None:
        data = rows(16, 8)
        (first(data) + second(data)).mean().backward()

    assert batch_of(step, first, second).samples == 16


@pytest.mark.parametrize("is_frozen", [False, True])
def test_what_is_computed_from_an_encoder_has_the_samples_of_the_encoder(is_frozen: bool) -> None:
    encoder, head = nn.Linear(8, 8).requires_grad_(not is_frozen), nn.Linear(4, 4)

    found = batch_of(
        lambda: head(encoder(rows(16, 8)).view(32, 4)).mean().backward(), encoder, head
    )

    assert found.samples == 16
    assert is_frozen or "[16 x 8] into Linear" in found.known_by


@pytest.mark.parametrize("keeps_gradients", [True, False])
def test_an_evaluation_inside_the_step_does_not_count(keeps_gradients: bool) -> None:
    model = Language()

    def step() -> None:
        model(ids(4, 16)).mean().backward()
        with torch.set_grad_enabled(keeps_gradients):
            model(ids(32, 16)).mean()

    found = batch_of(step, model)

    assert (found.samples, found.tokens) == (4, 64)


@pytest.mark.parametrize("source", ["loader", "input"])
def test_a_gan_has_the_batch_of_one_network(source: str) -> None:
    discriminator, generator = nn.Linear(8, 1), nn.Linear(4, 8)
    of_discriminator, of_generator = sgd(discriminator), sgd(generator)
    batches = loader(256, 8, batch_size=16)

    def step() -> None:
        real = next(batches)[0].cuda() if source == "loader" else rows(16, 8)
        discriminator(real).mean().backward()
        fake = (generator(torch.randn(16, 4, device="cuda")) + 1) / 2
        discriminator(fake.detach()).mean().backward()
        of_discriminator.step()
        discriminator(fake).mean().backward()
        of_generator.step()

    found = batch_of(step, discriminator, generator, trains=False)

    assert (found.samples, found.source) == (16, source)


@pytest.mark.parametrize("is_detached", [True, False])
def test_what_a_generator_is_given_for_its_critic_is_no_batch(is_detached: bool) -> None:
    """As in a Wasserstein GAN: five batches for the critic, then samples for the generator."""
    with neusight.forecast_on("H100") as forecast:
        critic, generator = nn.Linear(8, 1).cuda(), nn.Linear(4, 8).cuda()
        of_critic, of_generator = sgd(critic), sgd(generator)
        for _ in range(NUM_STEPS):
            for _ in range(5):
                made = generator(torch.randn(16, 4, device="cuda"))
                judged = critic(made.detach() if is_detached else made).mean()
                (judged - critic(rows(16, 8)).mean()).backward()
                of_critic.step()
            critic(generator(torch.randn(16, 4, device="cuda"))).mean().backward()
            of_generator.step()

    assert forecast.verdict.batch.samples == 5 * 16


def test_networks_trained_in_turn_on_the_same_samples_have_them_once() -> None:
    """As in soft actor-critic: the critic's batch is the actor's."""
    actor, critic = nn.Linear(8, 2), nn.Linear(10, 1)
    of_actor, of_critic = sgd(actor), sgd(critic)

    def value(states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = critic(torch.cat([states, actions], 1))
        return out

    def step() -> None:
        states = rows(1000, 8)[torch.randint(1000, (256,), device="cuda")]
        with torch.no_grad():
            target = value(states, actor(states))
        (value(states, rows(256, 2)) - target).mean().backward()
        of_critic.step()
        for _ in range(2):
            value(states, actor(states)).mean().backward()
            of_actor.step()

    assert batch_of(step, actor, critic, trains=False).samples == 256


def test_several_optimizers_of_one_model_have_its_batch() -> None:
    """As Muon for matrices beside SGD for all else."""
    model = nn.Linear(8, 8)
    optimizers = [torch.optim.Adam([model.weight]), torch.optim.SGD([model.bias], lr=0.1)]

    def step() -> None:
        model(rows(16, 8)).mean().backward()
        for optimizer in optimizers:
            optimizer.step()

    assert batch_of(step, model, trains=False).samples == 16


def test_a_closure_that_an_optimizer_calls_again_has_its_samples_once() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> torch.Tensor:
        loss: torch.Tensor = model(torch.randn(16, 8, device="cuda")).square().mean()
        loss.backward()
        return loss

    assert batch_of(lambda: optimizer.step(closure), model, trains=False).samples == 16


class GraphNet(nn.Module):
    """The nodes of a graph, and which are joined: a list of edges or a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 4)

    def forward(self, nodes: torch.Tensor, joined: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.lin(nodes)
        if joined.is_sparse:
            multiplied: torch.Tensor = torch.sparse.mm(joined, values)
            return multiplied
        return torch.zeros_like(values).index_add(0, joined[1], values[joined[0]])


@pytest.mark.parametrize("joined", [lambda: ids(2, 500), lambda: torch.eye(100).to_sparse().cuda()])
def test_nodes_of_a_graph_are_no_samples(joined: Callable[[], torch.Tensor]) -> None:
    model = GraphNet()

    forecast = forecast_of(
        lambda: model(torch.randn(100, 16).cuda(), joined()).mean().backward(), model
    )

    assert forecast.verdict.batch == Batch()
    assert "per training step" in forecast.summary()


def test_rows_that_a_sparse_matrix_multiplies_are_no_samples() -> None:
    linear, joined = nn.Linear(16, 4), torch.eye(100).to_sparse()

    def step() -> None:
        torch.sparse.mm(joined.cuda(), linear(torch.randn(100, 16).cuda())).mean().backward()

    assert "batch     not known; --samples N or --tokens N of a step gives" in (
        forecast_of(step, linear).summary()
    )


def test_of_a_recurrent_network_only_tokens_are_known() -> None:
    """torch's recurrent layers have the sequence first unless the program says otherwise."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.net = nn.Embedding(50, 8), nn.GRU(8, 8)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.net(self.tokens(tokens))[0]
            return out

    model = Words()

    found = batch_of(lambda: model(ids(35, 20)).mean().backward(), model)

    assert (found.samples, found.tokens) == (None, 700)


def test_recomputation_does_not_count_twice() -> None:
    class Checkpointed(Language):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            from torch.utils.checkpoint import checkpoint

            out: torch.Tensor = checkpoint(super().forward, tokens, use_reentrant=False)
            return out

    model = Checkpointed()

    assert batch_of(lambda: model(ids(4, 16)).mean().backward(), model).tokens == 64


class Weights(nn.Module):
    """Parameters that plain functions use."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.all = nn.ParameterList(torch.randn(*shape) for shape in shapes)


@pytest.mark.parametrize("shape", [(4, 8), (4, 20, 8)])
def test_plain_functions_have_the_data_that_their_first_product_joins(
    shape: tuple[int, ...],
) -> None:
    weights = Weights((8, 8), (8, 8))

    def step() -> None:
        first, last = weights.all
        for _ in range(2):
            (torch.relu(torch.randn(shape).cuda() @ first) @ last).mean().backward()

    found = batch_of(step, weights)

    assert (found.samples, found.tokens) == (8, None)
    assert found.known_by.startswith("2 times input [4 x ")


def test_token_ids_that_plain_functions_look_up_are_samples_and_tokens() -> None:
    weights = Weights((100, 8))

    found = batch_of(
        lambda: nn.functional.embedding(ids(4, 16), weights.all[0]).mean().backward(), weights
    )

    assert (found.samples, found.tokens) == (4, 64)


def test_a_product_of_what_is_trained_alone_says_nothing() -> None:
    weights, ratings = Weights((30, 4), (30, 4)), torch.randn(30, 30)

    def step() -> None:
        users, items = weights.all
        (users @ items.T @ ratings.cuda()).mean().backward()

    assert batch_of(step, weights) == Batch()


def test_targets_of_other_networks_are_no_rollout() -> None:
    """As soft actor-critic does: two updates of a critic, each after calls without gradients."""
    actor, critic, target = (nn.Linear(8, 8) for _ in range(3))
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

    assert batch_of(step, actor, critic, target, trains=False).samples == 128


def test_a_product_outside_of_modules_says_nothing() -> None:
    weight = torch.randn(8, 8)

    assert batch_of(lambda: torch.randn(4, 8).cuda() @ weight.cuda(), trains=False) == Batch()


def test_position_ids_alone_say_nothing() -> None:
    model = nn.Embedding(16, 8)

    found = batch_of(lambda: model(torch.arange(16, device="cuda")).mean().backward(), model)

    assert found == Batch()


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
    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        model = Language().cuda()
        decode = torch.compile(lambda tokens: model(tokens))
        for _ in range(NUM_STEPS):
            model(ids(2, 9))
            for _ in range(3):
                decode(ids(2, 1))
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


def compiled_module(model: nn.Module) -> Callable[[], object]:
    compiled: Any = torch.compile(model)
    return lambda: compiled(ids(8, 1024)).mean().backward()


def compiled_function(model: nn.Module) -> Callable[[], object]:
    @torch.compile
    def loss(tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(tokens).mean()
        return out

    return lambda: loss(ids(8, 1024)).backward()


def compiled_in_place(model: nn.Module) -> Callable[[], object]:
    model.compile()
    return lambda: model(tokens=ids(8, 1024)).mean().backward()


@pytest.mark.parametrize("compiled", [compiled_module, compiled_function, compiled_in_place])
def test_a_compiled_language_model_has_the_batch_of_the_eager_one(
    compiled: Callable[[nn.Module], Callable[[], object]],
) -> None:
    with neusight.forecast_on("H100") as forecast:
        model = Language().cuda()
        optimizer, step = sgd(model), compiled(model)
        for _ in range(NUM_STEPS):
            step()
            optimizer.step()

    found = forecast.verdict.batch
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
def accumulated() -> Forecast:
    model = Language()

    def step() -> None:
        for _ in range(2):
            model(ids(4, 16)).mean().backward()

    return forecast_of(step, model)


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

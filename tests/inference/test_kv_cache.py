"""What caches hold of a token, in programs whose caches are counted by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import neusight
from neusight.inference.kv_cache import kv_bytes_per_token
from neusight.recording.recording import (
    Argument,
    Entry,
    MathMode,
    ModelInput,
    OpCall,
    OpSignature,
    Recording,
    Step,
    TensorSpec,
)

WIDTH, LAYERS, BATCH, PROMPT = 256, 3, 2, 20
#: Keys and values, in two bytes an element.
BYTES_PER_TOKEN = 2 * LAYERS * WIDTH * 2


class Growing(nn.Module):
    """A layer whose keys and values are put behind those before."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(WIDTH, 2 * WIDTH, dtype=torch.float16)

    def forward(
        self, x: torch.Tensor, past: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        new = self.both(x)
        both = new if past is None else torch.cat((past, new), 1)
        return x + both.mean(1, keepdim=True)[..., :WIDTH], both


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, WIDTH, dtype=torch.float16)
        self.layers = nn.ModuleList(Growing() for _ in range(LAYERS))

    def forward(
        self, ids: torch.Tensor, cache: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        x, grown = self.tokens(ids), []
        for at, layer in enumerate(self.layers):
            x, both = layer(x, cache[at] if cache else None)
            grown.append(both)
        return x[:, -1:, 0].long(), grown


class Room(nn.Module):
    """A layer that writes into a cache with room for all."""

    cache: torch.Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.filled = how, 0
        self.both = nn.Linear(WIDTH, 2 * WIDTH, dtype=torch.float16)
        self.register_buffer("cache", torch.zeros(BATCH, 512, 2 * WIDTH, dtype=torch.float16))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        if self.how == "index_copy_":
            self.cache.index_copy_(1, at, self.both(x))
        elif self.how == "copy_":
            self.filled += x.shape[1]
            self.cache[:, self.filled - x.shape[1] : self.filled] = self.both(x)
        else:
            self.cache[:, at] = self.both(x)
        return x + self.cache.mean(1, keepdim=True)[..., :WIDTH]


class Static(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, WIDTH, dtype=torch.float16)
        self.layers = nn.ModuleList(Room(how) for _ in range(LAYERS))

    def forward(self, ids: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x, at)
        out: torch.Tensor = x[:, -1:, 0].long()
        return out


def recorded(program: Callable[[torch.Tensor], None]) -> Recording:
    with neusight.forecast_on("H100") as forecast, torch.inference_mode():
        program(torch.zeros(BATCH, PROMPT, dtype=torch.long, device="cuda"))
    return forecast.recording


def grow(ids: torch.Tensor) -> None:
    model = Language().cuda()
    cache: list[torch.Tensor] = []
    for _ in range(8):
        ids, cache = model(ids, cache)


def beams(ids: torch.Tensor) -> None:
    """Puts its cache in another order after each token, outside of the model."""
    model = Language().cuda()
    cache: list[torch.Tensor] = []
    order = torch.tensor([1, 0], device="cuda")
    for _ in range(8):
        ids, cache = model(ids, cache)
        cache = [both.index_select(0, order) for both in cache]


def fill(how: str) -> Callable[[torch.Tensor], None]:
    def program(ids: torch.Tensor) -> None:
        model, at = Static(how).cuda(), torch.arange(PROMPT, device="cuda")
        for _ in range(8):
            ids = model(ids, at)
            at = at[-1:] + 1

    return program


@pytest.mark.parametrize(
    "program",
    [grow, beams, fill("index_copy_"), fill("index_put_"), fill("copy_")],
    ids=["grows", "beams", "index_copy_", "index_put_", "copy_"],
)
def test_a_cache_holds_keys_and_values_of_each_layer(
    program: Callable[[torch.Tensor], None],
) -> None:
    assert kv_bytes_per_token(recorded(program)) == BYTES_PER_TOKEN


class Packing(nn.Module):
    """Keeps a prompt in four bits, and tokens after it as they are until there are enough."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, WIDTH, dtype=torch.float16)
        self.packed: torch.Tensor | None = None
        self.late = torch.zeros(0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        if self.packed is None:
            halves = (x * 7).to(torch.uint8)
            self.packed, self.late = halves[..., ::2] | (halves[..., 1::2] << 4), x[:, :0]
        self.late = torch.cat((self.late, x if ids.shape[1] == 1 else x[:, :0]), 1)
        out: torch.Tensor = (self.late.sum() + self.packed.sum() + x)[:, -1:, 0].long()
        return out


def test_a_quantized_cache_holds_what_is_packed() -> None:
    def program(ids: torch.Tensor) -> None:
        model = Packing().cuda()
        for _ in range(8):
            ids = model(ids)

    assert kv_bytes_per_token(recorded(program)) == pytest.approx(WIDTH / 2, rel=0.05)


class Recurrent(nn.Module):
    """Its state is as large whatever entered."""

    state: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, WIDTH)
        self.register_buffer("state", torch.zeros(BATCH, WIDTH))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.state.mul_(0.9).add_(self.tokens(ids).sum(1))
        out: torch.Tensor = self.state[:, :1].long()
        return out


def test_a_state_of_one_size_holds_nothing_of_a_token() -> None:
    def program(ids: torch.Tensor) -> None:
        model = Recurrent().cuda()
        for _ in range(8):
            ids = model(ids)

    assert kv_bytes_per_token(recorded(program)) == 0


def test_the_ids_that_a_program_keeps_are_no_cache() -> None:
    def program(ids: torch.Tensor) -> None:
        model, new = Recurrent().cuda(), ids
        for _ in range(8):
            new = model(new)
            ids = torch.cat((ids, new), 1)

    assert kv_bytes_per_token(recorded(program)) == 0


def test_nobody_knows_of_a_model_that_does_not_generate() -> None:
    def program(ids: torch.Tensor) -> None:
        model = Recurrent().cuda()
        for _ in range(4):
            model(ids)

    assert kv_bytes_per_token(recorded(program)) is None


CACHE, NEW = TensorSpec((2, 512, 64), (32768, 64, 1), "float16"), 2 * 2 * 64
PROMPT_OF_TWO, TOKEN = ModelInput(2, 20), ModelInput(2, 1, is_decode=True)


def compiled(name: str = "triton_index_put_0", **arguments: Argument) -> OpCall:
    given = {"bytes_written": NEW, "in_out_ptr0": CACHE, **arguments}
    signature = OpSignature(f"inductor::{name}", "default", tuple(given.items()), ())
    return OpCall(signature, MathMode(), module="Model")


def eager(module: str = "Model") -> OpCall:
    new = TensorSpec((2, 1, 64), (64, 64, 1), "float16")
    arguments = (("self", CACHE), ("dim", 1), ("index", None), ("source", new))
    return OpCall(
        OpSignature("aten::index_copy_", "default", arguments, (CACHE,)), MathMode(), module
    )


def round_of(draft_calls: int) -> tuple[ModelInput | OpCall, ...]:
    """The draft writes a token a call, the model that verifies its three."""
    drafts = (TOKEN, eager()) * draft_calls
    return (*drafts, ModelInput(2, 3, drafted=2, draft_calls=draft_calls), eager(), eager())


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((TOKEN, compiled()) * 3, NEW / 2),
        ((TOKEN, compiled("triton_add_0")) * 3, 0),
        ((TOKEN, compiled(bytes_written=None)) * 3, 0),
        ((TOKEN, compiled(in_out_ptr0=CACHE._replace(shape=(2, 20, 64)))) * 3, 0),
        ((TOKEN, eager("")) * 3, 0),
        (round_of(2) * 3, NEW * 2 / (2 * 3) + NEW / 2),
        (round_of(0) * 3, NEW * 2 / (2 * 3)),
        ((ModelInput(2, 3, drafted=2), compiled("triton_add_0")) * 3, None),
    ],
    ids=[
        "compiled", "no cache", "unknown bytes", "as long as the prompt", "outside of modules",
        "drafts of a model", "drafts of a text", "drafts without a cache",
    ],
)  # fmt: skip
def test_what_is_written_into_a_cache_counts_by_token(
    entries: tuple[ModelInput | OpCall, ...], expected: float | None
) -> None:
    steps = (Step("eval", (PROMPT_OF_TWO, *entries)),)

    assert kv_bytes_per_token(Recording(steps, "H100", "2.13.0")) == expected


PART = TensorSpec((2, 1, 64), (32768, 64, 1), "float16")


def cut_and_copied(whole: TensorSpec, cut: TensorSpec = PART) -> tuple[OpCall, OpCall]:
    """`cache[:, at] = keys`: a part of the cache, then a copy to it."""
    calls = [
        OpSignature("aten::slice", "Tensor", (("self", whole),), (cut,)),
        OpSignature("aten::copy_", "default", (("self", PART), ("src", PART)), (PART,)),
    ]
    first, second = (OpCall(call, MathMode(), module="Model") for call in calls)
    return first, second


def indexed(whole: TensorSpec, new: TensorSpec) -> tuple[OpCall]:
    arguments = (("self", whole), ("indices", ()), ("values", new))
    signature = OpSignature("aten::index_put_", "default", arguments, (whole,))
    return (OpCall(signature, MathMode(), module="Model"),)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (cut_and_copied(CACHE), NEW / 2),
        (cut_and_copied(CACHE._replace(shape=(2, 21, 64))), NEW / 2),
        (cut_and_copied(CACHE._replace(shape=(2, 20, 64))), 0),  # no longer than the prompt
        (cut_and_copied(CACHE, CACHE), 0),  # a copy to something else
        (indexed(CACHE, PART), NEW / 2),
        (indexed(PART, PART), 0),  # a copy of the whole
        (indexed(PART._replace(shape=(2, 2, 64)), PART), NEW / 2),
        (indexed(TensorSpec((512,), (1,), "int64"), TensorSpec((2,), (1,), "int64")), 0),  # ids
    ],
)
def test_what_is_written_is_a_part_of_a_tensor_with_space_for_more(
    calls: tuple[OpCall, ...], expected: float
) -> None:
    token: tuple[Entry, ...] = (TOKEN, *calls)
    entries = (PROMPT_OF_TWO, *token * 3)

    assert kv_bytes_per_token(Recording((Step("eval", entries),), "H100", "2.13.0")) == expected

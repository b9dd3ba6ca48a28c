"""A recorded step with one thing changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import neusight
from neusight.advice.optimizers import with_fused_kernels
from neusight.advice.what_if import (
    WhatIf,
    as_cuda_graphs,
    compiled,
    in_channels_last,
    odd_sizes,
    with_low_precision,
    with_padding,
    with_tf32,
    without_break,
    without_waits,
)
from neusight.forecast import Forecast, forecast_options
from neusight.predictors.kernel import ConvolutionSize, GemmSize, Kernel, KernelClass
from neusight.recording.recording import (
    Argument,
    Entry,
    HostWork,
    Mark,
    MarkKind,
    MathMode,
    OpCall,
    OpSignature,
    Recording,
    Synchronize,
    TensorSpec,
)
from op_calls import MATH, call, spec

VOCABULARY = 1003


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 128)
        self.norm = nn.LayerNorm(128)
        self.head = nn.Linear(128, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        out: torch.Tensor = self.head(self.norm(F.gelu(x * 2.0) + 1.0))
        return out


@pytest.fixture(scope="module")
def training() -> Forecast:
    with neusight.forecast_on("H100") as forecast:
        model = Language().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            tokens = torch.zeros(4, 64, dtype=torch.long).cuda()
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
    return forecast


def inference(module: nn.Module, *shape: int) -> WhatIf:
    with neusight.forecast_on("H100") as forecast, torch.inference_mode():
        module.cuda().eval()
        data = torch.randn(*shape, device="cuda")
        for _ in range(3):
            module(data)
            forecast.step()
    return WhatIf(forecast)


def kernels(what_if: WhatIf, entries: tuple[object, ...]) -> list[Kernel]:
    calls = [entry for entry in entries if isinstance(entry, OpCall)]
    return [kernel for call in calls for kernel, _ in what_if.kernels_of(call)]


def test_the_unchanged_step_takes_what_the_verdict_says(training: Forecast) -> None:
    assert WhatIf(training).latency_us == pytest.approx(training.step_latency_us.median, rel=1e-3)


def test_an_empty_recording_takes_no_time() -> None:
    nothing = Recording((), "H100-SXM5-80GB", torch_version="2.13")

    assert WhatIf(Forecast(nothing, forecast_options("H100"))).latency_us == 0.0


# -- the host --------------------------------------------------------------------------------


def test_without_waits_the_host_runs_ahead(training: Forecast) -> None:
    what_if = WhatIf(training)
    free = without_waits(what_if.entries)

    waits = [entry for entry in what_if.entries if isinstance(entry, Synchronize)]
    assert {wait.source.partition(":")[0] for wait in waits} == {"test_what_if.py"}
    assert not any(isinstance(entry, Synchronize) for entry in free)
    assert kernels(what_if, free) == kernels(what_if, what_if.entries)
    assert what_if.latency_of(free) < what_if.latency_us


def test_a_graph_is_launched_once_for_each_stretch_between_waits(training: Forecast) -> None:
    what_if = WhatIf(training)
    graphs = as_cuda_graphs(what_if.entries)

    marks = [entry.kind for entry in graphs if isinstance(entry, Mark)]
    assert marks == ["graph_begin", "graph_end"] * (len(marks) // 2)
    assert 1 <= len(marks) // 2 <= 3  # the copy of the tokens and the read of the loss cut it
    assert kernels(what_if, graphs) == kernels(what_if, what_if.entries)
    assert what_if.latency_of(graphs) < 0.7 * what_if.latency_us


def test_work_on_the_cpu_cuts_a_graph_unless_it_is_the_optimizers(training: Forecast) -> None:
    call = next(
        entry
        for entry in WhatIf(training).entries
        if isinstance(entry, OpCall) and entry.signature.op == "aten::gelu"
    )
    step = "Optimizer.step#Adam.step"
    entries = (
        call, HostWork("load", 5.0), call,
        Mark("annotation_begin", step), HostWork("cpu ops", 9.0), Mark("annotation_end", step),
        call, Synchronize("item", "a.py:1"),
    )  # fmt: skip

    changed = as_cuda_graphs(entries)

    graph = (Mark("graph_begin", "what if"), Mark("graph_end", "what if"))
    assert changed == (
        graph[0], call, graph[1], HostWork("load", 5.0), graph[0], call, call, graph[1],
        Synchronize("item", "a.py:1"),
    )  # fmt: skip


# -- fewer kernels ---------------------------------------------------------------------------


class Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x * 2.0 + 1.0).tanh()


def test_a_chain_of_pointwise_ops_reads_and_writes_once() -> None:
    what_if = inference(Chain(), 1024, 1024)
    before = kernels(what_if, what_if.entries)

    [after] = kernels(what_if, compiled(what_if, what_if.entries))

    tensor = 1024 * 1024 * 4
    assert len(before) == 4
    assert sum(kernel.num_bytes for kernel in before) == 4 * 2 * tensor
    assert (after.bytes_read, after.bytes_written) == (tensor, tensor)
    assert after.flops == sum(kernel.flops for kernel in before)


def test_a_norm_joins_the_pointwise_ops_around_it() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(512)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.norm(x * 2.0))

    what_if = inference(Normed(), 512, 512)
    [after] = kernels(what_if, compiled(what_if, what_if.entries))

    assert after.kernel_class is KernelClass.NORMALIZATION
    assert after.bytes_read < 2 * 512 * 512 * 4


def test_products_end_chains_and_keep_their_kernels() -> None:
    what_if = inference(nn.Sequential(Chain(), nn.Linear(256, 256), Chain()), 256, 256)

    after = kernels(what_if, compiled(what_if, what_if.entries))

    assert [kernel.kernel_class for kernel in after] == [
        KernelClass.ELEMENTWISE, KernelClass.GEMM, KernelClass.ELEMENTWISE,
    ]  # fmt: skip


def test_what_backward_needs_is_still_written(training: Forecast) -> None:
    what_if = WhatIf(training)
    after = kernels(what_if, compiled(what_if, what_if.entries))
    before = kernels(what_if, what_if.entries)

    assert len(after) < len(before)
    assert sum(k.num_bytes for k in after) < sum(k.num_bytes for k in before)
    optimizer = [kernel for kernel in before if kernel.kernel_class is KernelClass.OPTIMIZER]
    assert [k for k in after if k.kernel_class is KernelClass.OPTIMIZER] == optimizer


def test_a_fused_optimizer_touches_each_tensor_once(training: Forecast) -> None:
    what_if = WhatIf(training)

    entries, name = with_fused_kernels(what_if.entries)

    assert name == "AdamW"
    fused = [k for k in kernels(what_if, entries) if k.kernel_class is KernelClass.OPTIMIZER]
    num_parameters = 2 * VOCABULARY * 128 + VOCABULARY + 2 * 128
    assert sum(kernel.bytes_read for kernel in fused) == 4 * 4 * num_parameters
    assert sum(kernel.bytes_written for kernel in fused) == 3 * 4 * num_parameters
    assert what_if.latency_of(entries) < what_if.latency_us


def test_what_an_optimizers_closure_does_is_not_the_optimizers() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = nn.Linear(256, 256).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        data = torch.randn(64, 256, device="cuda")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(data).mean()
            loss.backward()
            return loss  # type: ignore[no-any-return]

        for _ in range(3):
            optimizer.step(closure)
    what_if = WhatIf(forecast)

    entries, _ = with_fused_kernels(what_if.entries)

    def work(entries: tuple[object, ...]) -> list[Kernel]:
        found = kernels(what_if, entries)
        return [kernel for kernel in found if kernel.kernel_class is not KernelClass.OPTIMIZER]

    assert work(entries) == work(what_if.entries)
    assert len(gemms(what_if, entries)) >= 2


def test_a_plain_optimizer_has_no_fused_form_to_offer() -> None:
    what_if = inference(Chain(), 8, 8)

    assert with_fused_kernels(what_if.entries) == (what_if.entries, "")


# -- other shapes and types ------------------------------------------------------------------


def gemms(what_if: WhatIf, entries: tuple[object, ...]) -> list[tuple[GemmSize, str]]:
    return [(k.size, k.compute) for k in kernels(what_if, entries) if isinstance(k.size, GemmSize)]


def test_tf32_changes_the_products_alone(training: Forecast) -> None:
    what_if = WhatIf(training)
    faster = with_tf32(what_if.entries)

    assert {compute for _, compute in gemms(what_if, what_if.entries)} == {"fp32"}
    assert {compute for _, compute in gemms(what_if, faster)} == {"tf32"}
    assert len(kernels(what_if, faster)) >= len(kernels(what_if, what_if.entries))


def test_low_precision_casts_every_operand_and_result(training: Forecast) -> None:
    what_if = WhatIf(training)
    lower = with_low_precision(what_if, what_if.entries, "bfloat16")

    assert {compute for _, compute in gemms(what_if, lower)} == {"bf16"}
    casts = [
        k for k in kernels(what_if, lower) if (k.dtype, k.out_dtype) == ("float32", "bfloat16")
    ]
    forward = 3  # bias, activations, weight
    assert len(casts) >= forward + 2 * 2  # backward: two products of two operands
    back = [k for k in kernels(what_if, lower) if (k.dtype, k.out_dtype) == ("bfloat16", "float32")]
    assert len(back) == 3


def test_odd_sizes_of_weights_are_found_with_their_module(training: Forecast) -> None:
    assert odd_sizes(WhatIf(training).entries) == {VOCABULARY: "Language.tokens"}


def test_padding_reaches_every_op(training: Forecast) -> None:
    what_if = WhatIf(training)
    padded = with_padding(what_if.entries, VOCABULARY, 1024)

    assert {1024, 128, 256} == {part for size, _ in gemms(what_if, padded) for part in size[1:]}
    texts = [kernel.key for kernel in kernels(what_if, padded)]
    assert not [text for text in texts if str(VOCABULARY) in text]
    assert len(texts) == len(kernels(what_if, what_if.entries))


def test_channels_last_needs_no_copies_around_convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)).half()
    with neusight.forecast_on("H100") as forecast, torch.inference_mode():
        model.cuda().eval()
        images = torch.randn(8, 64, 32, 32, device="cuda", dtype=torch.float16)
        for _ in range(3):
            model(images)
            forecast.step()
    what_if = WhatIf(forecast)

    after = in_channels_last(what_if.entries)

    before = kernels(what_if, what_if.entries)
    assert any(k.kernel_class is KernelClass.COPY for k in before)
    assert not any(k.kernel_class is KernelClass.COPY for k in kernels(what_if, after))
    assert [k.size for k in kernels(what_if, after) if isinstance(k.size, ConvolutionSize)] == [
        k.size for k in before if isinstance(k.size, ConvolutionSize)
    ]


def test_without_a_break_the_host_neither_waits_nor_calls_again() -> None:
    relu = OpCall(OpSignature("aten::relu", "default", (), ()), MathMode())

    def region(frame: str) -> tuple[Entry, ...]:
        name = "Torch-Compiled Region"
        kinds: tuple[MarkKind, MarkKind] = ("compiled_begin", "compiled_end")
        begin, end = (Mark(kind, name, f"2 {frame}") for kind in kinds)
        return (begin, relu, end)

    wait, other = Synchronize("item", "net.py:7"), Synchronize("item", "net.py:9")
    entries = (*region("0/0"), wait, *region("1/0"), other)

    assert without_break(entries, "models/net.py:7", {"1/0"}) == (*region("0/0"), relu, other)


def padded_entry(op: str, *outputs: TensorSpec, **arguments: Argument) -> OpCall:
    return OpCall(call(op, *outputs, **arguments), MATH, "Net.head")


@pytest.mark.parametrize(
    ("sizes", "odd"),
    [((1001, 64), [1001]), ((999, 1000), [1000]), ((1024, 5003), [5003]), ((65, 1088), [])],
)
def test_large_sizes_of_weights_that_are_no_multiple_of_64_are_odd(
    sizes: tuple[int, int], odd: list[int]
) -> None:
    entry = padded_entry("mm", self=spec(8, 8), mat2=spec(*sizes))

    assert odd_sizes((entry,)) == dict.fromkeys(odd, "Net.head")
    assert odd_sizes((replace(entry, phase="backward"), replace(entry, module=""))) == {}


def test_padding_widens_each_multiple_of_a_size_and_its_strides() -> None:
    entry = padded_entry("view", spec(3, 10006), self=spec(2, 3, 5003), size=5003, other=5004)

    [found] = with_padding((entry,), 5003, 5056)

    assert isinstance(found, OpCall)
    assert found.signature == call(
        "view", spec(3, 10112), self=spec(2, 3, 5056), size=5056, other=5004
    )


def test_images_are_laid_out_by_their_channels_and_nothing_else_is() -> None:
    image, sequence = spec(2, 3, 5, 7), spec(2, 3, 5)
    entry = padded_entry("relu", image, self=sequence)

    [found] = in_channels_last((entry,))

    assert isinstance(found, OpCall)
    assert found.signature.output_tensors == (spec(2, 3, 5, 7, channels_last=True),)
    assert found.signature.tensor("self") == sequence

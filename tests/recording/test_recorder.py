"""The recorder writes down every op, allocation and wait once, from the cache as without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.fake_cuda.session import fake_cuda
from neusight.predictors.errors import UnmappedOpError
from neusight.predictors.gpu import find_gpu
from neusight.recording.call_stack import call_site
from neusight.recording.recorder import Recorder
from neusight.recording.recording import HostWork, OpCall, TensorSpec
from neusight.timeline.host import PLAIN
from recorded_programs import calls, entries, named

# -- tensors ---------------------------------------------------------------------------------------


def test_a_new_tensor_is_row_major() -> None:
    recorder = Recorder()
    like = recorder.mode.new_tensor((), (), torch.float32, torch.device("cuda", 0))

    made = recorder.new_tensor((2, 3, 0, 4), torch.float32, like)

    assert (tuple(made.shape), made.stride()) == ((2, 3, 0, 4), (12, 4, 4, 1))


# -- signatures ------------------------------------------------------------------------------------


def test_arguments_are_plain_values() -> None:
    def program() -> None:
        x = torch.ones(2, 3, device="cuda")
        x.to(torch.float16, memory_format=torch.preserve_format)
        torch.cat([x, x])

    found = calls(program)
    (copy,) = named(found, "_to_copy")
    (cat,) = named(found, "cat")
    (ones,) = named(found, "ones")
    assert copy.signature.by_name["dtype"] == "float16"
    assert cat.signature.by_name["tensors"] == (TensorSpec((2, 3), (3, 1), "float32"),) * 2
    assert ones.signature.by_name["device"] == "cuda"
    for call in found:
        hash(call)


def test_an_op_that_returns_nothing_needs_no_fake_kernel() -> None:
    def program() -> None:
        parameter = torch.ones(8, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, fused=True)
        for _ in range(3):
            parameter.sum().backward()
            optimizer.step()

    found = named(calls(program), "_fused_sgd_")
    assert len(found) >= 1
    assert found[0].signature.outputs == (None,)


# -- the cache -------------------------------------------------------------------------------------


# -- allocations -----------------------------------------------------------------------------------


# -- the host, switches, strictness ----------------------------------------------------------------


def test_work_on_the_cpu_is_summed_up_between_ops_of_the_gpu() -> None:
    def program() -> None:
        torch.ones(1, device="cuda")
        x = torch.ones(1000)
        for _ in range(9):
            x = x + 1
        x.cuda()

    (work,) = [entry for entry in entries(program) if isinstance(entry, HostWork)]
    assert (work.name, work.count) == ("cpu ops", 10)
    assert work.duration_us > 10


def test_strict_recording_fails_at_the_first_op_without_kernels() -> None:
    @torch.library.custom_op("neusight_tests::unmapped", mutates_args=())
    def unmapped(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    unmapped.register_fake(torch.empty_like)

    with neusight.forecast_on("H100", strict=True):
        x = torch.ones(8, device="cuda") + 1
        with pytest.raises(
            UnmappedOpError, match=r"neusight_tests::unmapped at test_recorder.py:\d+"
        ):
            unmapped(x)


def test_two_recorders_do_not_hear_each_other() -> None:
    recorders = []
    for width in (4, 8):
        recorder = Recorder()
        with fake_cuda(
            recorder,
            find_gpu("H100"),
            price=lambda call: (),
            host=PLAIN,
            on_query=lambda *query: None,
        ):
            torch.ones(width, device="cuda")
        recorder.cutter.finish()
        recorders.append(recorder)

    shapes = [
        [e.signature.output_tensors[0].shape for s in r.cutter.steps for e in s.entries
         if isinstance(e, OpCall)]
        for r in recorders
    ]  # fmt: skip
    assert shapes == [[(4,)], [(8,)]]


def test_the_line_of_the_script_is_found() -> None:
    file, _, line = call_site().partition(":")

    assert file == "test_recorder.py"
    assert int(line) > 0


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """A process group of four ranks of which this process is the first; nothing is sent."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    torch.distributed.destroy_process_group()


class _Blocks(nn.Module):
    """Two layers norm, up, down with a residual; `width` is the inner size on this rank."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(256), nn.Linear(256, width), nn.ReLU(), nn.Linear(width, 256)
            )
            for _ in range(2)
        )

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = x + layer(x)
        return x


def _steps(model: nn.Module, x: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(3):
        out = model(x)
        out = out.to_local() if hasattr(out, "to_local") else out
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _tensor_parallel(model: _Blocks, *, sequence: bool) -> Any:
    """Splits the model over four ranks, and gives the input's kind."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor import parallel as tp

    mesh = init_device_mesh("cuda", (4,))
    plan: dict[str, Any] = {"1": tp.ColwiseParallel(), "3": tp.RowwiseParallel()}
    if sequence:
        plan = {
            "0": tp.SequenceParallel(),
            "1": tp.ColwiseParallel(input_layouts=Shard(1)),
            "3": tp.RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        }
    for layer in model.layers:
        tp.parallelize_module(layer, mesh, plan)
    x = torch.ones(4, 64, 256, device="cuda")
    return DTensor.from_local(x[:, :16], mesh, [Shard(1)], run_check=False) if sequence else x


@pytest.mark.parametrize("sequence", [False, True])
def test_split_tensors_cost_the_host_what_their_parts_do(sequence: bool, four_ranks: None) -> None:
    with neusight.forecast_on("H100") as alone:
        _steps(_Blocks(256).cuda(), torch.ones(4, 64, 256, device="cuda"))
    with neusight.forecast_on("H100") as split:
        model = _Blocks(1024).cuda()
        x = _tensor_parallel(model, sequence=sequence)
        _steps(model, x)

    # What a step does on the CPU is nothing: all its ops are on the GPU.
    assert not [e for e in split.recording.steps[-2].entries if isinstance(e, HostWork)]
    ops, split_ops = (_ops_of_step(each) for each in (alone, split))
    own = [op for op in split_ops if not op.startswith("_c10d")]
    assert own.count("aten::addmm") + own.count("aten::mm") >= ops.count("aten::addmm")
    assert any(op.startswith("_c10d") for op in split_ops)
    alone_us, split_us = (each.steps[-2]["host_us"] for each in (alone, split))
    assert split_us <= alone_us * len(split_ops) / len(ops) * 1.3  # collectives cost more


def _ops_of_step(forecast: neusight.Forecast) -> list[str]:
    entries = forecast.recording.steps[-2].entries
    return [entry.signature.op for entry in entries if isinstance(entry, OpCall)]


def test_shapes_asked_in_a_mode_of_the_script_are_not_work() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with neusight.forecast_on("H100") as forecast:
        x = torch.ones(64, device="cuda")
        with FakeTensorMode():
            y = torch.empty(4096, 4096) @ torch.empty(4096, 4096)
        x.mul_(2)

    entries = [entry for step in forecast.recording.steps for entry in step.entries]
    assert y.shape == (4096, 4096)
    assert [e.signature.op for e in entries if isinstance(e, OpCall)] == [
        "aten::ones",
        "aten::mul_",
    ]
    assert not [e for e in entries if isinstance(e, HostWork)]


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")
def test_what_torch_traces_for_itself_goes_to_its_own_modes() -> None:
    """An exported program is decomposed under a mode of functional tensors."""
    with neusight.forecast_on("H100"):
        model = torch.nn.Linear(8, 8).cuda()
        exported = torch.export.export(model, (torch.ones(2, 8, device="cuda"),))
        targets = {str(node.target) for node in exported.run_decompositions().graph.nodes}

    assert "aten.addmm.default" in targets


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor])
def test_arrays_become_tensors_of_the_gpu_in_inference_mode(make: Any) -> None:
    """There torch passes `to` on as it is called: with the device as a plain argument."""
    numpy = pytest.importorskip("numpy")
    with neusight.forecast_on("H100"), torch.inference_mode():
        made = make(numpy.ones(3), device="cuda", dtype=torch.float16)

        assert (made.device.type, made.dtype, made.tolist()) == ("cuda", torch.float16, [1.0] * 3)

"""The table of torch's private names is complete, holds here, and names what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch_names import Uses, packages, uses_by_package

import neusight
from neusight.compatibility import torch_internals
from neusight.compatibility.torch_internals import (
    FEATURES,
    TorchInternal,
    error_of_missing_name,
    missing,
    require,
    table,
)
from neusight.integrations.cli.main import main
from neusight.predictors.errors import UnsupportedTorchError

#: Private names of Python and of other packages that the sources use, and parts of names.
NOT_OF_TORCH = {
    *(
        "_C",
        "_FINEGRAINED_FP8",
        "_assisted_decoding",
        "_ArgumentGroup",
        "_abc",
        "_functools",
        "_sent",
        "_actions",
        "_asdict",
        "_attn_implementation",
        "_bincount_cuda",
        "_bootstrap",
        "_bootstrap_inner",
    ),
    *("_build_backward_module", "_exit", "_exit_function", "_extra_reducers", "_field_defaults"),
    "_fields",
    *("_file_openers", "_frozen_importlib", "_frozen_importlib_external", "_get_modules"),
    *("_getframe", "_io", "_lru_cache_wrapper", "_NormalAccessor", "_obj"),
    *("_nvmlGetFunctionPointer_cache", "_original_stdstream_copy", "_process_distributed_profiles"),
    *("_registry", "_resolve_filesystem_and_path", "_shutdown", "_slotnames"),
    *("_TemporaryFileCloser", "_active", "_at_", "_csc", "_csr", "_late", "_made_of"),
    *("_neusight_answers", "_neusight_process", "_ns", "_split_sizes", "_v2", "_v3"),
    *("_c10d_functional", "_allgather_base_", "_reduce_scatter_base_"),  # ops, which have schemas
    "_wrap_tensor_autograd",
    *("_cuda_get", "_cuda_reset", "_cuda_set"),  # beginnings of names
}


def rows_of(package: str) -> list[TorchInternal]:
    return [row for row in table() if row.package == package]


def is_listed(dotted: str, rows: list[TorchInternal]) -> bool:
    """Whether it is a row, below one (an attribute of a class), or the way to one."""
    return any(
        dotted == row.name
        or (dotted.startswith(f"{row.name}.") and row.check != "module")
        or row.name.startswith(f"{dotted}.")
        for row in rows
    )


@pytest.mark.parametrize("package", sorted(packages()))
def test_every_private_name_of_torch_in_the_sources_is_in_the_table(package: str) -> None:
    uses, rows = uses_by_package()[package], rows_of(package)
    last = {part for row in rows for part in row.name.split(".")}

    dotted = [f"{place} {name}" for name, place in uses.dotted.items() if not is_listed(name, rows)]
    loose = [
        f"{place} {name}"
        for name, place in uses.loose.items()
        if name not in last | NOT_OF_TORCH and not hasattr(torch.ops.aten, name)
    ]

    assert dotted + loose == []


def test_every_row_of_the_table_is_used_where_it_says() -> None:
    assert [row for row in table() if not is_used(row)] == []


def is_used(row: TorchInternal) -> bool:
    uses = uses_by_package().get(row.package, Uses())
    below = (f"{row.name}.", row.name)
    return (
        row.name in uses.dotted
        or any(name.startswith(below) for name in uses.dotted)
        or row.name.rpartition(".")[2] in uses.identifiers
    )


def test_the_table_is_sorted_and_says_once_what_each_package_needs() -> None:
    keys = [(row.name, row.package) for row in table()]

    assert keys == sorted(set(keys))
    assert {row.feature for row in table()} == set(FEATURES)
    assert {row.check for row in table()} == set(torch_internals._CHECKS)


@pytest.mark.slow
def test_this_torch_has_all_of_them() -> None:
    script = "from neusight.compatibility.torch_internals import missing; print(missing())"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (torch._C, "_current_graph_task_id"),
        (torch._subclasses.fake_tensor, "FakeTensorMode"),
        (torch.nn.Module, "_apply"),
    ],
)
def test_a_forecast_names_what_torch_lacks_before_it_opens(
    owner: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(owner, name)

    with (
        pytest.raises(UnsupportedTorchError) as caught,
        neusight.forecast_on("H100"),
    ):
        pass

    text = str(caught.value)
    assert text.startswith(f"torch {torch.__version__} has no torch.")
    assert f".{name}" in text
    assert "which neusight relies on (UnsupportedTorchError before a forecast begins)" in text
    assert "pip install" in text


def test_several_missing_names_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    monkeypatch.delattr(torch._C, "_current_autograd_node")

    with pytest.raises(UnsupportedTorchError, match=r"_node and 1 more \(`neusight doctor` lists"):
        require("opening")


def test_process_groups_are_refused_only_where_a_program_creates_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(dist.distributed_c10d, "_rank_not_in_group")

    with neusight.forecast_on("H100") as forecast:
        torch.ones(4, device="cuda").add(1)
        with pytest.raises(UnsupportedTorchError, match=r"distributed_c10d\._rank_not_in_group"):
            dist.init_process_group("nccl")

    assert forecast.latency_us > 0
    with (
        pytest.raises(UnsupportedTorchError, match=r"_rank_not_in_group.* process group"),
        neusight.forecast_on("H100", world_size=2),
    ):
        pass


def test_a_name_that_is_first_needed_in_the_middle_of_a_program_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        pytest.raises(
            UnsupportedTorchError, match=r"has no torch\._C\._get_cudnn_benchmark"
        ) as caught,
        neusight.forecast_on("H100"),
    ):
        image = torch.ones(1, 3, 8, 8, device="cuda")
        monkeypatch.delattr(torch._C, "_get_cudnn_benchmark")
        torch.nn.functional.conv2d(image, image)

    assert isinstance(caught.value.__cause__, AttributeError)


def test_other_errors_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_swap_tensor_impl")

    class Mine:
        pass

    with pytest.raises(AttributeError) as caught:
        Mine()._swap_tensor_impl  # type: ignore[attr-defined]  # noqa: B018

    assert error_of_missing_name(caught.value) is None
    assert error_of_missing_name(ValueError("_swap_tensor_impl")) is None
    assert error_of_missing_name(AttributeError("made by hand")) is None


def test_an_import_of_a_missing_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._dynamo.eval_frame, "set_eval_frame")

    with pytest.raises(ImportError) as caught:
        from torch._C._dynamo.eval_frame import set_eval_frame  # noqa: F401

    found = error_of_missing_name(caught.value)
    assert found is not None
    assert "has no torch._C._dynamo.eval_frame.set_eval_frame, which" in str(found)


def test_the_command_line_names_it_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        torch._C._no_such_name  # type: ignore[attr-defined]  # noqa: B018

    row = TorchInternal("torch._C._no_such_name", "neusight", "opening", "attribute")
    monkeypatch.setattr(torch_internals, "table", lambda: (row,))
    monkeypatch.setattr("neusight.integrations.cli.commands.gpus.run", lambda options: fail())

    assert main(["gpus"]) == 4
    assert "neusight: torch" in (stated := capsys.readouterr().err)
    assert "has no torch._C._no_such_name, which neusight relies on" in stated


def test_what_is_missing_is_listed_with_its_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        TorchInternal("torch._no_such_module", "neusight", "first use", "module"),
        TorchInternal("torch._C._cuda_no_such", "neusight", "CUDA build", "source"),
        TorchInternal("torch._C._cuda_synchronize", "neusight", "CUDA build", "source"),
        TorchInternal("torch._whatever", "neusight", "optional", "none"),
        TorchInternal("torch._ops.OpOverload._no_such", "neusight", "opening", "attribute"),
    )
    monkeypatch.setattr(torch_internals, "table", lambda: rows)

    assert missing() == [rows[0], rows[1], rows[4]]
    assert missing("opening") == [rows[4]]

"""A mistake of the script is reported as it would be on a GPU."""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neusight.recording.dispatch.eager_errors import eager_error, quiet_fake_kernels
from neusight.session import forecast_on


class Operands:
    """What the mistakes are made with, on one device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, *shape: int, requires_grad: bool = False) -> Tensor:
        return torch.randn(*shape, device=self.device, requires_grad=requires_grad)

    def index(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.long, device=self.device)

    def mask(self, *shape: int) -> Tensor:
        return torch.ones(*shape, dtype=torch.bool, device=self.device)

    def module(self, module: nn.Module) -> nn.Module:
        return module.to(self.device)


Mistake = Callable[[Operands], object]
MISTAKES: dict[str, Mistake] = {
    "linear": lambda on: on.module(nn.Linear(6, 7))(on(4, 5)),
    "linear of a batch": lambda on: on.module(nn.Linear(6, 7))(on(2, 4, 5)),
    "linear in double": lambda on: on.module(nn.Linear(5, 6))(on(4, 5).double()),
    "linear of integers": lambda on: on.module(nn.Linear(5, 6))(on.index(4, 5)),
    "mm": lambda on: on(4, 5) @ on(6, 7),
    "mv": lambda on: on(4, 5) @ on(6),
    "dot": lambda on: torch.dot(on(4), on(6)),
    "bmm": lambda on: torch.bmm(on(2, 4, 5), on(3, 5, 6)),
    "mm of two dtypes": lambda on: on(4, 5) @ on(5, 6).half(),
    "addmm": lambda on: torch.addmm(on(9), on(4, 5), on(5, 6)),
    "einsum": lambda on: torch.einsum("ij,jk->ik", on(4, 5), on(6, 7)),
    "add": lambda on: on(4, 5) + on(4, 6),
    "add in place": lambda on: on(4, 5).add_(on(2, 4, 5)),
    "where": lambda on: torch.where(on(4, 5) > 0, on(4, 6), on(4, 5)),
    "copy": lambda on: on(4, 5).copy_(on(4, 6)),
    "cat": lambda on: torch.cat([on(4, 5), on(4, 6)]),
    "cat of other dimensions": lambda on: torch.cat([on(4, 5), on(4, 6, 7)]),
    "stack": lambda on: torch.stack([on(4, 5), on(4, 6)]),
    "view": lambda on: on(4, 5).view(3, 7),
    "view across strides": lambda on: on(4, 5).t().view(20),
    "expand": lambda on: on(4, 5).expand(3, 5),
    "index": lambda on: on(4, 5)[7],
    "index of tensors": lambda on: on(4, 5)[on.index(2), on.index(3)],
    "index by a mask": lambda on: on(4, 5)[on.mask(3)],
    "assign by a mask": lambda on: on(4, 5).__setitem__(on.mask(3), 1.0),
    "assign": lambda on: on(4, 5).__setitem__(0, on(3)),
    "index_select": lambda on: on(4, 5).index_select(0, on(2)),
    "gather": lambda on: on(4, 5).gather(1, on(4, 5)),
    "topk": lambda on: on(4, 5).topk(9),
    "sum": lambda on: on(4, 5).sum(dim=3),
    "softmax": lambda on: torch.softmax(on(4, 5), dim=2),
    "mean of integers": lambda on: on.index(4).mean(),
    "convolution": lambda on: on.module(nn.Conv2d(3, 8, 3))(on(2, 4, 16, 16)),
    "batch norm": lambda on: on.module(nn.BatchNorm2d(8))(on(2, 4, 6, 6)),
    "layer norm": lambda on: on.module(nn.LayerNorm(8))(on(2, 4)),
    "cross entropy": lambda on: F.cross_entropy(on(4, 5), on.index(6)),
    "cross entropy of floats": lambda on: F.cross_entropy(on(4, 5), on(4)),
    "nll of int32": lambda on: F.nll_loss(on(4, 5), on.index(4).int()),
    "embedding of floats": lambda on: on.module(nn.Embedding(5, 6))(on(4)),
    "assignment of another dtype": lambda on: on(4, 5).__setitem__(on.index(2), on(2, 5).half()),
    "masked_select by floats": lambda on: on(4, 5).masked_select(on(4, 5)),
    "a bias of another dtype": lambda on: F.linear(on(4, 5), on(6, 5), on(6).half()),
    "sort": lambda on: on(3).sort(dim=1),
    "variance of integers": lambda on: on.index(3).var(),
    "a negative power": lambda on: on.index(3).pow(-1),
    "the largest of none": lambda on: on(0).max(),
    "lengths in no order": lambda on: nn.utils.rnn.pack_padded_sequence(
        on(3, 2, 8), torch.tensor([2, 3])
    ),
    "index_add of another dtype": lambda on: on(4, 5).index_add(
        0, on.index(2), on(2, 5).bfloat16()
    ),
    "index_add_ of another dtype": lambda on: on(4, 5).half().index_add_(0, on.index(2), on(2, 5)),
    "index_add at floats": lambda on: on(4, 5).index_add(0, on(2), on(2, 5)),
    "index_add of another shape": lambda on: on(4, 5).index_add(0, on.index(2), on(2, 6)),
    "index_copy of another dtype": lambda on: on(4, 5).index_copy(0, on.index(2), on(2, 5).half()),
    "index_copy at int32": lambda on: on(4, 5).index_copy_(0, on.index(2).int(), on(2, 5)),
    "index_fill at int32": lambda on: on(4, 5).index_fill_(0, on.index(2).int(), 1.0),
    "index_reduce of another dtype": lambda on: on(4, 5).index_reduce_(
        0, on.index(2), on(2, 5).half(), "amax"
    ),
    "scatter of another dtype": lambda on: on(4, 5).scatter_(0, on.index(2, 5), on(2, 5).half()),
    "put of another dtype": lambda on: on(4, 5).put_(on.index(2), on(2).half()),
    "masked_fill beyond the range": lambda on: on(4, 5).half().masked_fill(on.mask(4, 5), -1e9),
    "mv of two dtypes": lambda on: on(4, 5) @ on(5).bfloat16(),
    "weights of classes of another dtype": lambda on: F.cross_entropy(
        on(4, 5), on.index(4), weight=on(5).half()
    ),
    "binary cross entropy of classes": lambda on: F.binary_cross_entropy(on(4), on.index(4)),
    "a grid of another dtype": lambda on: F.grid_sample(
        on(1, 3, 4, 4), on(1, 2, 2, 2).half(), align_corners=False
    ),
    "samples of integers": lambda on: on.index(4).multinomial(1),
    "more samples than there are": lambda on: on(4).multinomial(5),
    "add to one element many times": lambda on: on(3).expand(4, 3).add_(1),
    "copy to one element many times": lambda on: on(1).expand(3).copy_(on(3)),
    "scatter to one element many times": lambda on: (
        on(1, 3).expand(3, 3).scatter_(0, on.index(1, 3), 1.0)
    ),
    "a range upside down": lambda on: on(3).uniform_(3, -1),
    "a range that ends below 0": lambda on: on(3).uniform_(3),
    "integers of no range": lambda on: on(3).random_(5, 5),
    "integers up to 0": lambda on: on(3).random_(0),
    "a probability above 1": lambda on: on(3).bernoulli_(1.5),
    "a probability below 0": lambda on: on(3).bernoulli_(-0.5),
    "bounds of two dimensions": lambda on: torch.bucketize(on(3), on(2, 2)),
    "counts of a matrix": lambda on: torch.bincount(on.index(3, 2)),
    "counts by other weights": lambda on: torch.bincount(on.index(3), on(2)),
    "complex of two dtypes": lambda on: torch.complex(on(3), on(3).double()),
    "labels of another shape": lambda on: F.multilabel_margin_loss(on(2, 3), on.index(2, 2)),
    "labels of nothing": lambda on: F.multilabel_margin_loss(on(2, 0), on.index(2, 0)),
    "masked_scatter by bytes": lambda on: on(3).masked_scatter(on.mask(3).byte(), on(3)),
    "masked_scatter_ by bytes": lambda on: on(3).masked_scatter_(on.mask(3).byte(), on(3)),
    "least squares of a vector": lambda on: torch.linalg.lstsq(on(3), on(3)),
    "reflectors of a vector": lambda on: torch.ormqr(on(3), on(3), on(3)),
    "reflectors of another number": lambda on: torch.ormqr(on(5, 2), on(5), on(5, 5)),
    "samples of too many": lambda on: on(2**24 + 1).multinomial(2),
    "relu of truth values": lambda on: F.relu(on.mask(4)),
    "attention": lambda on: F.scaled_dot_product_attention(
        on(1, 2, 3, 8), on(1, 2, 4, 16), on(1, 2, 4, 16)
    ),
    "backward of many": lambda on: (on(4, 5, requires_grad=True) * 2).backward(),
    "backward of none": lambda on: on(4, 5).sum().backward(),
    "a leaf in place": lambda on: on(4, requires_grad=True).add_(1),
    "item of many": lambda on: on(4).item(),
    "no such attribute": lambda on: getattr(on(4), "shape" + "s"),
    "a text": lambda on: operator.add(on(4), "1"),
}


def stated(mistake: Mistake, on: Operands) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            mistake(on)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "nothing"


def test_every_mistake_is_reported_in_the_words_of_eager_torch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = {name: stated(mistake, Operands("cpu")) for name, mistake in MISTAKES.items()}

    with forecast_on("H100"):
        Operands("cuda")(1).add_(1)
        found = {name: stated(mistake, Operands("cuda")) for name, mistake in MISTAKES.items()}

    assert "nothing" not in expected.values()
    assert {name: words.replace("cuda:0", "cpu") for name, words in found.items()} == expected
    assert caplog.records == []


UNKNOWN_DTYPES: dict[str, tuple[Mistake, str]] = {
    "mm": (lambda on: on.index(4, 5) @ on.index(5, 6), "addmm_cuda' 'Long"),
    "mm of int8": (lambda on: on.index(4, 5).char() @ on.index(5, 6).char(), "addmm_cuda' 'Char"),
    "linear": (lambda on: F.linear(on.mask(4, 5), on.mask(6, 5)), "addmm_cuda' 'Bool"),
    "bmm": (lambda on: on.index(2, 4, 5).int() @ on.index(2, 5, 6).int(), "baddbmm_cuda' 'Int"),
    "mv": (lambda on: on.index(4, 5) @ on.index(5), "addmv_impl_cuda' 'Long"),
    "dot": (lambda on: on.index(4) @ on.index(4), "dot' 'Long"),
    "softmax": (lambda on: on.index(4, 5).softmax(1), "host_softmax' 'Long"),
    "cross entropy": (
        lambda on: F.cross_entropy(on.index(4, 5), on.index(4)),
        "host_softmax' 'Long",
    ),
    "layer norm": (lambda on: F.layer_norm(on.index(4, 5), (5,)), "LayerNormKernelImpl' 'Long"),
    "gelu": (lambda on: F.gelu(on.index(4)), "GeluCUDAKernelImpl' 'Long"),
    "silu": (lambda on: F.silu(on.index(4).int()), "silu_cuda' 'Int"),
    "mean squared error": (lambda on: F.mse_loss(on.index(4), on.index(4)), "mse_cuda' 'Long"),
    "and": (lambda on: on.mask(4) & on(4), "bitwise_and_cuda' 'Float"),
    "uniform": (lambda on: on.index(4).uniform_(), "check_uniform_bounds' 'Long"),
    "cholesky": (lambda on: torch.linalg.cholesky(on(4, 4).half()), "cholesky_cusolver' 'Half"),
    "counts": (lambda on: torch.bincount(on(3)), "bincount_cuda' 'Float"),
    "qr": (lambda on: torch.linalg.qr(on(4, 4).bfloat16()), "geqrf_cuda' 'BFloat16"),
}


def test_an_op_without_a_kernel_for_a_dtype_fails_as_on_a_gpu() -> None:
    with forecast_on("H100"):
        Operands("cuda")(1).add_(1)
        found = {name: stated(op, Operands("cuda")) for name, (op, _) in UNKNOWN_DTYPES.items()}

    expected = {name: words.split("' '") for name, (_, words) in UNKNOWN_DTYPES.items()}
    assert found == {
        name: f"NotImplementedError: \"{kernel}\" not implemented for '{dtype}'"
        for name, (kernel, dtype) in expected.items()
    }


def test_a_convolution_of_two_dtypes_fails_as_on_a_gpu() -> None:
    with forecast_on("H100"):
        on = Operands("cuda")
        net = on.module(nn.Conv2d(3, 8, 3, bias=False)).half()
        found = stated(lambda on: net(on(2, 3, 16, 16)), on)

    assert found == (
        "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type "
        "(torch.cuda.HalfTensor) should be the same"
    )


@pytest.mark.parametrize(
    ("bias", "kinds"),
    [
        (lambda: torch.zeros(8, device="cuda").half(), ("float", "c10::Half")),
        (lambda: torch.zeros(8), ("torch.cuda.FloatTensor", "torch.FloatTensor")),
    ],
)
def test_a_bias_that_is_not_as_the_data_fails_as_on_a_gpu(
    bias: Callable[[], Tensor], kinds: tuple[str, str]
) -> None:
    with forecast_on("H100"):
        on = Operands("cuda")
        found = stated(lambda on: F.conv2d(on(2, 3, 9, 9), on(8, 3, 3, 3), bias()), on)

    assert found == (
        f"RuntimeError: Input type ({kinds[0]}) and bias type ({kinds[1]}) should be the same"
    )


def test_operands_that_are_right_are_not_refused() -> None:
    with forecast_on("H100") as forecast:
        on = Operands("cuda")
        on(4, 5).half() @ on(5, 6).half()
        on(4, 5)[on.mask(4)]
        on(4, 5)[on.mask(4, 5)]
        on(4, 5)[:, on.mask(5)]
        torch.softmax(on(4, 5), dim=-2)
        torch.softmax(torch.ones((), device="cuda"), dim=0)
        torch.ones((), device="cuda").sort()
        on(4, 5).sort(stable=True, dim=-1)
        on(4, 5).var(dim=1)
        on(4, 5).half().__setitem__(on.mask(4, 5), 1.0)
        on(4, 5).masked_select(on.mask(4, 5))
        on.index(3).pow(2)
        on(4, 5).index_add(0, on.index(2).int(), on(2, 5))
        on(4, 5).half().index_add_(-1, on.index(2), on(4, 2).half(), alpha=2.0)
        on(4, 5).index_copy(1, on.index(2), on(4, 2))
        on(4, 5).half().masked_fill(on.mask(4, 5), float("-inf"))
        on(4, 5).half().masked_fill(on.mask(4, 5), -65504.0)
        on(4, 5).masked_fill(on.mask(4, 5), -1e9)
        on(4).multinomial(5, replacement=True)
        on(3).expand(2, 3).zero_()
        on(1).expand(3).fill_(2.0)
        on(1, 3).expand(1, 3).add_(1)
        on(3).uniform_(1, 1).uniform_().uniform_(0.5)
        on(3).random_(4, 5).random_(1).random_()
        on(3).bernoulli_(0.0).bernoulli_(1.0).bernoulli_()
        torch.bincount(on.index(3), on(3))
        torch.bincount(on.index(3))
        torch.bucketize(on(2, 2), on(3))
        on(3).masked_scatter_(on.mask(3), on(3))
        on(2**12, 2).multinomial(1)
        on.index(0, 5) @ on.index(5, 6)
        F.softmax(on.index(4, 5), dim=1, dtype=torch.float32)
        F.mse_loss(on(4), on.index(4))
        on.mask(4) & on.index(4)
        torch.linalg.qr(on(4, 4))
        F.cross_entropy(on(4, 5), on.index(4), weight=on(5))
        with torch.autocast("cuda", torch.bfloat16):
            F.conv2d(on(2, 3, 8, 8), on(4, 3, 3, 3).half())

    assert forecast.recording.num_ops > 0


def gradient_of(run: Callable[[Tensor], Tensor], *shape: int) -> None:
    run(Operands("cuda")(*shape, requires_grad=True)).sum().backward()


#: What is refused where only deterministic kernels are wanted, by the kernel.
NOT_DETERMINISTIC: dict[str, Callable[[], object]] = {
    "adaptive_avg_pool2d_backward_cuda": lambda: gradient_of(nn.AdaptiveAvgPool2d(3), 1, 2, 7, 7),
    "adaptive_max_pool2d_backward_cuda": lambda: gradient_of(nn.AdaptiveMaxPool2d(3), 1, 2, 7, 7),
    "avg_pool3d_backward_cuda": lambda: gradient_of(nn.AvgPool3d(2), 1, 2, 4, 4, 4),
    "max_unpooling2d_forward_out": lambda: F.max_unpool2d(
        Operands("cuda")(1, 1, 2, 2), Operands("cuda").index(1, 1, 2, 2), [2, 2]
    ),
    "upsample_bicubic2d_backward_out_cuda": lambda: gradient_of(
        lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), 1, 2, 4, 4
    ),
    "reflection_pad2d_backward_cuda": lambda: gradient_of(nn.ReflectionPad2d(1), 1, 2, 4, 4),
    "nll_loss2d_forward_out_cuda_template": lambda: F.cross_entropy(
        Operands("cuda")(1, 3, 4, 4), Operands("cuda").index(1, 4, 4)
    ),
    "ctc_loss_backward_gpu": lambda: gradient_of(
        lambda x: F.ctc_loss(
            x.log_softmax(2), Operands("cuda").index(2, 3) + 1, torch.tensor([5, 5]),
            torch.tensor([3, 3]),
        ),
        5, 2, 4,
    ),
    "put_": lambda: Operands("cuda")(4).put_(Operands("cuda").index(1), Operands("cuda")(1)),
    "_histc_cuda with floating point input": lambda: torch.histc(Operands("cuda")(4)),
    "_bincount_cuda": lambda: torch.bincount(Operands("cuda").index(4), Operands("cuda")(4)),
    "median CUDA with indices output": lambda: Operands("cuda")(4).median(0),
    "grid_sampler_2d_backward_cuda": lambda: gradient_of(
        lambda x: F.grid_sample(x, Operands("cuda")(1, 2, 2, 2), align_corners=False), 1, 2, 4, 4
    ),
    "cumsum_cuda_kernel": lambda: Operands("cuda")(4).cumsum(0),
}  # fmt: skip


@pytest.mark.parametrize("kernel", sorted(NOT_DETERMINISTIC))
def test_what_has_no_deterministic_kernel_is_refused_where_one_is_wanted(kernel: str) -> None:
    words = f"{kernel} does not have a deterministic implementation"
    with forecast_on("H100"):
        torch.use_deterministic_algorithms(True)
        try:
            with pytest.raises(RuntimeError) as caught:
                NOT_DETERMINISTIC[kernel]()
            torch.use_deterministic_algorithms(True, warn_only=True)
            with pytest.warns(UserWarning, match=f"^{words}.*warn_only=True"):
                NOT_DETERMINISTIC[kernel]()
        finally:
            torch.use_deterministic_algorithms(False)
    with forecast_on("H100"), warnings.catch_warnings():
        warnings.simplefilter("error")
        NOT_DETERMINISTIC[kernel]()

    assert str(caught.value).startswith(
        f"{words}, but you set 'torch.use_deterministic_algorithms(True)'. You can turn off"
    )


def test_what_is_deterministic_runs_where_that_is_wanted() -> None:
    with forecast_on("H100"):
        on = Operands("cuda")
        torch.use_deterministic_algorithms(True)
        try:
            on.index(4).cumsum(0)
            torch.bincount(on.index(4))
            on(4).scatter_add_(0, on.index(2), on(2))
            gradient_of(nn.AdaptiveAvgPool2d(1), 1, 2, 7, 7)
            gradient_of(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), 1, 2, 4, 4)
        finally:
            torch.use_deterministic_algorithms(False)


def test_operands_too_large_for_the_cpu_keep_the_words_of_the_fake_kernel() -> None:
    with forecast_on("H100"):
        big = torch.empty(100_000, 5_000, device="cuda")

        with pytest.raises(RuntimeError, match="100000"):
            big @ big


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        (torch.ops.aten.mm.default, (torch.ones(2, 3), torch.ones(3, 2)), {}),
        (torch.ops.aten.bitwise_and.Tensor, (torch.ones(2), torch.ones(2)), {}),
        (torch.ops.aten._cudnn_init_dropout_state.default, (0.5, True, 7), {}),
        (torch.ops.aten.zeros.default, ([2],), {"device": torch.device("cuda")}),
    ],
    ids=["it goes well", "another dtype on the CPU", "no kernel on the CPU", "a device"],
)
def test_what_the_cpu_does_not_refuse_says_nothing(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert eager_error(op, args, kwargs) is None


def test_the_log_of_fake_kernels_speaks_again_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = list(log.filters)

    with quiet_fake_kernels():
        log.error("failed while attempting to run meta for %s", "aten.mm")
        log.error("another word")

    assert log.filters == before
    assert "failed while" not in caplog.text

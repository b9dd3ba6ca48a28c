"""Tensors that an op makes for itself."""

from __future__ import annotations

import pytest

from neusight.memory.placement import memory_of, memory_on
from neusight.memory.temporaries import temporaries_of
from neusight.memory.workspaces import Need, Workspaces
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import Alloc, Free, MathMode, OpCall, Recording, Step, StorageRef
from op_calls import call, spec

MATH = MathMode()


def test_softmaxs_backward_multiplies_gradient_and_output_first() -> None:
    """A public table of softmax on an RTX 3090 has six buffers: the input and its gradient, the
    output and what it is given, the new gradient, and this one."""
    x = spec(8, 4096)

    assert temporaries_of(call("_softmax_backward_data", x, grad_output=x, output=x, dim=1)) == (
        8 * 4096 * 4,
    )
    assert (
        temporaries_of(call("_log_softmax_backward_data", x, grad_output=x, output=x, dim=1)) == ()
    )


@pytest.mark.parametrize(
    ("num_weights", "num_bytes"), [(1024, 8608560), (16384, 56163120), (131072, 56163120)]
)
def test_an_embeddings_gradient_holds_a_row_for_each_part_of_a_segment(
    num_weights: int, num_bytes: int
) -> None:
    """16384 tokens by 768: a public table of embeddings on an A100 grows by 3 KiB for each row of
    the vocabulary beside the four tables, up to 16384 rows."""
    grad, indices = spec(16384, 768), spec(16384, dtype="int64")

    sizes = temporaries_of(
        call(
            "embedding_dense_backward", spec(num_weights, 768),
            grad_output=grad, indices=indices, num_weights=num_weights, padding_idx=-1,
            scale_grad_by_freq=False,
        )
    )  # fmt: skip

    assert sum(sizes) == num_bytes


def test_few_indices_are_added_without_sorting() -> None:
    sizes = temporaries_of(
        call(
            "embedding_dense_backward", spec(100, 768),
            grad_output=spec(3072, 768), indices=spec(3072, dtype="int64"), num_weights=100,
            padding_idx=-1, scale_grad_by_freq=False,
        )
    )  # fmt: skip

    assert sizes == ()


def test_a_matrix_that_cublas_cannot_read_is_copied() -> None:
    expanded = spec(64, 256)._replace(stride=(0, 0))

    assert temporaries_of(call("mm", spec(64, 8), self=expanded, mat2=spec(256, 8))) == (
        64 * 256 * 4,
    )
    assert temporaries_of(call("mm", spec(64, 8), self=spec(64, 256), mat2=spec(256, 8))) == ()


def test_a_loss_has_its_elements_before_their_mean() -> None:
    x = spec(1000)

    assert temporaries_of(call("mse_loss", spec(), self=x, target=x, reduction=1)) == (4000,)
    assert temporaries_of(call("mse_loss", x, self=x, target=x, reduction=0)) == ()


def test_ops_that_torch_writes_out_of_others_hold_what_lies_between() -> None:
    x = spec(10, 100)

    assert temporaries_of(call("logsumexp", spec(10), self=x, dim=(1,))) == (4000,)
    assert temporaries_of(call("_safe_softmax", x, self=x, dim=1)) == (4000, 1000)
    mean, each = (
        call("binary_cross_entropy_with_logits", out, self=x, target=x, reduction=reduction)
        for out, reduction in ((spec(), 1), (x, 0))
    )
    assert (temporaries_of(mean), temporaries_of(each)) == ((4000, 4000), (4000,))


def test_a_convolutions_operands_are_copied_into_one_format_once_for_both_gradients() -> None:
    image, weight = spec(8, 16, 32, 32), spec(16, 16, 3, 3)
    expanded = image._replace(stride=(0, 0, 0, 0))
    backward = call(
        "convolution_backward", image, weight,
        grad_output=expanded, input=image, weight=weight, bias_sizes=(), stride=(1, 1),
        padding=(1, 1), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1,
        output_mask=(True, True, False),
    )  # fmt: skip

    needs = Workspaces(find_gpu("A100"), "2.13.0").of(backward, MATH)

    assert [need for need in needs if need.name.startswith("temporary")] == [
        Need("temporary 0", 8 * 16 * 32 * 32 * 4)
    ]


def test_temporaries_are_held_together_and_given_back_with_the_op() -> None:
    """A loss over an expanded target: its elements, beside nothing else that lasts."""
    x = spec(2**20)
    loss = call("mse_loss", spec(), self=x, target=x, reduction=1)
    entries = (
        Alloc(0, 4 * 2**20),
        OpCall(loss, MATH),
        Alloc(1, 4, op="aten::mse_loss"),
        Free(StorageRef(0, 0)),
    )
    recording = Recording((Step("eval", entries),), gpu="A100-SXM4-80GB", torch_version="2.13")

    memory = memory_on(recording, find_gpu("A100"))

    assert memory.peak_allocated == 8 * 2**20 + 512
    assert memory_of(recording).peak_allocated == 4 * 2**20 + 512
    assert memory.steps[-1].end_allocated == 512

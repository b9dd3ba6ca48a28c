"""Embeddings, gathers and scatters: what they read and write."""

from __future__ import annotations

from neusight.recording.recording import MathMode, TensorSpec
from op_calls import call, kernels, names, spec


def test_rows_are_gathered_by_wide_loads_since_torch_2_8() -> None:
    def layout(width: int, torch: tuple[int, int]) -> str:
        signature = call("index_select", spec(8, width), self=spec(100, width), dim=0,
                         index=spec(8, dtype="int64"))  # fmt: skip
        return kernels(signature, MathMode(torch=torch))[0].layout

    assert (layout(512, (2, 7)), layout(512, (2, 8))) == ("scalar", "contiguous")
    assert layout(511, (2, 8)) == "scalar"  # no multiple of 16 bytes


def test_before_torch_2_8_a_thread_looks_up_all_of_up_to_16_indices() -> None:
    def variant(count: int, torch: tuple[int, int]) -> str:
        signature = call("embedding", spec(count, 512), weight=spec(100, 512),
                         indices=spec(count, dtype="int64"))  # fmt: skip
        return kernels(signature, MathMode(torch=torch))[0].variant

    assert [variant(count, (2, 6)) for count in (16, 17)] == ["small_index", ""]
    assert variant(16, (2, 8)) == "whole_rows"


def test_an_index_of_the_first_dimension_gathers_whole_rows_since_torch_2_8() -> None:
    def variant(*indices: TensorSpec | None, torch: tuple[int, int] = (2, 8)) -> str:
        x = spec(100, 64, 32)
        signature = call("index", spec(8, 64, 32), self=x, indices=indices)
        return kernels(signature, MathMode(torch=torch))[-1].variant

    places, mask = spec(8, dtype="int64"), spec(100, dtype="bool")
    assert variant(places) == variant(mask) == "whole_rows"
    assert variant(places, torch=(2, 7)) == variant(None, places) == variant(places, places) == ""


def embedding_backward(count: int) -> list[str]:
    return names(
        call(
            "embedding_dense_backward",
            spec(50257, 64),
            grad_output=spec(count, 64),
            indices=spec(count, dtype="int64"),
            num_weights=50257,
            padding_idx=-1,
            scale_grad_by_freq=False,
        )
    )


def test_an_embedding_gradient_of_few_rows_needs_no_sort() -> None:
    assert embedding_backward(3072) == ["fill", "embedding_dense_backward"]


def test_an_embedding_gradient_of_many_rows_is_sorted_by_all_bits_of_its_indices() -> None:
    launched = embedding_backward(8192)

    assert launched.count("radix_sort_pass") == 8  # of 8 bits (H100, BERT and GPT-2)
    assert launched[-2:] == ["embedding_backward", "sum_and_scatter"]


def test_the_weights_of_a_histogram_are_read() -> None:
    """100 floats and as many weights."""
    x = spec(100)

    plain = kernels(call("histc", spec(10), self=x, bins=10, min=0, max=0))
    weighted = kernels(
        call("histogram", spec(10), spec(11), overload="bin_ct", self=x, bins=10, weight=x)
    )

    assert [kernel.name for kernel in plain] == ["aminmax", "fill", "histc"]
    assert (plain[-1].bytes_read, plain[-1].bytes_written) == (400, 40)
    assert weighted[-1].bytes_read == 800


def test_an_index_put_behind_a_slice_moves_whole_columns() -> None:
    """x[:, index] = values for 10 of 100 columns of 64 rows: 640 floats and 10 indices of 8 bytes
    are read, 640 floats written."""
    columns = spec(10, dtype="int64")

    (kernel,) = kernels(
        call("index_put_", spec(64, 100), self=spec(64, 100), indices=(None, columns),
             values=spec(64, 10), accumulate=False)
    )  # fmt: skip

    assert (kernel.bytes_read, kernel.bytes_written) == (640 * 4 + 80, 640 * 4)


def test_a_mask_of_two_dimensions_puts_single_elements() -> None:
    """50 places of a 10 by 20 mask are true, as the values show."""
    launched = kernels(
        call("index_put_", spec(10, 20), self=spec(10, 20), indices=(spec(10, 20, dtype="bool"),),
             values=spec(50), accumulate=False)
    )  # fmt: skip

    assert (launched[-1].name, launched[-1].bytes_written) == ("index_put", 50 * 4)


def test_a_scatter_moves_as_many_elements_as_there_are_indices() -> None:
    """16 of 100 floats: 64 bytes and 16 indices of 8 bytes in, 64 bytes out; a sum also reads what
    is there."""
    x, index = spec(100), spec(16, dtype="int64")

    (put,) = kernels(call("scatter_", x, self=x, dim=0, index=index, src=spec(50)))
    (add,) = kernels(call("scatter_add_", x, self=x, dim=0, index=index, src=spec(50)))

    assert (put.bytes_read, put.bytes_written, put.flops) == (64 + 128, 64, 0)
    assert (add.bytes_read, add.bytes_written, add.flops) == (64 + 128 + 64, 64, 16)


def test_a_bag_reads_a_row_an_index_and_writes_one_a_bag() -> None:
    """100 rows of 64 floats into 8 bags; offsets are int64 too."""
    indices, offsets = spec(100, dtype="int64"), spec(8, dtype="int64")

    (kernel,) = kernels(
        call("_embedding_bag", spec(8, 64), weight=spec(5000, 64), indices=indices,
             offsets=offsets, per_sample_weights=None)
    )  # fmt: skip

    assert kernel.size == (100, 64)
    assert (kernel.bytes_read, kernel.bytes_written) == (100 * 256 + 800 + 64, 8 * 256)


def test_nonzero_counts_before_it_selects_and_splits_coordinates() -> None:
    mask = spec(10, 10, dtype="bool")

    count, read, init, select, split = kernels(
        call("nonzero", spec(30, 2, dtype="int64"), self=mask)
    )

    assert (count.bytes_read, count.bytes_written, read.bytes_read) == (100, 4, 4)
    assert init.name == "scan_init"
    assert (select.bytes_read, select.bytes_written) == (100, 240)
    assert split.bytes_written == 480
    assert names(call("nonzero", spec(3, 1, dtype="int64"), self=spec(10)))[-1] == "select_flagged"

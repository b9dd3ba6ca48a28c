"""Embeddings, gathers and scatters: what they read and write."""

from __future__ import annotations

from op_calls import call, kernels, names, spec


def test_an_embedding_reads_the_rows_it_takes() -> None:
    (kernel,) = kernels(
        call(
            "embedding",
            spec(8, 512),
            weight=spec(50000, 512),
            indices=spec(8, dtype="int64"),
            padding_idx=-1,
        )
    )

    assert kernel.bytes_read == 8 * 512 * 4 + 8 * 8
    assert kernel.bytes_written == 8 * 512 * 4


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


def test_an_embedding_gradient_of_many_rows_is_sorted_by_the_bits_of_its_vocabulary() -> None:
    launched = embedding_backward(8192)

    assert launched.count("radix_sort_pass") == 2  # 50257 has 16 bits
    assert launched[-2:] == ["embedding_backward", "sum_and_scatter"]


def test_an_accumulating_index_put_is_sorted() -> None:
    x, i, v = spec(100, 4), spec(10, dtype="int64"), spec(10, 4)

    plain = names(call("index_put_", x, self=x, indices=(i,), values=v, accumulate=False))
    adding = names(call("index_put_", x, self=x, indices=(i,), values=v, accumulate=True))

    assert plain == ["index_put"]
    assert "radix_sort_single_tile" in adding
    assert adding[-1] == "index_put_accumulate"


def test_a_mask_is_turned_into_positions_which_the_host_waits_for() -> None:
    launched = names(
        call(
            "index", spec(50), overload="Tensor", self=spec(100), indices=(spec(100, dtype="bool"),)
        )
    )

    assert "memcpy_d2h" in launched
    assert launched[-1] == "index"


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
    """50 places of a 10 by 20 mask are true, as the values tell."""
    launched = kernels(
        call("index_put_", spec(10, 20), self=spec(10, 20), indices=(spec(10, 20, dtype="bool"),),
             values=spec(50), accumulate=False)
    )  # fmt: skip

    assert (launched[-1].name, launched[-1].bytes_written) == ("index_put", 50 * 4)

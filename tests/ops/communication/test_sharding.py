"""The copies around sharded parameters' collectives."""

from __future__ import annotations

from op_calls import call, kernels, spec


def test_shards_are_copied_in_by_one_kernel() -> None:
    (kernel,) = kernels(
        call(
            "fsdp::all_gather_copy_in",
            all_gather_inputs=(spec(1024), spec(64)),
            all_gather_output=spec(8 * 1088),
            inp_split_sizes=(1024, 64),
            all_gather_input_numel=1088,
            rank=0,
        )
    )

    assert kernel.bytes_read == kernel.bytes_written == 4 * 1088


def test_what_was_gathered_is_copied_out_by_one_kernel() -> None:
    (kernel,) = kernels(
        call(
            "fsdp::split_with_sizes_copy",
            all_gather_output=spec(8, 1088),
            all_gather_input_split_sizes=(1024, 64),
            dim=1,
            out=(spec(8, 1024), spec(8, 64)),
        )
    )

    assert kernel.bytes_read == kernel.bytes_written == 4 * 8 * 1088


def test_gradients_are_laid_out_in_the_type_that_is_reduced() -> None:
    (kernel,) = kernels(
        call(
            "fsdp::chunk_cat",
            tensors=(spec(1024, dtype="bfloat16"),),
            dim=0,
            num_chunks=8,
            out=spec(8, 128),
        )
    )

    assert (kernel.bytes_read, kernel.bytes_written) == (2 * 1024, 4 * 1024)

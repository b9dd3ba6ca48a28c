"""Scans of state-space models: instructions a state and step, products a chunk."""

from __future__ import annotations

from op_calls import call, kernels, spec


def test_a_scan_executes_so_many_instructions_a_state_and_step() -> None:
    u, decay = spec(2, 8, 64, dtype="bfloat16"), spec(8, 16)

    [forward] = kernels(call("mamba_ssm::selective_scan", u, u=u, A=decay))
    [backward] = kernels(call("mamba_ssm::selective_scan_backward", u, u=u, A=decay))

    assert forward.num_instructions == 2 * 8 * 64 * 16 * 20
    assert backward.num_instructions == 3 * forward.num_instructions
    assert forward.bytes_written == 2 * 8 * 64 * 2


def test_chunks_are_products_and_their_gradients_twice_as_many() -> None:
    """4 chunks of 64 steps, 2 heads of 32, 16 states shared by both."""
    x, shared = spec(1, 256, 2, 32, dtype="bfloat16"), spec(1, 256, 1, 16, dtype="bfloat16")
    given = {"x": x, "B": shared, "chunk_size": 64}

    forward = kernels(call("mamba_ssm::chunk_scan", x, **given))
    backward = kernels(call("mamba_ssm::chunk_scan_backward", x, **given))
    flops = {kernel.name: kernel.flops for kernel in forward}

    assert flops["chunk_scan"] == 2 * (4 * 2) * 64 * 32 * 64
    assert flops["chunk_bmm"] == 2 * 4 * 64 * 64 * 16
    assert [kernel.name for kernel in backward].count("chunk_scan") == 2


def test_nothing_is_scanned_of_nothing() -> None:
    empty, decay = spec(0, 8, 64), spec(8, 16)

    assert kernels(call("mamba_ssm::selective_scan", empty, u=empty, A=decay)) == ()

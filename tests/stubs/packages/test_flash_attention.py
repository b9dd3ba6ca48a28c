"""FlashAttention-2: its functions return, launch and keep what the package's do."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stub_calls import BF16, Case, assert_as_before, cuda

import neusight


def flash(name: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """A call of the package's function of that name."""
    module, _, function = name.rpartition(".")
    found = getattr(importlib.import_module(f"flash_attn{module and '.'}{module}"), function)
    return lambda: found(*args, **kwargs)


def qkv(heads: int = 4, kv_heads: int = 4, *, length: int = 256) -> tuple[torch.Tensor, ...]:
    return cuda(2, length, heads, 64), cuda(2, length, kv_heads, 64), cuda(2, length, kv_heads, 64)


def bounds() -> torch.Tensor:
    return torch.tensor([0, 256, 512], dtype=torch.int32, device="cuda")


def packed(*middle: int) -> torch.Tensor:
    return cuda(512, *middle, 64)


CASES: dict[str, Case] = {
    "flash_attn_func": lambda: flash("flash_attn_func", *qkv()),
    "flash_attn_triton.flash_attn_func": lambda: flash(
        "flash_attn_triton.flash_attn_func", *qkv(), None, True
    ),
    "flash_attn_triton.flash_attn_qkvpacked_func": lambda: flash(
        "flash_attn_triton.flash_attn_qkvpacked_func", cuda(2, 256, 3, 4, 64), causal=True
    ),
    "flash_attn_triton.flash_attn_kvpacked_func": lambda: flash(
        "flash_attn_triton.flash_attn_kvpacked_func", qkv()[0], cuda(2, 256, 2, 4, 64)
    ),
    "flash_attn_func, causal, 2 key heads": lambda: flash(
        "flash_attn_func", *qkv(4, 2), causal=True
    ),
    "flash_attn_func, causal, last 32 keys": lambda: flash(
        "flash_attn_func", *qkv(), causal=True, window_size=(31, 0)
    ),
    "flash_attn_func, causal, last key": lambda: flash(
        "flash_attn_func", *qkv(), causal=True, window_size=(0, 0)
    ),
    "flash_attn_func, with statistics": lambda: flash(
        "flash_attn_func", *qkv(), return_attn_probs=True
    ),
    "flash_attn_qkvpacked_func": lambda: flash(
        "flash_attn_qkvpacked_func", cuda(2, 256, 3, 4, 64), causal=True
    ),
    "flash_attn_kvpacked_func": lambda: flash(
        "flash_attn_kvpacked_func", cuda(2, 256, 4, 64), cuda(2, 256, 2, 2, 64)
    ),
    "flash_attn_varlen_func": lambda: flash(
        "flash_attn_varlen_func",
        *(packed(4), packed(4), packed(4)),
        *(bounds(), bounds(), 256, 256),
        causal=True,
    ),
    "flash_attn_varlen_qkvpacked_func": lambda: flash(
        "flash_attn_varlen_qkvpacked_func", packed(3, 4), bounds(), 256
    ),
    "flash_attn_varlen_kvpacked_func": lambda: flash(
        "flash_attn_varlen_kvpacked_func", packed(4), packed(2, 4), bounds(), bounds(), 256, 256
    ),
    "flash_attn_with_kvcache": lambda: flash(
        "flash_attn_with_kvcache",
        cuda(2, 1, 4, 64, grad=False),
        *(cuda(2, 1024, 2, 64, grad=False), cuda(2, 1024, 2, 64, grad=False)),
        *(cuda(2, 1, 2, 64, grad=False), cuda(2, 1, 2, 64, grad=False)),
        cache_seqlens=511,
        causal=True,
    ),
    "bert_padding.unpad_input": lambda: flash(
        "bert_padding.unpad_input",
        cuda(2, 8, 16),
        torch.tensor([[1] * 8, [1, 1] + [0] * 6]).cuda(),
    ),
    "bert_padding.pad_input": lambda: flash(
        "bert_padding.pad_input", cuda(10, 16), cuda(10, dtype=torch.int64), 2, 8
    ),
    "layers.rotary.apply_rotary_emb": lambda: flash(
        "layers.rotary.apply_rotary_emb", cuda(2, 256, 4, 64), *angles()
    ),
    "layers.rotary.apply_rotary_emb_qkv_": lambda: flash(
        "layers.rotary.apply_rotary_emb_qkv_", cuda(2, 256, 3, 4, 64, grad=False), *angles()
    ),
    "layers.rotary.apply_rotary_emb_qkv_ of 4 heads and 2 of keys": lambda: flash(
        "layers.rotary.apply_rotary_emb_qkv_",
        cuda(2, 256, 8, 64, grad=False),
        *angles(),
        num_heads_q=4,
    ),
    "layers.rotary.apply_rotary_emb_qkv_ of 4 heads and as many of keys": lambda: flash(
        "layers.rotary.apply_rotary_emb_qkv_", cuda(2, 256, 12, 64, grad=False), *angles()
    ),
    "ops.rms_norm.rms_norm": lambda: flash("ops.rms_norm.rms_norm", rows(), weight(), 1e-6),
    "ops.rms_norm.dropout_add_rms_norm": lambda: flash(
        "ops.rms_norm.dropout_add_rms_norm",
        *(rows(), rows(), weight(), None, 0.0, 1e-6),
        prenorm=True,
    ),
    "ops.triton.layer_norm.layer_norm_fn": lambda: flash(
        "ops.triton.layer_norm.layer_norm_fn", rows(), weight(), weight()
    ),
    "ops.layer_norm.dropout_add_layer_norm": lambda: flash(
        "ops.layer_norm.dropout_add_layer_norm",
        *(rows(), rows(torch.float32), weight(), weight(), 0.0, 1e-6),
        prenorm=True,
        residual_in_fp32=True,
    ),
    "ops.rms_norm.dropout_add_rms_norm, alone, summed in float32": lambda: flash(
        "ops.rms_norm.dropout_add_rms_norm",
        *(rows(), None, weight(), None, 0.0, 1e-6),
        prenorm=True,
        residual_in_fp32=True,
    ),
    "ops.rms_norm.dropout_add_rms_norm, alone, in float32": lambda: flash(
        "ops.rms_norm.dropout_add_rms_norm",
        *(rows(torch.float32), None, cuda(512, dtype=torch.float32), None, 0.0, 1e-6),
        prenorm=True,
        residual_in_fp32=True,
    ),
    "ops.triton.cross_entropy.cross_entropy_loss": lambda: flash(
        "ops.triton.cross_entropy.cross_entropy_loss", cuda(64, 1000), cuda(64, dtype=torch.int64)
    ),
    "ops.activations.swiglu": lambda: flash("ops.activations.swiglu", rows(), rows()),
}


def rows(dtype: torch.dtype = BF16) -> torch.Tensor:
    return cuda(128, 512, dtype=dtype)


def weight() -> torch.Tensor:
    return cuda(512)


def angles() -> tuple[torch.Tensor, torch.Tensor]:
    return cuda(256, 16, grad=False), cuda(256, 16, grad=False)


def module(name: str, *made_of: Any, **made_by: Any) -> Callable[..., Callable[[], Any]]:
    """A call of a module that is made like this."""
    made = flash(name, *made_of, **made_by)()
    return lambda *args, **kwargs: lambda: made(*args, **kwargs)


CASES |= {
    "modules.mha.FlashSelfAttention": lambda: module("modules.mha.FlashSelfAttention", causal=True)(
        cuda(2, 256, 3, 4, 64)
    ),
    "modules.mha.FlashSelfAttention, packed": lambda: module("modules.mha.FlashSelfAttention")(
        packed(3, 4), cu_seqlens=bounds(), max_seqlen=256
    ),
    "modules.mha.FlashCrossAttention": lambda: module("modules.mha.FlashCrossAttention")(
        packed(4).view(2, 256, 4, 64), packed(2, 2).view(2, 256, 2, 2, 64)
    ),
    "modules.mha.FlashCrossAttention, packed": lambda: module("modules.mha.FlashCrossAttention")(
        packed(4), packed(2, 2),
        cu_seqlens=bounds(), max_seqlen=256, cu_seqlens_k=bounds(), max_seqlen_k=128,
    ),
    "layers.rotary.RotaryEmbedding": lambda: module(
        "layers.rotary.RotaryEmbedding", 32, device="cuda"
    )(cuda(2, 256, 3, 4, 64, grad=False)),
    "layers.rotary.RotaryEmbedding of queries apart": lambda: module(
        "layers.rotary.RotaryEmbedding", 32, device="cuda"
    )(cuda(2, 256, 4, 64, grad=False), cuda(2, 256, 2, 4, 64, grad=False)),
    "layers.rotary.apply_rotary_emb, in place": lambda: flash(
        "layers.rotary.apply_rotary_emb", cuda(2, 256, 4, 64).clone(), *angles(), inplace=True
    ),
    "layers.rotary.apply_rotary_emb_qkv_, keys by other angles": lambda: flash(
        "layers.rotary.apply_rotary_emb_qkv_", cuda(2, 256, 3, 4, 64, grad=False), *angles(),
        angles()[0],
    ),
    "ops.rms_norm.RMSNorm": lambda: module(
        "ops.rms_norm.RMSNorm", 512, device="cuda", dtype=BF16
    )(rows()),
    "ops.layer_norm.DropoutAddLayerNorm": lambda: module(
        "ops.layer_norm.DropoutAddLayerNorm", 512, prenorm=True, device="cuda", dtype=BF16
    )(rows(), rows()),
    "ops.triton.layer_norm.rms_norm_fn": lambda: flash(
        "ops.triton.layer_norm.rms_norm_fn", rows(), weight(), None
    ),
    "losses.cross_entropy.CrossEntropyLoss, sum": lambda: module(
        "losses.cross_entropy.CrossEntropyLoss", reduction="sum"
    )(cuda(64, 1000), cuda(64, dtype=torch.int64)),
    "losses.cross_entropy.CrossEntropyLoss, none": lambda: module(
        "losses.cross_entropy.CrossEntropyLoss", reduction="none"
    )(cuda(64, 1000), cuda(64, dtype=torch.int64)),
}  # fmt: skip


def test_each_function_is_as_in_the_table() -> None:
    assert_as_before("flash_attn", CASES)


def test_its_kernels_need_a_gpu_of_ampere_or_newer_and_16_bits() -> None:
    with neusight.forecast_on("T4"), pytest.raises(RuntimeError, match="Ampere GPUs or newer"):
        flash("flash_attn_func", *qkv())()
    with neusight.forecast_on("A100"), pytest.raises(RuntimeError, match="fp16 and bf16"):
        flash("flash_attn_func", *(x.float() for x in qkv()))()
    with neusight.forecast_on("A100"):
        flash("flash_attn_func", *(cuda(1, 2, 2, 256) for _ in range(3)))()
        with pytest.raises(RuntimeError, match="head dimension at most 256"):
            flash("flash_attn_func", *(cuda(1, 2, 2, 264) for _ in range(3)))()
    with neusight.forecast_on("A100"):
        cuda(1)
        with pytest.raises(RuntimeError, match="must be on CUDA"):
            flash("flash_attn_func", *(torch.ones(1, 2, 2, 8, dtype=BF16) for _ in range(3)))()


def test_no_score_matrix_is_kept() -> None:
    with neusight.forecast_on("H100") as forecast:
        flash("flash_attn_func", *(cuda(1, 8192, 16, 64) for _ in range(3)))().sum().backward()

    assert forecast.peak_memory_bytes < 8192 * 8192 * 16 * 2


def test_a_compiled_program_has_it_in_its_graph() -> None:
    with neusight.forecast_on("H100") as forecast:
        attend = flash("flash_attn_func", *qkv())
        compiled = torch.compile(attend, fullgraph=True, backend="eager")
        assert compiled().shape == (2, 256, 4, 64)

    assert any("flash_attn_func" in line for line in forecast.warnings)


def test_transformers_takes_it_where_the_program_asks() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        vocab_size=100,
    )  # fmt: skip
    with neusight.forecast_on("H100") as forecast:
        model = transformers.LlamaForCausalLM._from_config(
            config, attn_implementation="flash_attention_2", dtype=BF16
        ).cuda()
        tokens = torch.zeros(2, 128, dtype=torch.int64, device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
    names = [kernel.name for kernel, _ in forecast.kernels]

    assert {"flash_attention", "flash_attention_backward"} <= set(names)


def test_angles_are_made_once_and_joint_projections_rotated_in_place() -> None:
    with neusight.forecast_on("H100") as forecast:
        rotary = flash("layers.rotary.RotaryEmbedding", 32, device="cuda")()
        joint = cuda(2, 256, 3, 4, 64, grad=False)
        assert rotary(joint) is joint
        rotary(joint)
    names = [kernel.name for kernel, _ in forecast.kernels]

    assert (names.count("rotary"), names.count("cos")) == (2, 1)


def test_more_than_the_head_is_not_rotated() -> None:
    with neusight.forecast_on("H100"):
        wide, narrow = cuda(256, 32, grad=False), cuda(256, 33, grad=False)
        flash("layers.rotary.apply_rotary_emb", cuda(2, 256, 4, 64), wide, wide)()
        with pytest.raises(AssertionError, match="rotary_dim must be <= headdim"):
            flash("layers.rotary.apply_rotary_emb", cuda(2, 256, 4, 64), narrow, narrow)()


def test_angles_are_the_powers_of_the_base() -> None:
    with neusight.forecast_on("H100"):
        cuda(1)
        rotary = flash("layers.rotary.RotaryEmbedding", 8)()

    assert rotary.inv_freq.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])


def test_the_loss_may_overwrite_the_scores() -> None:
    with neusight.forecast_on("H100") as forecast:
        scores = cuda(64, 1000)
        loss = flash("losses.cross_entropy.CrossEntropyLoss", inplace_backward=True)()
        loss(scores * 1, cuda(64, dtype=torch.int64)).backward()

    assert scores.grad is not None
    assert [k.bytes_written for k, _ in forecast.kernels if k.name == "cross_entropy_backward"] == [
        64 * 1000 * 2
    ]


def test_tokens_that_do_not_count_are_kept_and_put_back() -> None:
    with neusight.forecast_on("H100"):
        hidden, counted = cuda(2, 4, 64), torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]]).cuda()
        unused = torch.tensor([[0, 0, 1, 0], [0, 1, 1, 1]]).cuda()
        rows, _, bounds, longest, used = flash(
            "bert_padding.unpad_input", hidden, counted, unused
        )()
        found = (tuple(rows.shape), bounds.tolist(), longest, used.tolist())

    assert found == ((7, 64), [0, 3, 7], 4, [2, 1])

"""An engine's kernels follow from a model's by patterns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from neusight.predictors.errors import OptionError
from neusight.predictors.kernel import AttentionSize, GemmSize, Kernel, KernelClass, RowsSize
from neusight.serving.fusion import engine_launches, joined_products, with_attention
from neusight.serving.launches import EXPERTS, LaunchedKernel
from neusight.serving.parallel import tensor_parallel
from neusight.serving.quantization import Adapters, adapted, quantized

TOKENS, PAST, HIDDEN, INNER, HEADS, KV_HEADS, DIM, WORDS = 8, 24, 256, 512, 4, 2, 64, 1000


def pointwise(name: str, numel: int, module: str, *, reads: int = 1) -> LaunchedKernel:
    kernel = Kernel.elementwise(name, numel, dtype="bfloat16", num_inputs=reads)
    return LaunchedKernel(kernel, module)


def copy(numel: int, module: str, name: str = "copy") -> LaunchedKernel:
    kernel = Kernel.rows(
        KernelClass.COPY, name, 1, numel, dtype="bfloat16", bytes_read=2 * numel,
        bytes_written=2 * numel,
    )  # fmt: skip
    return LaunchedKernel(kernel, module)


def product(n: int, k: int, module: str, *, rows: int = TOKENS) -> LaunchedKernel:
    return LaunchedKernel(Kernel.gemm(rows, n, k, dtype="bfloat16"), module)


def norm(module: str) -> list[LaunchedKernel]:
    """An RMSNorm as transformers writes it."""
    numel = TOKENS * HIDDEN
    mean = Kernel.rows(
        KernelClass.REDUCTION, "mean", TOKENS, HIDDEN, dtype="float32",
        bytes_read=4 * numel, bytes_written=4 * TOKENS,
    )  # fmt: skip
    return [
        copy(numel, module),
        pointwise("pow_by_products", numel, module),
        LaunchedKernel(mean, module),
        pointwise("add", TOKENS, module),
        pointwise("rsqrt", TOKENS, module),
        pointwise("mul", numel, module),
        copy(numel, module),
        pointwise("mul", numel, module),
    ]


def rotary(heads: int, module: str) -> list[LaunchedKernel]:
    numel = TOKENS * heads * DIM
    return [
        pointwise("mul", numel, module),
        pointwise("neg", numel // 2, module),
        copy(numel, module, "cat"),
        pointwise("mul", numel, module),
        pointwise("add", numel, module, reads=2),
    ]


def attention(kv_heads: int = KV_HEADS) -> Kernel:
    return Kernel.attention(
        1, HEADS, kv_heads, TOKENS, TOKENS + PAST, DIM, causal=True, dtype="bfloat16"
    )


def layer() -> list[LaunchedKernel]:
    cached = KV_HEADS * (TOKENS + PAST) * DIM
    return [
        *norm("m.0.norm"),
        product(HEADS * DIM, HIDDEN, "m.0.attn.q"),
        product(KV_HEADS * DIM, HIDDEN, "m.0.attn.k"),
        product(KV_HEADS * DIM, HIDDEN, "m.0.attn.v"),
        *rotary(HEADS, "m.0.attn"),
        *rotary(KV_HEADS, "m.0.attn"),
        copy(cached, "m.0.attn", "cat"),
        copy(cached, "m.0.attn", "cat"),
        copy(2 * cached, "m.0.attn"),  # keys repeated for each query head
        LaunchedKernel(attention(HEADS), "m.0.attn"),
        product(HIDDEN, HEADS * DIM, "m.0.attn.o"),
        pointwise("add", TOKENS * HIDDEN, "m.0", reads=2),
        *norm("m.0.norm2"),
        product(INNER, HIDDEN, "m.0.mlp.gate"),
        pointwise("silu", TOKENS * INNER, "m.0.mlp.act"),
        product(INNER, HIDDEN, "m.0.mlp.up"),
        pointwise("mul", TOKENS * INNER, "m.0.mlp", reads=2),
        product(HIDDEN, INNER, "m.0.mlp.down"),
        pointwise("add", TOKENS * HIDDEN, "m.0", reads=2),
    ]


def model() -> list[LaunchedKernel]:
    embedding = Kernel.rows(
        KernelClass.GATHER, "embedding", TOKENS, HIDDEN, dtype="bfloat16", bytes_read=1,
        bytes_written=2 * TOKENS * HIDDEN,
    )  # fmt: skip
    return [
        pointwise("arange", TOKENS, "m"),
        LaunchedKernel(embedding, "m.embed"),
        pointwise("cos", TOKENS * DIM, "m.rotary"),
        *layer(),
        *norm("m.norm"),
        product(WORDS, HIDDEN, "m.head", rows=1),
    ]


def fused(launches: list[LaunchedKernel]) -> tuple[LaunchedKernel, ...]:
    return engine_launches(launches, tokens=TOKENS)


def names(launches: Sequence[LaunchedKernel]) -> list[str]:
    return [launch.kernel.name for launch in launches]


def unmatched(launches: Sequence[LaunchedKernel]) -> list[str]:
    return [launch.kernel.name for launch in launches if launch.is_unmatched]


def test_a_decoder_layer_becomes_the_kernels_of_an_engine() -> None:
    found = fused(model())

    assert names(found) == [
        "embedding",
        "rms_norm",
        "gemm",
        "rotary",
        "cache_write",
        "flash_attention",
        "gemm",
        "add_rms_norm",
        "gemm",
        "silu_mul",
        "gemm",
        "add_rms_norm",
        "gemm",
    ]
    assert unmatched(found) == []


def test_a_mask_that_is_as_large_as_the_embeddings_by_chance_is_not_made_in_each_step() -> None:
    launches = model()
    launches.insert(2, pointwise("le", TOKENS * HIDDEN, "m"))

    assert names(fused(launches)) == names(fused(model()))


def test_a_norm_of_rows_less_their_mean_is_one_kernel() -> None:
    """As Cohere's: the difference is computed for the variance and again for the result."""
    numel = TOKENS * HIDDEN
    cast, square, mean, epsilon, root, *scaling = norm("m.norm")
    less = pointwise("sub", numel, "m.norm", reads=2)
    launches = [
        product(HIDDEN, HIDDEN, "m.a"),
        *(cast, mean, less, square, mean, less, epsilon, root, *scaling),
        product(HIDDEN, HIDDEN, "n.b"),
    ]

    found = fused(launches)

    assert names(found) == ["gemm", "rms_norm", "gemm"]
    assert unmatched(found) == []


def test_products_of_one_input_are_merged() -> None:
    found = fused(model())

    sizes = [item.kernel.size for item in found if isinstance(item.kernel.size, GemmSize)]
    assert [(size.n, size.k) for size in sizes] == [
        ((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
        (HIDDEN, HEADS * DIM),
        (2 * INNER, HIDDEN),
        (HIDDEN, INNER),
        (WORDS, HIDDEN),
    ]


def test_a_merged_product_reads_its_input_once() -> None:
    found = fused(model())
    merged = next(item.kernel for item in found if item.kernel.name == "gemm")
    assert isinstance(merged.size, GemmSize)

    whole = Kernel.gemm(TOKENS, merged.size.n, HIDDEN, dtype="bfloat16")

    assert merged == whole


def test_attention_reads_each_key_once_whatever_the_model_repeats() -> None:
    found = fused(model())

    size = next(item.kernel.size for item in found
                if isinstance(item.kernel.size, AttentionSize))  # fmt: skip
    assert size.kv_heads == KV_HEADS


def test_a_norm_with_a_residual_moves_two_tensors_each_way() -> None:
    found = fused(model())

    added = next(item.kernel for item in found if item.kernel.name == "add_rms_norm")
    assert (added.bytes_read, added.bytes_written) == (4 * TOKENS * HIDDEN, 4 * TOKENS * HIDDEN)


def test_a_product_after_a_residual_sum_is_no_sibling_of_the_one_before() -> None:
    launches = [
        product(HIDDEN, HIDDEN, "block.o"),
        pointwise("add", TOKENS * HIDDEN, "block", reads=2),
        product(HIDDEN, HIDDEN, "block.u"),
    ]

    assert joined_products(launches) == [(0,), (2,)]


def test_attention_written_as_products_is_one_kernel() -> None:
    scores = Kernel.gemm(TOKENS, 32, DIM, batch=HEADS, dtype="bfloat16")
    values = Kernel.gemm(TOKENS, DIM, 32, batch=HEADS, dtype="bfloat16")
    softmax = Kernel.rows(
        KernelClass.SOFTMAX, "softmax", HEADS * TOKENS, 32, dtype="bfloat16", bytes_read=1,
        bytes_written=1,
    )  # fmt: skip
    launches = [
        LaunchedKernel(scores, "a"),
        pointwise("mul", HEADS * TOKENS * 32, "a"),
        LaunchedKernel(softmax, "a"),
        LaunchedKernel(values, "a"),
    ]

    [found] = with_attention(launches)

    assert isinstance(found.kernel.size, AttentionSize)
    assert found.kernel.size[:6] == (1, HEADS, HEADS, TOKENS, 32, DIM)


@pytest.mark.parametrize(
    "between",
    [
        [LaunchedKernel(Kernel.rows(
            KernelClass.GATHER, "gather", 1, 64, dtype="bfloat16", bytes_read=1, bytes_written=1,
        ), "a")],
        [pointwise("mul", 64, "a")] * 17,
    ],
    ids=["a gather", "many"],
)  # fmt: skip
def test_products_with_anything_else_between_them_are_no_attention(
    between: list[LaunchedKernel],
) -> None:
    scores = LaunchedKernel(Kernel.gemm(TOKENS, 32, DIM, batch=HEADS, dtype="bfloat16"), "a")
    launches = [scores, *between, scores]

    assert with_attention(launches) == tuple(launches)


def test_attention_that_upcasts_keeps_the_cache_in_the_dtype_of_its_projections() -> None:
    softmax = Kernel.rows(
        KernelClass.SOFTMAX, "softmax", HEADS * TOKENS, 32, dtype="float32", bytes_read=1,
        bytes_written=1,
    )  # fmt: skip
    launches = [
        product(HIDDEN, HIDDEN, "a.qkv"),
        LaunchedKernel(Kernel.gemm(TOKENS, 32, DIM, batch=HEADS, dtype="float32"), "a"),
        LaunchedKernel(softmax, "a"),
        LaunchedKernel(Kernel.gemm(TOKENS, DIM, 32, batch=HEADS, dtype="float32"), "a"),
    ]

    found = with_attention(launches)[1]

    assert found.kernel.dtype == "bfloat16"


def test_products_of_no_module_are_not_joined() -> None:
    assert joined_products([product(HIDDEN, HIDDEN, "")] * 2) == [(0,), (1,)]


def test_norms_of_queries_and_keys_stay_before_the_rotary_embedding() -> None:
    launches = model()
    at = next(at for at, item in enumerate(launches) if item.module == "m.0.attn.v") + 1

    found = fused([*launches[:at], *norm("m.0.attn.q_norm"), *launches[at:]])

    assert names(found)[2:6] == ["gemm", "rms_norm", "rotary", "cache_write"]


def test_pointwise_kernels_behind_an_attention_are_one() -> None:
    numel = TOKENS * HEADS * DIM
    gate = [pointwise("sigmoid", numel, "a"), pointwise("mul", numel, "a", reads=2)]
    read = LaunchedKernel(attention(), "a")

    [*_, alone] = fused([product(HIDDEN, HIDDEN, "q"), read, gate[0]])
    [*_, joined] = fused([product(HIDDEN, HIDDEN, "q"), read, *gate])

    assert alone == gate[0]
    assert joined.kernel.name == "sigmoid_mul"
    assert (joined.kernel.bytes_read, joined.kernel.bytes_written) == (4 * numel, 2 * numel)


def test_what_no_pattern_knows_is_named_and_kept() -> None:
    sort = Kernel.rows(
        KernelClass.SORT, "sort_rows", TOKENS, HIDDEN, dtype="bfloat16", bytes_read=1,
        bytes_written=1,
    )  # fmt: skip
    launches = [
        product(HIDDEN, HIDDEN, "m.a"),
        LaunchedKernel(sort, "m"),
        product(HIDDEN, HIDDEN, "m.b"),
    ]

    found = fused(launches)

    assert unmatched(found) == ["sort_rows"]
    assert "sort_rows" in names(found)


def experts() -> list[LaunchedKernel]:
    """A mixture of experts as transformers launches it."""
    up = Kernel.gemm(4, 2 * INNER, HIDDEN, batch=4, dtype="bfloat16", name=EXPERTS)
    down = Kernel.gemm(4, HIDDEN, INNER, batch=4, dtype="bfloat16", name=EXPERTS)
    softmax = Kernel.rows(
        KernelClass.SOFTMAX, "softmax", TOKENS, 4, dtype="float32", bytes_read=1, bytes_written=1
    )
    return [
        product(4, HIDDEN, "m.mlp.gate"),
        LaunchedKernel(softmax, "m.mlp.gate"),
        pointwise("grouped_gemm_setup", 4, "m.mlp.experts"),
        LaunchedKernel(up, "m.mlp.experts"),
        pointwise("silu", 16 * INNER, "m.mlp.experts.act"),
        pointwise("mul", 16 * INNER, "m.mlp.experts", reads=2),
        pointwise("grouped_gemm_setup", 4, "m.mlp.experts"),
        LaunchedKernel(down, "m.mlp.experts"),
        pointwise("mul", 16 * HIDDEN, "m.mlp.experts"),
        pointwise("add", TOKENS * HIDDEN, "m", reads=2),
        product(WORDS, HIDDEN, "m.head"),
    ]


def test_a_mixture_of_experts_becomes_routing_two_products_and_a_sum() -> None:
    found = fused(experts())

    assert names(found) == [
        "gemm", "topk_softmax", "align_experts", "align_experts", EXPERTS, "silu_mul", EXPERTS,
        "add_experts", "add", "gemm",
    ]  # fmt: skip


def test_routing_reads_scores_and_the_sum_a_row_for_each_expert_of_a_token() -> None:
    """Scores of 8 tokens for 4 experts in FP32; 16 rows of all experts together, by 256 in BF16."""
    found = {item.kernel.name: item.kernel for item in fused(experts())}

    moved = {
        name: (found[name].bytes_read, found[name].bytes_written)
        for name in ("topk_softmax", "align_experts", "add_experts")
    }
    rows = 16
    assert moved == {
        "topk_softmax": (4 * TOKENS * 4, 8 * rows),
        "align_experts": (8 * rows, 8 * rows),
        "add_experts": (2 * rows * HIDDEN, 2 * TOKENS * HIDDEN),
    }
    assert found["add_experts"].size == RowsSize(1, TOKENS * HIDDEN)


def latent() -> list[LaunchedKernel]:
    """Attention whose keys (64 expanded, 32 rotated) and values (64) are expanded from 128."""
    attention_ = Kernel.attention(
        1, HEADS, HEADS, TOKENS, TOKENS + PAST, 96, causal=True, dtype="bfloat16", head_dim_v=64
    )
    return [
        product(HEADS * 96, HIDDEN, "m.attn.q"),
        product(128 + 32, HIDDEN, "m.attn.down"),
        product(HEADS * (64 + 64), 128, "m.attn.up", rows=TOKENS + PAST),
        LaunchedKernel(attention_, "m.attn"),
        product(HIDDEN, HEADS * 64, "m.attn.out"),
        pointwise("add", TOKENS * HIDDEN, "m", reads=2),
        product(WORDS, HIDDEN, "m.head", rows=1),
    ]


def test_attention_over_latent_vectors_expands_queries_instead_of_the_cache() -> None:
    found = fused(latent())

    sizes = [item.kernel.size for item in found if item.kernel.name != "cache_write"]
    assert sizes[1] == GemmSize(HEADS, TOKENS, 128, 64)
    assert sizes[2] == AttentionSize(
        1, HEADS, 1, TOKENS, TOKENS + PAST, 128 + 32, 128, causal=True, backward=False
    )
    assert sizes[3] == GemmSize(HEADS, TOKENS, 64, 128)


def test_ranks_share_the_heads_of_latent_attention() -> None:
    found = tensor_parallel(fused(latent()), 2)

    sizes = [item.kernel.size for item in found if isinstance(item.kernel.size, GemmSize)]
    assert GemmSize(HEADS // 2, TOKENS, 128, 64) in sizes
    assert GemmSize(1, TOKENS, HIDDEN, HEADS * 64 // 2) in sizes


# -- several GPUs ---------------------------------------------------------------------------------


def test_tensor_parallel_cuts_columns_then_rows_and_adds_up() -> None:
    found = fused(model())

    found = tensor_parallel(found, 2)

    products = [item.kernel.size for item in found if isinstance(item.kernel.size, GemmSize)]
    assert [(size.n, size.k) for size in products] == [
        ((HEADS + 2 * KV_HEADS) * DIM // 2, HIDDEN),
        (HIDDEN, HEADS * DIM // 2),
        (INNER, HIDDEN),
        (HIDDEN, INNER // 2),
        (WORDS // 2, HIDDEN),
    ]
    collectives = [item.kernel.name for item in found
                   if item.kernel.kernel_class is KernelClass.COLLECTIVE]  # fmt: skip
    assert collectives == ["all_reduce"] * 3 + ["all_gather"]


def test_one_rank_launches_what_the_model_does() -> None:
    launches = fused(model())

    assert tensor_parallel(launches, 1) == tuple(launches)


def test_the_weights_of_all_ranks_are_those_of_the_model() -> None:
    found = fused(model())

    def weights(launches: tuple[LaunchedKernel, ...]) -> int:
        sizes = [item.kernel.size for item in launches]
        return sum(size.n * size.k for size in sizes if isinstance(size, GemmSize))

    assert 2 * weights(tensor_parallel(found, 2)) == weights(found)


def test_eager_products_of_one_input_are_all_cut_by_columns() -> None:
    found = tensor_parallel(with_attention(model()), 2)

    products = [item.kernel.size for item in found if isinstance(item.kernel.size, GemmSize)]
    assert [(size.n, size.k) for size in products[:4]] == [
        (HEADS * DIM // 2, HIDDEN),
        (KV_HEADS * DIM // 2, HIDDEN),
        (KV_HEADS * DIM // 2, HIDDEN),
        (HIDDEN, HEADS * DIM // 2),
    ]


def test_experts_are_cut_and_their_sum_added_up_once() -> None:
    found = tensor_parallel(fused(experts()), 2)

    grouped = [item.kernel.size for item in found if item.kernel.name == EXPERTS]
    assert [(size.n, size.k) for size in grouped if isinstance(size, GemmSize)] == [
        (INNER, HIDDEN),
        (HIDDEN, INNER // 2),
    ]
    assert [item.kernel.name for item in found].count("all_reduce") == 1


def test_whole_experts_are_shared_by_ranks() -> None:
    launches = fused(experts())
    found = tensor_parallel(launches, 2, expert_parallel=True)

    whole = [item.kernel for item in launches if item.kernel.name == EXPERTS]
    shared = [item.kernel for item in found if item.kernel.name == EXPERTS]
    for one, half in zip(whole, shared, strict=True):
        assert isinstance(one.size, GemmSize)
        assert half.size == one.size._replace(batch=one.size.batch // 2)
        assert (half.flops, half.bytes_read) == (one.flops // 2, one.bytes_read // 2)
    assert [item.kernel.name for item in found].count("all_reduce") == 1


def test_experts_that_ranks_cannot_share_are_refused() -> None:
    launches = fused(experts())
    with pytest.raises(OptionError, match="does not share 4 experts evenly"):
        tensor_parallel(launches, 3, expert_parallel=True)
    with pytest.raises(OptionError, match="has no experts"):
        tensor_parallel(fused(model()), 2, expert_parallel=True)


def test_heads_that_ranks_cannot_share_are_refused() -> None:
    with pytest.raises(OptionError, match="does not share 4 heads"):
        tensor_parallel(fused(model()), 3)


# -- fewer bits -----------------------------------------------------------------------------------


def test_int4_weights_are_a_quarter_and_their_scales() -> None:
    wide = [product(4096, 4096, "m.a"), product(WORDS, 4096, "m.head", rows=1)]

    layer_, logits = quantized(wide, "int4")

    rows = 2 * TOKENS * 4096
    assert layer_.kernel.bytes_read == rows + 4096 * 4096 // 2 + 2 * 4096 * 4096 // 128
    assert layer_.kernel.variant == "packed_tiles"
    assert logits == wide[1]


def test_eight_bits_quantize_the_activations_first() -> None:
    wide = [product(4096, 4096, "m.a"), product(WORDS, 4096, "m.head", rows=1)]

    quantize, layer_, logits = quantized(wide, "fp8")

    assert quantize.kernel.name == "quantize"
    assert layer_.kernel.compute == "fp8"
    assert layer_.kernel.bytes_read < wide[0].kernel.bytes_read
    assert logits == wide[1]


def test_adapters_add_two_products_to_each_of_a_layer_but_not_to_the_logits() -> None:
    wide = [product(2048, 4096, "m.a"), product(WORDS, 4096, "m.head", rows=1)]

    layer_, shrink, expand, logits = adapted(wide, Adapters(8, 16))

    assert (layer_, logits) == tuple(wide)
    assert shrink.kernel.size == GemmSize(1, TOKENS, 16, 4096)
    assert expand.kernel.size == GemmSize(1, TOKENS, 2048, 16)
    assert shrink.kernel.bytes_read == 2 * TOKENS * 4096 + 2 * 8 * 16 * 4096

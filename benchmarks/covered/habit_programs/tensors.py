"""Tensors of all kinds, and what is read of them."""

from __future__ import annotations

import copy
import io
import pickle

import torch
import torch.nn.functional as F
from torch import nn

from covered.habit_programs.habit import batch, habit, net, refuses, train


@habit(is_sampled=True)
def printed_and_formatted() -> None:
    x = batch(2, 2)
    print(x, repr(x), f"{x.mean():.3f}", f"{x.sum().item():.2e}", str(x[0]))
    print(nn.Linear(2, 2).cuda(), x.shape, x.dtype, x.device)
    torch.set_printoptions(precision=2)
    assert "cuda:0" in repr(x)
    assert f"{x.shape[0]} rows" == "2 rows"


@habit()
def numbers_of_tensors() -> None:
    x = batch(4, 4)
    assert isinstance(x.sum().item(), float) and isinstance(x.tolist()[0][0], float)
    assert isinstance(float(x[0, 0]), float) and isinstance(bool((x > 0).any()), bool)
    assert int(torch.tensor(3, device="cuda")) == 3
    assert len(x) == 4 and next(iter(x)).shape == (4,)
    assert max(1.0, x.abs().max().item()) >= 1.0
    assert range(4)[torch.tensor(1, device="cuda")] == 1


@habit()
def comparisons_that_assert() -> None:
    x = batch(4, 4)
    assert torch.allclose(x, x.clone()) and torch.equal(x, x)
    torch.testing.assert_close(x, x.clone())
    torch.testing.assert_close(torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda"))
    assert (x == x).all() and not torch.isnan(x).any()
    assert torch.ones(3, device="cuda").sum() == 3
    torch._assert(x.shape[0] == 4, "rows")
    torch._assert_async((x == x).all())


@habit()
def masks_and_indices() -> None:
    x = batch(64, 8)
    assert x[x[:, 0] > 0].shape[1] == 8
    assert x.nonzero().shape[1] == 2
    assert torch.where(x > 0)[0].dim() == 1
    values, inverse, counts = torch.unique(
        torch.randint(0, 5, (64,), device="cuda"), return_inverse=True, return_counts=True
    )
    assert inverse.shape == (64,) and values.shape == counts.shape
    x[x > 0] = 0
    x[:, [0, 2]] = 1.0
    x[torch.arange(4, device="cuda"), 3] += 2
    assert x.masked_select(x > 0).dim() == 1
    assert torch.argwhere(x).shape[1] == 2
    assert torch.unique_consecutive(torch.tensor([1, 1, 2], device="cuda")).tolist() == [1, 2]
    assert x[..., None, ::2].shape == (64, 1, 4)


@habit()
def scatter_and_gather() -> None:
    x, where = batch(8, 8), torch.randint(0, 8, (8, 8), device="cuda")
    torch.zeros_like(x).scatter_add_(1, where, x)
    torch.zeros_like(x).scatter_reduce_(0, where, x, "amax")
    assert x.gather(1, where).shape == x.take_along_dim(where, 1).shape == (8, 8)
    x.index_add_(0, where[0], x)
    x.index_copy_(0, torch.arange(8, device="cuda"), x)
    x.index_put_((where[0], where[1]), x[0], accumulate=True)
    assert F.one_hot(where, 8).shape == (8, 8, 8)
    assert torch.bincount(where.flatten(), minlength=8).shape == (8,)
    assert (
        torch.segment_reduce(batch(6, 2), "sum", lengths=torch.tensor([2, 4]).cuda()).shape[0] == 2
    )


@habit()
def experts_in_a_loop() -> None:
    x = batch(64, 32)
    router = torch.randint(0, 4, (64,), device="cuda")
    experts = [nn.Linear(32, 32).cuda() for _ in range(4)]
    out = torch.zeros_like(x)
    for index, expert in enumerate(experts):
        rows = (router == index).nonzero().squeeze(-1)
        out.index_add_(0, rows, expert(x[rows]))
    out.sum().backward()


@habit()
def suppression_of_boxes() -> None:
    def suppressed(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        order, kept = scores.argsort(descending=True), []
        while order.numel() > 0 and len(kept) < 100:
            first = order[0]
            kept.append(first)
            if order.numel() == 1:
                break
            corners = torch.maximum(boxes[first, :2], boxes[order[1:], :2])
            ends = torch.minimum(boxes[first, 2:], boxes[order[1:], 2:])
            overlap = (ends - corners).clamp(min=0).prod(1)
            order = order[1:][overlap < 0.5]
        return torch.stack(kept)

    kept = suppressed(torch.rand(200, 4, device="cuda"), torch.rand(200, device="cuda"))
    assert 1 <= kept.shape[0] <= 100


@habit()
def einsum_and_linear_algebra() -> None:
    x = batch(8, 8)
    assert torch.einsum("ij,kj->ik", x, x).shape == (8, 8)
    assert (
        torch.einsum("bhqd,bhkd->bhqk", *[torch.randn(2, 4, 8, 16, device="cuda")] * 2).dim() == 4
    )
    spd = x @ x.T + torch.eye(8, device="cuda")
    torch.linalg.cholesky(spd)
    torch.linalg.solve(spd, x)
    assert torch.linalg.svd(x).S.shape == (8,)
    assert torch.linalg.eigh(spd).eigenvalues.shape == (8,)
    assert torch.linalg.qr(x).Q.shape == (8, 8)
    torch.linalg.inv(spd)
    torch.linalg.lstsq(x, x)
    torch.linalg.det(x).item()
    assert torch.linalg.matrix_rank(x).dim() == 0
    assert torch.linalg.norm(x).dim() == 0 and torch.linalg.vector_norm(x, dim=1).shape == (8,)
    torch.linalg.pinv(x)
    torch.cdist(x, x)
    torch.kron(x, x)
    assert torch.logdet(spd).dim() == 0


@habit()
def fourier_transforms() -> None:
    x = torch.randn(4, 1024, device="cuda", requires_grad=True)
    assert torch.fft.rfft(x).shape == (4, 513)
    torch.fft.irfft(torch.fft.rfft(x) * 2, n=1024).sum().backward()
    spectrum = torch.stft(
        x.detach(), 256, 64, window=torch.hann_window(256, device="cuda"), return_complex=True
    )
    assert spectrum.shape == (4, 129, 17) and spectrum.is_complex()
    torch.istft(spectrum, 256, 64, window=torch.hann_window(256, device="cuda"))
    torch.fft.fftshift(torch.fft.fft2(torch.randn(8, 8, device="cuda")))


@habit()
def complex_and_quantized_types() -> None:
    x = torch.view_as_complex(batch(4, 2))
    assert (x * x.conj()).abs().shape == (4,) and torch.view_as_real(x).shape == (4, 2)
    assert batch().to(torch.float8_e4m3fn).dtype == torch.float8_e4m3fn
    assert torch.iinfo(torch.int8).max == 127 and torch.finfo(torch.bfloat16).bits == 16
    assert batch().to(torch.int8).float().dtype == torch.float32
    assert torch.promote_types(torch.float16, torch.bfloat16) == torch.float32


@habit()
def products_in_eight_bits() -> None:
    a = batch(64, 64).to(torch.float8_e4m3fn)
    one = torch.tensor(1.0, device="cuda")
    out = torch._scaled_mm(a, a.t(), one, one, out_dtype=torch.bfloat16)
    assert out.dtype == torch.bfloat16
    whole = torch.randint(-128, 127, (64, 64), dtype=torch.int8, device="cuda")
    assert torch._int_mm(whole, whole).dtype == torch.int32


@habit()
def quantization() -> None:
    torch.ao.quantization.quantize_dynamic(net(), {nn.Linear})
    torch.fake_quantize_per_tensor_affine(batch(), 0.1, 0, 0, 255)
    torch.fake_quantize_per_channel_affine(
        batch(4, 4), torch.ones(4, device="cuda"), torch.zeros(4, device="cuda"), 0, 0, 255
    )
    model = nn.Sequential(torch.ao.quantization.QuantStub(), nn.Linear(8, 8), nn.ReLU()).cuda()
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    torch.ao.quantization.prepare_qat(model.train(), inplace=True)
    train(model, batch(4, 8))


@habit()
def sparse_gradients() -> None:
    table = nn.Embedding(100, 8, sparse=True).cuda()
    optimizer = torch.optim.SparseAdam(table.parameters())
    table(torch.tensor([1, 2], device="cuda")).sum().backward()
    assert table.weight.grad is not None and table.weight.grad.is_sparse
    optimizer.step()
    bag = nn.EmbeddingBag(100, 8, mode="sum").cuda()
    bag(
        torch.tensor([1, 2, 3], device="cuda"), torch.tensor([0, 2], device="cuda")
    ).sum().backward()


@habit()
def sparse_matrices() -> None:
    where = torch.tensor([[0, 1], [1, 0]], device="cuda")
    matrix = torch.sparse_coo_tensor(where, torch.ones(2, device="cuda"), (2, 2))
    assert torch.sparse.mm(matrix, batch(2, 4)).shape == (2, 4)
    assert matrix.coalesce().indices().shape == (2, 2)
    assert matrix.to_dense().shape == (2, 2)


@habit()
def sparse_rows() -> None:
    matrix = batch(64, 64).to_sparse_csr()
    assert (matrix @ batch(64, 8)).shape == (64, 8)
    given = torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2]).cuda(), torch.tensor([0, 1]).cuda(), torch.ones(2).cuda(), (2, 2)
    )
    assert (given @ batch(2, 3)).shape == (2, 3)


@habit()
def semi_structured_sparsity() -> None:
    from torch.sparse import to_sparse_semi_structured

    weight = torch.tensor([0.0, 0, 1, 1]).tile((128, 32)).half().cuda()
    assert (to_sparse_semi_structured(weight) @ batch(128, 64).half()).shape == (128, 64)


@habit()
def nested_tensors() -> None:
    parts = [torch.randn(3, 8), torch.randn(5, 8)]
    nested = torch.nested.nested_tensor(parts, device="cuda")
    assert nested.to_padded_tensor(0.0).shape == (2, 5, 8)


@habit()
def jagged_tensors() -> None:
    nested = torch.nested.nested_tensor(
        [torch.randn(3, 64), torch.randn(5, 64)],
        layout=torch.jagged, device="cuda", requires_grad=True,
    )  # fmt: skip
    out = nn.Linear(64, 64).cuda()(nested)
    assert out.values().shape == (8, 64)
    out.values().sum().backward()


@habit()
def attention_over_jagged_tensors() -> None:
    parts = [torch.randn(3, 64), torch.randn(5, 64)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda")
    heads = nested.unflatten(-1, [4, 16]).transpose(1, 2)
    assert F.scaled_dot_product_attention(heads, heads, heads).shape[0] == 2


@habit()
def encoder_with_padding() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, batch_first=True), 2)
    model = model.cuda().eval()
    with torch.no_grad():
        out = model(
            torch.randn(2, 16, 64, device="cuda"),
            src_key_padding_mask=torch.zeros(2, 16, dtype=torch.bool, device="cuda"),
        )
    assert out.shape == (2, 16, 64)


@habit()
def attention_kernels_chosen() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH):
        with sdpa_kernel(kernel):
            F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH], set_priority=True):
        F.scaled_dot_product_attention(q, q, q)
    single = q.float()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        refuses(
            RuntimeError,
            "No available kernel",
            lambda: F.scaled_dot_product_attention(single, single, single),
        )
    with torch.backends.cuda.sdp_kernel(enable_flash=True, enable_math=False):
        F.scaled_dot_product_attention(q, q, q)


@habit()
def attention_over_packed_sequences() -> None:
    from torch.nn.attention.varlen import varlen_attn

    q = torch.randn(128, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ends = torch.tensor([0, 50, 128], dtype=torch.int32, device="cuda")
    varlen_attn(q, q, q, ends, ends, 78, 78).sum().backward()


@habit()
def channels_last() -> None:
    last = torch.channels_last
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
    model = model.cuda().to(memory_format=last)
    x = torch.randn(2, 3, 32, 32, device="cuda").to(memory_format=last)
    out = model(x)
    assert out.is_contiguous(memory_format=last)
    out.sum().backward()
    assert x.contiguous().stride() == (3072, 1024, 32, 1)


@habit()
def pickled_and_copied() -> None:
    model = net().cuda()
    again = pickle.loads(pickle.dumps(batch(2, 2)))
    assert again.shape == (2, 2)
    copied = copy.deepcopy(model)
    assert copied[0].weight.is_cuda and copied[0].weight is not model[0].weight
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False, map_location="cuda")
    assert loaded(batch()).shape == (32, 10)


@habit()
def exchanged_by_dlpack() -> None:
    x = batch(4, 4)
    assert torch.from_dlpack(x).data_ptr() == x.data_ptr()
    shared = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    assert shared.is_cuda and shared.shape == (4, 4)
    shared.fill_(0)
    assert x.__dlpack_device__()[1] == 0
    assert x.__cuda_array_interface__["shape"] == (4, 4)


@habit()
def addresses_and_views() -> None:
    x = batch(4, 4)
    assert x.view(16).data_ptr() == x.data_ptr() != x.clone().data_ptr()
    assert x.t().storage_offset() == 0 and x[1].storage_offset() == 4
    assert x.untyped_storage().nbytes() == 64 and x.element_size() == 4
    assert x.is_contiguous() and not x.t().is_contiguous()
    assert x.as_strided((2, 2), (1, 2)).shape == (2, 2)
    assert x._version == 0 and x.add_(1)._version == 1


@habit()
def shared_between_processes() -> None:
    x = batch(4, 4).share_memory_()
    net().cuda().share_memory()
    assert x.is_shared()


@habit()
def queue_of_processes() -> None:
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    queue.put(torch.ones(3, device="cuda"))
    assert queue.get().shape == (3,)


@habit()
def inference_in_half() -> None:
    model = net().cuda().half().eval()
    with torch.inference_mode():
        out = model(batch(4).half())
        assert out.is_inference() and out.dtype == torch.float16
    with torch.no_grad():
        assert not model(batch(4).half()).requires_grad


@habit()
def convolutions_and_pictures() -> None:
    x = torch.rand(2, 3, 64, 64, device="cuda")
    assert F.interpolate(x, scale_factor=2, mode="bilinear").shape[-1] == 128
    assert F.grid_sample(x, torch.rand(2, 8, 8, 2, device="cuda") * 2 - 1).shape[-1] == 8
    assert F.unfold(x, 8, stride=8).shape == (2, 192, 64)
    assert F.pad(x, (1, 1, 1, 1), mode="reflect").shape[-1] == 66
    assert F.pixel_shuffle(torch.rand(1, 4, 8, 8, device="cuda"), 2).shape == (1, 1, 16, 16)
    assert F.affine_grid(torch.rand(2, 2, 3, device="cuda"), [2, 3, 8, 8]).shape[-1] == 2
    assert F.adaptive_avg_pool2d(x, 1).flatten(1).shape == (2, 3)
    pooled, where = F.max_pool2d(x, 2, return_indices=True)
    assert F.max_unpool2d(pooled, where, 2).shape == x.shape
    assert nn.ConvTranspose2d(3, 8, 4, 2, 1).cuda()(x).shape[-1] == 128


@habit()
def sampling_of_tokens() -> None:
    logits = batch(2, 1000)
    top, where = torch.topk(logits, 50)
    ordered, order = torch.sort(logits, descending=True)
    late = ordered.softmax(-1).cumsum(-1) > 0.9
    late[..., 1:] = late[..., :-1].clone()
    late[..., 0] = False
    logits = logits.masked_fill(late.scatter(1, order, late), -torch.inf)
    logits[logits < top[:, [-1]]] = -torch.inf
    token = torch.multinomial(logits.softmax(-1), 1)
    ids = torch.cat([torch.zeros(2, 4, dtype=torch.long, device="cuda"), token], dim=1)
    assert ids.shape == (2, 5) and 0 <= int(token[0]) < 1000
    if (token == 2).all():
        return
    assert where.shape == (2, 50)


@habit()
def foreach_and_fused_lists() -> None:
    tensors = [batch(4, 4) for _ in range(3)]
    torch._foreach_mul_(tensors, 0.5)
    norms = torch._foreach_norm(tensors)
    assert torch.stack(norms).norm().dim() == 0
    flat = nn.utils.parameters_to_vector(tensors)
    nn.utils.vector_to_parameters(flat * 2, [nn.Parameter(t) for t in tensors])
    assert torch._utils._flatten_dense_tensors(tensors).shape == (48,)


@habit()
def distributions() -> None:
    loc = torch.zeros(4, device="cuda", requires_grad=True)
    normal = torch.distributions.Normal(loc, torch.ones(4, device="cuda"))
    (normal.rsample() + normal.log_prob(loc) + normal.entropy()).sum().backward()
    other = torch.distributions.Normal(0.0, 1.0)
    torch.distributions.kl_divergence(normal, other).sum()
    wide = torch.distributions.MultivariateNormal(loc, torch.eye(4, device="cuda"))
    assert wide.sample((3,)).shape == (3, 4)
    torch.distributions.Bernoulli(logits=loc).sample()
    torch.distributions.Dirichlet(torch.ones(3, device="cuda")).sample()
    torch.distributions.Gamma(torch.ones(3, device="cuda"), 1.0).rsample()

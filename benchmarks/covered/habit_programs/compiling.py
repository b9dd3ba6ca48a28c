"""torch.compile, export, scripts and traces."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from covered.habit_programs.habit import batch, habit, net, train


@habit(is_sampled=True)
def compiled_training() -> None:
    train(torch.compile(net().cuda()))


@habit()
def compiled_for_less_overhead() -> None:
    train(torch.compile(net().cuda(), mode="reduce-overhead", fullgraph=True))


@habit()
def compiled_with_tuning() -> None:
    model = torch.compile(net().cuda().eval(), mode="max-autotune-no-cudagraphs")
    with torch.inference_mode():
        model(batch())


@habit()
def compiled_with_sizes_that_change() -> None:
    @torch.compile(dynamic=True)
    def f(x: Any) -> Any:
        return x.sin().cos().sum()

    for rows in (8, 12, 16):
        f(batch(rows, 8))
    x = batch(6, 8)
    torch._dynamo.mark_dynamic(x, 0)
    f(x)


@habit()
def compiled_in_place_and_its_names() -> None:
    model = net().cuda()
    model.compile()
    train(model)
    compiled = torch.compile(model)
    assert compiled._orig_mod is model
    assert next(iter(torch.compile(net()).state_dict())) == "_orig_mod.0.weight"
    state = {k.removeprefix("_orig_mod."): v for k, v in compiled.state_dict().items()}
    net().cuda().load_state_dict(state)


@habit()
def backend_of_the_program() -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    train(torch.compile(net().cuda(), backend=backend))
    assert graphs
    torch._dynamo.reset()
    train(torch.compile(net().cuda(), backend="aot_eager"))
    train(torch.compile(net().cuda(), backend="eager"))


@habit()
def left_out_of_compilation() -> None:
    @torch.compiler.disable
    def outside(x: Any) -> Any:
        return x.relu() if not torch.compiler.is_compiling() else x

    @torch.compile
    def f(x: Any) -> Any:
        y = outside(x * 2)
        torch._dynamo.graph_break()
        return y.sum()

    f(batch())
    with torch.compiler.set_stance("force_eager"):
        f(batch())


@habit()
def compiled_with_autograd_function_and_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return 2 * ctx.saved_tensors[0] * grad

    model = net().cuda()

    @torch.compile
    def f(x: Any) -> Any:
        return Square.apply(checkpoint(model, x, use_reentrant=False)).sum()

    f(batch()).backward()


@habit()
def compiled_optimizer() -> None:
    model = net().cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)

    @torch.compile(fullgraph=False)
    def step() -> None:
        optimizer.step()

    for _ in range(2):
        model(batch()).sum().backward()
        step()


@habit()
def script() -> None:
    train(torch.jit.script(net()).cuda())

    @torch.jit.script
    def f(x, n: int):  # type: ignore[no-untyped-def]
        for i in range(n):
            x = x.relu() + i
        return x

    assert f(torch.randn(4, device="cuda"), 3).is_cuda


@habit()
def trace_saved_and_loaded() -> None:
    traced = torch.jit.trace(net().cuda(), batch(2))
    traced(batch(2))
    torch.jit.save(traced, "traced.pt")
    assert torch.jit.load("traced.pt", map_location="cuda")(batch(2)).shape == (2, 10)
    torch.jit.freeze(traced.eval())(batch(2))


@habit()
def exported_program() -> None:
    rows = torch.export.Dim("rows", min=1, max=64)
    exported = torch.export.export(net().cuda(), (batch(2),), dynamic_shapes=({0: rows},))
    assert exported.module()(batch(7)).shape == (7, 10)
    assert len(exported.graph.nodes) > 4


@habit("onnx", "onnxscript", "onnx_ir")
def exported_to_onnx() -> None:
    torch.onnx.export(net().cuda(), (batch(2),), "net.onnx", dynamo=False)


@habit("onnx", "onnxscript", "onnx_ir")
def exported_to_onnx_by_dynamo() -> None:
    torch.onnx.export(net().cuda(), (batch(2),), "net.onnx", dynamo=True)


@habit()
def fx_graphs() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.passes.shape_prop import ShapeProp

    graph = torch.fx.symbolic_trace(net().cuda())
    ShapeProp(graph).propagate(batch())
    assert graph(batch()).shape == (32, 10)
    traced = make_fx(lambda x: x.sin() + 1)(batch(4, 4))
    assert traced(batch(4, 4)).is_cuda


@habit(is_sampled=True)
def custom_op() -> None:
    @torch.library.custom_op("habits::scaled", mutates_args=(), device_types="cuda")
    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        raise RuntimeError("there is no GPU to run on")

    @scaled.register_fake
    def _(x: torch.Tensor, by: float) -> torch.Tensor:
        return torch.empty_like(x)

    scaled.register_autograd(lambda ctx, grad: (grad, None))
    x = batch(8, 8, requires_grad=True)
    scaled(x, 2.0).sum().backward()
    assert x.grad is not None
    torch.compile(lambda x: scaled(x.relu(), 1.0))(x)


@habit()
def custom_op_of_a_library() -> None:
    library = torch.library.Library("habits_library", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.define("fill(Tensor(a!) x, float by) -> ()")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    torch.library.register_fake("habits_library::twice", torch.empty_like, lib=library)
    torch.library.register_fake("habits_library::fill", lambda x, by: None, lib=library)
    library.impl("fill", lambda x, by: x.fill_(by), "CUDA")
    x = batch(4, 4)
    assert torch.ops.habits_library.twice(x).shape == (4, 4)
    torch.ops.habits_library.fill(x, 1.0)


@habit()
def custom_op_whose_size_depends_on_values() -> None:
    @torch.library.custom_op("habits::positives", mutates_args=(), device_types="cuda")
    def positives(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("there is no GPU to run on")

    @positives.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        number = torch.library.get_ctx().new_dynamic_size(min=0, max=x.numel())
        return x.new_empty(number, x.dim(), dtype=torch.long)

    found = positives(batch(8, 8))
    assert 0 < found.shape[0] <= 64 and found.shape[1] == 2
    assert (found + 1).sum(0).shape == (2,)


@habit()
def custom_op_without_a_fake_kernel() -> None:
    @torch.library.custom_op("habits::unknown", mutates_args=())
    def unknown(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    unknown(batch(8, 8))


@habit()
def triton_op_of_torch_library() -> None:
    @torch.library.triton_op("habits::added", mutates_args=())
    def added(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert added(batch(4, 4)).shape == (4, 4)


@habit("triton")
def triton_kernel() -> None:
    import importlib.util
    from pathlib import Path

    Path("kernels.py").write_text(
        "import triton\n"
        "import triton.language as tl\n"
        "@triton.jit\n"
        "def add(x, y, out, n, BLOCK: tl.constexpr):\n"
        "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    mask = at < n\n"
        "    total = tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask)\n"
        "    tl.store(out + at, total, mask=mask)\n"
    )
    spec = importlib.util.spec_from_file_location("kernels", "kernels.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = torch.randn(4096, device="cuda")
    out = torch.empty_like(x)
    module.add[(4,)](x, x, out, 4096, BLOCK=1024)
    out.sum()


@habit()
def flex_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as attend

    q = torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    causal = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cuda")
    torch.compile(attend)(q, q, q, block_mask=causal).sum().backward()
    attend(q, q, q, score_mod=lambda s, b, h, i, j: s + (i - j))
    window = create_block_mask(
        lambda b, h, q, k: (q - k).abs() < 16, None, None, 256, 256, device="cuda", _compile=True
    )
    assert 0 <= float(window.sparsity()) <= 100


@habit()
def cpp_extensions() -> None:
    from torch.utils import cpp_extension

    print(cpp_extension.CUDA_HOME, cpp_extension.CUDAExtension.__name__)


@habit()
def cuda_code_of_the_program() -> None:
    torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x + 1; }")(
        torch.ones(8, device="cuda")
    )


@habit()
def parametrizations_and_norms() -> None:
    from torch.nn.utils import parametrizations, parametrize, prune

    weight = parametrizations.weight_norm(nn.Linear(16, 16)).cuda()
    train(weight, batch(4, 16))
    spectral = parametrizations.spectral_norm(nn.Linear(16, 16).cuda())
    train(spectral, batch(4, 16))
    train(nn.utils.spectral_norm(nn.Linear(16, 16)).cuda(), batch(4, 16))
    train(nn.utils.weight_norm(nn.Linear(16, 16)).cuda(), batch(4, 16))
    train(parametrizations.orthogonal(nn.Linear(16, 16).cuda()), batch(4, 16))

    class Symmetric(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).transpose(-1, -2)

    layer = nn.Linear(16, 16).cuda()
    parametrize.register_parametrization(layer, "weight", Symmetric())
    train(layer, batch(4, 16))
    parametrize.remove_parametrizations(layer, "weight")
    prune.l1_unstructured(layer, "weight", amount=0.3)
    train(layer, batch(4, 16))
    prune.remove(layer, "weight")


@habit()
def modules_replaced_and_wrapped() -> None:
    class Lora(nn.Module):
        def __init__(self, base: nn.Linear, rank: int = 4) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(rank, base.in_features, device=base.weight.device))
            self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

        def forward(self, x: Any) -> Any:
            return self.base(x) + x @ self.a.T @ self.b.T

    model = net().cuda()
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Linear):
            setattr(model, name, Lora(child))
    trained = [p for p in model.parameters() if p.requires_grad]
    train(model, optimizer=torch.optim.AdamW(trained))
    assert len(trained) == 4

"""torch.func, autograd functions, and modes of the program."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

from covered.habit_programs.habit import batch, habit, net, train


@habit(is_sampled=True)
def gradients_of_each_sample() -> None:
    model = net().cuda()
    parameters = dict(model.named_parameters())

    def loss(p: Any, x: Any) -> Any:
        return functional_call(model, p, (x[None],)).square().mean()

    found = vmap(grad(loss), in_dims=(None, 0))(parameters, batch())
    assert found["0.weight"].shape == (32, 512, 256)


@habit()
def jacobians_and_hessians() -> None:
    x = torch.randn(16, device="cuda")
    assert jacrev(torch.sin)(x).shape == jacfwd(torch.sin)(x).shape == (16, 16)
    assert hessian(lambda x: (x**3).sum())(x).shape == (16, 16)
    out, pull = vjp(torch.sin, x)
    assert pull(torch.ones_like(out))[0].shape == (16,)
    assert jvp(torch.sin, (x,), (x,))[1].shape == (16,)
    assert torch.autograd.functional.jacobian(torch.sin, x).shape == (16, 16)


@habit()
def ensemble_of_models() -> None:
    models = [net().cuda() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    out = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(
        parameters, buffers, batch(4)
    )
    assert out.shape == (3, 4, 10)


@habit()
def inner_steps_of_meta_learning() -> None:
    model = net().cuda()
    parameters = {k: v.detach() for k, v in model.named_parameters()}

    def loss(p: Any, x: Any) -> Any:
        return functional_call(model, p, (x,)).square().mean()

    def adapted(p: Any) -> Any:
        gradients, _ = grad_and_value(loss)(p, batch())
        p = {k: p[k] - 0.1 * gradients[k] for k in p}
        return loss(p, batch())

    outer = grad(adapted)(parameters)
    assert outer["0.weight"].shape == (512, 256)


@habit()
def vmap_with_chunks_and_random_numbers() -> None:
    f = vmap(lambda x: torch.dropout(x, 0.5, True).sum(), randomness="different", chunk_size=8)
    assert f(batch()).shape == (32,)


@habit()
def forward_mode() -> None:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(batch(4), batch(4))
        assert forward_ad.unpack_dual(net().cuda()(dual)).tangent.shape == (4, 10)


@habit()
def autograd_function() -> None:
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            ctx.mark_non_differentiable(mask := x > 0)
            return x.round(), mask

        @staticmethod
        def backward(ctx: Any, grad: Any, _: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad * (x.abs() < 1)

    x = batch(requires_grad=True)
    out, _ = Straight.apply(x)
    out.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape


@habit()
def autograd_function_through_numpy() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return torch.from_numpy(x.detach().cpu().numpy() * 2).cuda()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    Doubled.apply(torch.randn(4, device="cuda", requires_grad=True)).sum().backward()


@habit()
def autograd_function_under_amp() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: Any, grad: Any) -> Any:
            a, b = ctx.saved_tensors
            return grad @ b.T, a.T @ grad

    a, b = batch(8, 8, requires_grad=True), batch(8, 8, requires_grad=True)
    with torch.autocast("cuda", torch.float16):
        out = Product.apply(a, b)
    out.sum().backward()
    assert out.dtype == torch.float32


@habit()
def gradcheck() -> None:
    x = torch.randn(3, device="cuda", dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(torch.sin, (x,))


@habit()
def flops_counted() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        train(net().cuda())
    assert counter.get_total_flops() > 0


@habit()
def modes_of_the_program() -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Ops():
        net().cuda()(batch()).sum().backward()
    assert "aten.addmm.default" in seen
    with Functions():
        batch().relu()
    assert "relu" in seen


@habit()
def subclass_of_tensors() -> None:
    class Named(torch.Tensor):
        pass

    x = batch().as_subclass(Named)
    assert isinstance(x.sin(), Named)
    x.sum().item()


@habit()
def subclass_that_wraps() -> None:
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(
                cls, inner.shape, dtype=inner.dtype, device=inner.device
            )

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            take = lambda x: x.inner if isinstance(x, cls) else x  # noqa: E731
            return func(*map(take, args), **(kwargs or {}))

    x = Wrapper(batch(4, 4))
    assert (x + 1).shape == (4, 4) and x.is_cuda


@habit()
def parametrized_by_a_buffer() -> None:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(256))
            self.register_buffer("count", torch.tensor(0, dtype=torch.long))
            self.register_buffer("hidden", torch.ones(1), persistent=False)

        def forward(self, x: Any) -> Any:
            if self.training:
                self.count += 1
                self.mean.lerp_(x.detach().mean(0), 0.1)
            return x - self.mean

    model = nn.Sequential(Running(), net()).cuda()
    train(model)
    assert model[0].count.item() == 3
    assert set(model.state_dict()) >= {"0.mean", "0.count"}
    assert "0.hidden" not in model.state_dict()

"""Training loops, and what is put into them."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from covered.habit_programs.habit import batch, habit, net, refuses, train


@habit(is_sampled=True)
def grad_scaler() -> None:
    scaler = torch.amp.GradScaler("cuda")
    model = net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        with torch.autocast("cuda", torch.float16):
            out = model(batch())
            assert out.dtype == torch.float16
            loss = out.float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() > 0
    scaler.load_state_dict(scaler.state_dict())


@habit()
def grad_scaler_of_torch_cuda_amp() -> None:
    scaler = torch.cuda.amp.GradScaler()
    model = net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.cuda.amp.autocast():
        loss = model(batch()).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


@habit()
def autocast_rules() -> None:
    a, b = batch(8, 8), batch(8, 8)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (a @ b).dtype == torch.bfloat16
        assert torch.softmax(a @ b, -1).dtype == torch.float32
        assert (a + (a @ b)).dtype == torch.float32
        with torch.autocast("cuda", enabled=False):
            assert (a @ b).dtype == torch.float32
        refuses(
            RuntimeError,
            "unsafe to autocast",
            lambda: F.binary_cross_entropy(a.sigmoid(), b.sigmoid()),
        )
    assert not torch.is_autocast_enabled("cuda")


@habit()
def gradient_accumulation_with_clipping() -> None:
    model = net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for step in range(8):
        (model(batch()).square().mean() / 4).backward()
        if (step + 1) % 4 == 0:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            assert norm.is_cuda and norm.dim() == 0
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


@habit()
def checks_for_nan() -> None:
    model = net().cuda()
    loss = model(batch()).square().mean()
    if torch.isnan(loss) or not torch.isfinite(loss).item() or math.isnan(loss.item()):
        raise SystemExit("the loss is no number")
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    bad = [n for n, p in model.named_parameters() if p.grad is not None and p.grad.isnan().any()]
    assert bad == [] and norm >= 0


@habit()
def early_stopping_and_plateaus() -> None:
    model = net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, lookahead=2)
    best, lookahead = float("inf"), 0
    for _ in range(12):
        loss = train(model, steps=1, optimizer=optimizer)
        scheduler.step(loss)
        if loss < best - 1e-4:
            best, lookahead = loss, 0
        else:
            lookahead += 1
        if lookahead > 3:
            break
    assert best < float("inf")


@habit()
def every_scheduler() -> None:
    schedulers = torch.optim.lr_scheduler
    model = net().cuda()
    for make in (
        lambda o: schedulers.StepLR(o, 2),
        lambda o: schedulers.CosineAnnealingLR(o, 10),
        lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=10),
        lambda o: schedulers.LambdaLR(o, lambda step: 0.9**step),
        lambda o: schedulers.CosineAnnealingWarmRestarts(o, 5),
        lambda o: schedulers.SequentialLR(
            o, [schedulers.LinearLR(o), schedulers.ExponentialLR(o, 0.9)], [2]
        ),
    ):
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        scheduler = make(optimizer)
        for _ in range(3):
            train(model, steps=1, optimizer=optimizer)
            scheduler.step()
        assert scheduler.get_last_lr()[0] > 0


@habit()
def every_optimizer() -> None:
    names = (
        "SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "RMSprop", "NAdam", "RAdam", "Adamax",
        "ASGD", "Rprop", "Adafactor", "Muon",
    )  # fmt: skip
    for name in names:
        model = nn.Linear(16, 16, bias=False).cuda()
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3)
        train(model, batch(4, 16), optimizer=optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
        train(model, batch(4, 16), steps=1, optimizer=optimizer)


@habit()
def lbfgs_with_a_closure() -> None:
    model, x = nn.Linear(16, 16).cuda(), batch(4, 16)
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


@habit()
def parameter_groups_and_hooks_of_optimizers() -> None:
    model = net().cuda()
    decay = [p for n, p in model.named_parameters() if p.dim() > 1]
    plain = [p for n, p in model.named_parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=1e-3
    )
    calls = []
    optimizer.register_step_pre_hook(lambda *a: calls.append("before"))
    optimizer.register_step_post_hook(lambda *a: calls.append("after"))
    train(model, steps=1, optimizer=optimizer)
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    assert calls == ["before", "after"]


@habit()
def optimizer_in_backward() -> None:
    model = net().cuda()
    optimizers = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}

    def step(p: Any) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        model(batch()).square().mean().backward()
    assert all(p.grad is None for p in model.parameters())


@habit()
def ema_and_swa() -> None:
    from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

    model = nn.Sequential(nn.Linear(256, 64), nn.BatchNorm1d(64)).cuda()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    swa = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = SWALR(optimizer, 0.05)
    for _ in range(3):
        train(model, steps=1, optimizer=optimizer)
        ema.update_parameters(model)
        swa.update_parameters(model)
        scheduler.step()
    update_bn([batch() for _ in range(2)], swa)
    assert ema(batch()).is_cuda


@habit()
def ema_by_hand() -> None:
    model = net().cuda()
    shadow = copy.deepcopy(model).eval().requires_grad_(False)
    train(model)
    with torch.no_grad():
        for kept, new in zip(shadow.parameters(), model.parameters(), strict=True):
            kept.lerp_(new, 0.01)
            kept.mul_(0.99).add_(new.data, alpha=0.01)
        names = {name: value.detach().clone() for name, value in model.state_dict().items()}
        torch._foreach_lerp_(list(names.values()), list(model.parameters()), 0.1)


@habit(is_sampled=True)
def checkpointing_of_all_kinds() -> None:
    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        checkpoint_sequential,
        create_selective_checkpoint_contexts,
    )

    model = net().cuda()
    x = batch(requires_grad=True)
    checkpoint(model, x, use_reentrant=False).sum().backward()
    checkpoint(model, x, use_reentrant=True).sum().backward()
    checkpoint(model, x, use_reentrant=False, preserve_rng_state=False).sum().backward()
    checkpoint_sequential(model, 2, x, use_reentrant=False).sum().backward()

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        saved = op is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    checkpoint(
        model,
        x,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    ).sum().backward()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        model(x).sum().backward()


@habit()
def saved_tensors_hooks() -> None:
    packed = []

    def pack(x: Any) -> Any:
        packed.append(x.shape)
        return x.to("cpu")

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x.to("cuda")):
        net().cuda()(batch()).sum().backward()
    assert packed


@habit()
def hooks_of_all_kinds() -> None:
    model, seen = net().cuda(), []
    first = model[0]
    first.register_forward_pre_hook(lambda m, args: seen.append("forward_pre"))
    first.register_forward_hook(lambda m, args, out: seen.append("forward"))
    first.register_full_backward_pre_hook(lambda m, grad: seen.append("backward_pre"))
    first.register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
    first.register_state_dict_pre_hook(lambda *a: seen.append("state_pre"))
    first._register_load_state_dict_pre_hook(lambda *a: seen.append("load_pre"))
    handle = nn.modules.module.register_module_forward_hook(lambda *a: seen.append("global"))
    x = batch(requires_grad=True)
    out = model(x)
    handle.remove()
    out.register_hook(lambda grad: grad * 2)
    out.grad_fn.register_hook(lambda *a: seen.append("node"))
    out.retain_grad()
    out.sum().backward()
    model.load_state_dict(model.state_dict())
    assert out.grad is not None
    assert {"forward_pre", "forward", "backward_pre", "backward", "node", "global"} <= set(seen)
    assert {"state_pre", "load_pre"} <= set(seen)


@habit()
def multi_grad_hooks() -> None:
    model, seen = net().cuda(), []
    parameters = tuple(model.parameters())
    torch.autograd.graph.register_multi_grad_hook(parameters, lambda grads: seen.append(len(grads)))
    model(batch()).sum().backward()
    assert seen == [4]


@habit()
def anomaly_detection() -> None:
    model = net().cuda()
    with torch.autograd.set_detect_anomaly(True):
        train(model)
    with torch.autograd.detect_anomaly(check_nan=False):
        train(model)


@habit()
def gradients_of_gradients() -> None:
    model, x = net().cuda(), batch(requires_grad=True)
    (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    penalty = (grad.norm(2, dim=1) - 1).square().mean()
    penalty.backward()
    assert next(model.parameters()).grad is not None
    refuses(
        RuntimeError,
        "Trying to backward through the graph a second time",
        lambda: penalty.backward(),
    )


@habit()
def gan_with_two_optimizers() -> None:
    generator, critic = nn.Linear(16, 256).cuda(), nn.Linear(256, 1).cuda()
    first = torch.optim.Adam(generator.parameters(), betas=(0.5, 0.999))
    second = torch.optim.Adam(critic.parameters())
    for _ in range(3):
        for _ in range(2):
            fake = generator(batch(8, 16)).detach()
            loss = critic(fake).mean() - critic(batch(8)).mean()
            second.zero_grad()
            loss.backward()
            second.step()
        first.zero_grad()
        (-critic(generator(batch(8, 16))).mean()).backward()
        first.step()


@habit()
def freezing_and_unfreezing() -> None:
    model = net().cuda()
    for p in model[0].parameters():
        p.requires_grad = False
    optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), 0.1)
    train(model, optimizer=optimizer)
    model.requires_grad_(True)
    optimizer.add_param_group({"params": model[0].parameters()})
    train(model, optimizer=optimizer)
    with torch.no_grad():
        model[0].weight.fill_(0.5)
        model[2].weight.copy_(torch.zeros_like(model[2].weight))
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 136_714


@habit()
def deterministic_algorithms_and_seeds() -> None:
    import os
    import random

    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    random.seed(0)
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    train(net().cuda())
    assert torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)


@habit()
def precision_switches() -> None:
    torch.set_float32_matmul_precision("high")
    assert torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False):
        F.conv2d(torch.randn(1, 3, 8, 8, device="cuda"), torch.randn(4, 3, 3, 3, device="cuda"))
    torch.set_float32_matmul_precision("highest")
    assert not torch.backends.cuda.matmul.allow_tf32


@habit()
def mixup_and_label_smoothing() -> None:
    model, x = net().cuda(), batch()
    y = torch.randint(0, 10, (32,), device="cuda")
    share = torch.distributions.Beta(0.2, 0.2).sample().item()
    order = torch.randperm(32, device="cuda")
    mixed = share * x + (1 - share) * x[order]
    out = model(mixed)
    loss = share * F.cross_entropy(out, y, label_smoothing=0.1)
    (loss + (1 - share) * F.cross_entropy(out, y[order])).backward()


@habit()
def evaluation_with_metrics() -> None:
    model = net().cuda().eval()
    correct = total = 0
    with torch.no_grad():
        for _ in range(3):
            y = torch.randint(0, 10, (32,), device="cuda")
            out = model(batch())
            correct += (out.argmax(1) == y).sum().item()
            total += y.size(0)
            _, top = out.topk(5, 1, True, True)
            hits = top.t().eq(y.view(1, -1).expand_as(top.t()))
            hits[:5].reshape(-1).float().sum(0, keepdim=True).mul_(100 / 32).item()
    print(f"accuracy {100 * correct / total:.2f} %")
    assert 0 <= correct <= total == 96


@habit()
def reinforcement_learning_step() -> None:
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2)).cuda()
    optimizer = torch.optim.Adam(policy.parameters())
    logs = []
    for _ in range(8):
        chosen = torch.distributions.Categorical(logits=policy(batch(1, 4)))
        action = chosen.sample()
        assert action.item() in (0, 1)
        logs.append(chosen.log_prob(action) * 0.9)
    (-torch.cat(logs).sum()).backward()
    optimizer.step()


@habit()
def out_of_memory_is_caught() -> None:
    try:
        torch.empty(1 << 40, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        assert "CUDA out of memory" in str(error)
        torch.cuda.empty_cache()


@habit()
def loss_decides_what_runs() -> None:
    model = net().cuda()
    taken = 0
    for _ in range(5):
        loss = model(batch()).square().mean()
        if loss > 1e6:
            continue
        while loss < 0:
            loss = loss + 1
        taken += 1
        loss.backward()
    assert taken == 5

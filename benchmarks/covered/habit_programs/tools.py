"""Checkpoints, profilers, loggers and other tools around a program."""

from __future__ import annotations

import os

import torch
from torch import nn

from covered.habit_programs.habit import batch, habit, net, train


@habit(is_sampled=True)
def profiler_with_a_schedule() -> None:
    from torch.profiler import (
        ProfilerActivity,
        profile,
        schedule,
        tensorboard_trace_handler,
    )

    model, x = net().cuda(), batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=1, active=2),
        on_trace_ready=tensorboard_trace_handler("traces"),
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    ) as profiler:
        for _ in range(5):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    assert "Self" in profiler.key_averages().table(sort_by="cuda_time_total", row_limit=5)
    assert os.listdir("traces")


@habit()
def profilers_of_autograd() -> None:
    with torch.autograd.profiler.profile(use_device="cuda") as profiler:
        train(net().cuda())
    assert profiler.key_averages() is not None
    with torch.profiler.profile() as other:
        train(net().cuda())
    other.export_chrome_trace("trace.json")
    assert os.path.getsize("trace.json") > 100


@habit()
def saved_and_loaded() -> None:
    model = net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer=optimizer)
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3,
         "rng": torch.cuda.get_rng_state(), "scaler": torch.amp.GradScaler("cuda").state_dict()},
        "checkpoint.pt",
    )  # fmt: skip
    for where in ("cuda", "cuda:0", torch.device("cpu"), None, {"cuda:0": "cuda:0"}):
        loaded = torch.load("checkpoint.pt", map_location=where, weights_only=True)
        assert loaded["epoch"] == 3
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    torch.cuda.set_rng_state(loaded["rng"].cpu())
    placed = torch.load("checkpoint.pt", map_location=lambda storage, place: storage.cuda(0))
    assert placed["model"]["0.weight"].is_cuda
    mapped = torch.load("checkpoint.pt", mmap=True, map_location="cpu")
    missing = model.load_state_dict({"0.weight": mapped["model"]["0.weight"]}, strict=False)
    assert "0.bias" in missing.missing_keys
    model.load_state_dict(mapped["model"], assign=True)


@habit("safetensors")
def safetensors_files() -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, load_model, save_file, save_model

    model = net().cuda()
    save_file(model.state_dict(), "model.safetensors", metadata={"format": "pt"})
    loaded = load_file("model.safetensors", device="cuda")
    assert all(value.is_cuda for value in loaded.values())
    assert load_file("model.safetensors", device=0)["0.weight"].shape == (512, 256)
    with safe_open("model.safetensors", framework="pt", device="cuda:0") as file:
        assert {file.get_tensor(name).device.type for name in file.keys()} == {"cuda"}  # noqa: SIM118
        assert file.get_slice("0.weight")[:4].shape == (4, 256)
    save_model(model, "whole.safetensors")
    load_model(model, "whole.safetensors", device="cuda")


@habit()
def distributed_checkpoint_of_one() -> None:
    import torch.distributed.checkpoint as dcp

    model = net().cuda()
    dcp.save({"model": model.state_dict()}, checkpoint_id="sharded")
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id="sharded")
    assert os.listdir("sharded")


@habit("tensorboard")
def tensorboard_writer() -> None:
    from torch.utils.tensorboard import SummaryWriter

    model = net().cuda()
    with SummaryWriter("board") as writer:
        writer.add_scalar("loss", model(batch()).sum(), 0)
        writer.add_histogram("weights", model[0].weight, 0)
        writer.add_image("picture", torch.rand(3, 8, 8, device="cuda"), 0)
        writer.add_graph(model, batch())
    assert os.listdir("board")


@habit()
def summary_of_a_model() -> None:
    model = net().cuda()
    number = sum(p.numel() for p in model.parameters())
    size = sum(p.nelement() * p.element_size() for p in model.parameters())
    sizes = []
    for module in model.modules():
        module.register_forward_hook(
            lambda m, i, o: sizes.append((type(m).__name__, tuple(o.shape), o.nbytes))
        )
    model(torch.zeros(1, 256, device="cuda"))
    print(model, number, size, f"{size / 2**20:.1f} MB", sizes)
    assert ("GELU", (1, 512), 2048) in sizes and number == 136_714


@habit()
def losses_logged() -> None:
    import logging

    logger, losses = logging.getLogger("habit"), []
    model = net().cuda()
    total = torch.zeros((), device="cuda")
    for step in range(4):
        loss = model(batch()).square().mean()
        loss.backward()
        losses.append(loss.detach())
        total += loss.detach()
        if step % 2 == 0:
            logger.info("step %d loss %.4f", step, loss)
    mean = torch.stack(losses).mean().item()
    print(f"mean {mean:.4f}, {total / 4:.4f}, {sum(one.item() for one in losses) / 4}")
    assert mean == mean


@habit()
def processes_spawned() -> None:
    torch.multiprocessing.spawn(_spawned, nprocs=1)


def _spawned(rank: int) -> None:
    train(net().cuda())


@habit()
def process_of_the_program() -> None:
    process = torch.multiprocessing.get_context("spawn").Process(target=_spawned, args=(0,))
    process.start()
    process.join()  # what it does on a GPU is not forecast, and that is said
    assert not process.is_alive()
    net().cuda()(batch())


@habit()
def children_by_subprocess() -> None:
    import subprocess
    import sys

    code = "import torch; print(torch.cuda.is_available())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    net().cuda()(batch())


@habit()
def pool_of_processes() -> None:
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(2) as pool:
        assert list(pool.map(abs, [-1, 2])) == [1, 2]
    net().cuda()(batch())


@habit()
def environment_collected() -> None:
    from torch.utils import collect_env

    assert "CUDA" in collect_env.get_pretty_env_info()
    print(torch.__config__.show(), torch.__config__.parallel_info())
    net().cuda()(batch())


@habit()
def exits_by_itself() -> None:
    import atexit
    import signal

    atexit.register(lambda: None)
    signal.signal(signal.SIGTERM, lambda *a: None)
    train(net().cuda())


@habit()
def modules_listed_and_dictionaries() -> None:
    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(3))
            self.heads = nn.ModuleDict({"a": nn.Linear(256, 2), "b": nn.Linear(256, 3)})
            self.scales = nn.ParameterList(nn.Parameter(torch.ones(256)) for _ in range(3))
            self.lazy = nn.LazyLinear(4)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            for layer, scale in zip(self.layers, self.scales, strict=True):
                x = layer(x) * scale
            return {"lazy": self.lazy(x), **{name: head(x) for name, head in self.heads.items()}}

    model = Tower().cuda()
    out = model(batch())
    sum(value.mean() for value in out.values()).backward()
    assert {name: value.shape[1] for name, value in out.items()} == {"lazy": 4, "a": 2, "b": 3}


@habit()
def initialised_by_hand() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Conv2d(3, 8, 3), nn.LSTM(8, 8)).cuda()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
            nn.init.kaiming_normal_(parameter, nonlinearity="relu")
            nn.init.orthogonal_(parameter)
            nn.init.trunc_normal_(parameter, std=0.02)
        else:
            nn.init.zeros_(parameter)
    with torch.no_grad():
        model[0].weight.normal_(0, 0.02).clamp_(-2, 2)
    assert model[0].weight.is_cuda

"""Batches on their way to the GPU."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from covered.habit_programs.habit import batch, habit, net, refuses, train


def _pairs(rows: int = 128) -> TensorDataset:
    return TensorDataset(torch.randn(rows, 256), torch.randint(0, 10, (rows,)))


def _epoch(loader: Any) -> int:
    model = net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    steps = 0
    for x, y in loader:
        loss = F.cross_entropy(model(x.cuda(non_blocking=True)), y.to("cuda", non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return steps


@habit(is_sampled=True)
def dataloader_workers_and_pinned_memory() -> None:
    loader = DataLoader(_pairs(), 32, num_workers=2, pin_memory=True, persistent_workers=True)
    assert next(iter(loader))[0].is_pinned()
    assert _epoch(loader) == 4


@habit()
def dataloader_with_generator_and_worker_seeds() -> None:
    loader = DataLoader(
        _pairs(), 32, shuffle=True, num_workers=2, prefetch_factor=4,
        generator=torch.Generator().manual_seed(0),
        worker_init_fn=lambda worker: torch.manual_seed(worker),
    )  # fmt: skip
    assert _epoch(loader) == 4


@habit()
def dataloader_samplers_and_splits() -> None:
    first, second = random_split(_pairs(), [96, 32], torch.Generator().manual_seed(1))
    both = ConcatDataset([first, second])
    assert _epoch(DataLoader(both, 16, sampler=RandomSampler(both), drop_last=True)) == 8
    weighted = WeightedRandomSampler(torch.rand(128).tolist(), 64)
    assert _epoch(DataLoader(both, 16, sampler=weighted)) == 4


@habit()
def iterable_dataset() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            info = torch.utils.data.get_worker_info()
            for _ in range(8 if info is None else 4):
                yield torch.randn(256), torch.tensor(1)

    assert _epoch(DataLoader(Stream(), 4, num_workers=2)) == 2


@habit()
def own_collate_to_a_dictionary() -> None:
    class Texts(Dataset):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"ids": torch.arange(1 + index % 5), "label": index % 2}

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = torch.nn.utils.rnn.pad_sequence([row["ids"] for row in rows], batch_first=True)
        return {"ids": ids, "label": torch.tensor([row["label"] for row in rows])}

    table = torch.nn.Embedding(10, 8).cuda()
    for rows in DataLoader(Texts(), 4, collate_fn=collate, pin_memory=True):
        rows = {name: value.cuda(non_blocking=True) for name, value in rows.items()}
        assert table(rows["ids"]).shape == (*rows["ids"].shape, 8)


@habit()
def batches_made_on_the_gpu_by_default_device() -> None:
    torch.set_default_device("cuda")
    try:
        assert train(net(), torch.randn(4, 256)) > 0
        generator = torch.Generator("cuda")
        loader = DataLoader(TensorDataset(torch.randn(8, 256)), 4, True, generator=generator)
        assert [x.device.type for (x,) in loader] == ["cuda", "cuda"]
        wrong = DataLoader(TensorDataset(torch.randn(8, 256)), 4, True)
        refuses(RuntimeError, "Expected a 'cuda' device type for generator", lambda: list(wrong))
    finally:
        torch.set_default_device("cpu")


@habit()
def prefetcher_on_a_side_stream() -> None:
    class Prefetcher:
        def __init__(self, loader: Any) -> None:
            self.rows = iter(loader)
            self.stream = torch.cuda.Stream()
            self.preload()

        def preload(self) -> None:
            self.ready = next(self.rows, None)
            if self.ready is not None:
                with torch.cuda.stream(self.stream):
                    self.ready = [part.cuda(non_blocking=True) for part in self.ready]

        def __iter__(self) -> Iterator[Any]:
            while self.ready is not None:
                torch.cuda.current_stream().wait_stream(self.stream)
                now = self.ready
                for part in now:
                    part.record_stream(torch.cuda.current_stream())
                self.preload()
                yield now

    assert _epoch(Prefetcher(DataLoader(_pairs(), 32, pin_memory=True))) == 4


@habit()
def thread_that_fills_a_queue() -> None:
    filled: queue.Queue[Any] = queue.Queue(2)
    stream = torch.cuda.Stream()

    def fill() -> None:
        for _ in range(5):
            with torch.cuda.stream(stream):
                filled.put(torch.randn(32, 256).pin_memory().to("cuda", non_blocking=True))
        filled.put(None)

    threading.Thread(target=fill, daemon=True).start()
    model, steps = net().cuda(), 0
    while (x := filled.get()) is not None:
        torch.cuda.current_stream().wait_stream(stream)
        model(x).sum().backward()
        steps += 1
    assert steps == 5


@habit()
def pinned_tensors() -> None:
    pinned = torch.tensor([1.0, 2.0], pin_memory=True)
    assert pinned.is_pinned()
    assert torch.empty(4, pin_memory=True).is_pinned()
    assert torch.zeros(4).pin_memory().cuda(non_blocking=True).is_cuda
    refuses(RuntimeError, "cannot pin", lambda: batch().pin_memory())
    target = torch.empty(32, 256, pin_memory=True)
    target.copy_(batch(), non_blocking=True)
    torch.cuda.synchronize()


@habit()
def numpy_round_trips() -> None:
    import numpy

    x = torch.from_numpy(numpy.ones((4, 4), numpy.float32)).to("cuda")
    assert x.cpu().numpy().tolist() == numpy.ones((4, 4)).tolist()
    assert numpy.asarray(x.cpu()).shape == (4, 4)
    assert x.detach().cpu().numpy().dtype == numpy.float32
    refuses(TypeError, "can't convert cuda:0 device type tensor to numpy", lambda: x.numpy())
    assert torch.as_tensor(numpy.arange(3), device="cuda").dtype == torch.int64
    assert torch.tensor(numpy.float64(2.0), device="cuda").dtype == torch.float64


@habit()
def batch_moved_by_recursion() -> None:
    def move(thing: Any) -> Any:
        if torch.is_tensor(thing):
            return thing.to("cuda", non_blocking=True)
        if isinstance(thing, dict):
            return {key: move(value) for key, value in thing.items()}
        if isinstance(thing, (list, tuple)):
            return type(thing)(map(move, thing))
        return thing

    moved = move({"a": [torch.ones(2), (torch.zeros(3), "word")], "b": 4})
    assert moved["a"][1][0].is_cuda and moved["a"][1][1] == "word"


@habit()
def variable_lengths_in_buckets() -> None:
    model = torch.nn.LSTM(32, 64, 2, batch_first=True).cuda()
    lengths = torch.tensor([10, 8, 5, 2])
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.randn(4, 10, 32, device="cuda"), lengths, batch_first=True
    )
    out, (hidden, _) = model(packed)
    padded, found = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    assert padded.shape == (4, 10, 64) and found.tolist() == [10, 8, 5, 2]
    assert hidden.shape == (2, 4, 64)
    padded.sum().backward()
    shuffled = torch.nn.utils.rnn.pack_padded_sequence(
        torch.randn(4, 10, 32, device="cuda"),
        torch.tensor([2, 10, 5, 8]),
        batch_first=True,
        enforce_sorted=False,
    )
    assert model(shuffled)[0].data.shape == (25, 64)

"""Follows what torch's DataLoader yields to the program."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch.utils.data import dataloader

from neusight.recording.inputs.inputs import StepInputs


def follow_loaders(undo: ExitStack, inputs: StepInputs, is_elsewhere: Callable[[], bool]) -> None:
    """From here on each batch that a DataLoader yields is recorded, unless it is asked for it
    elsewhere than in the program's main thread."""
    iterator: Any = dataloader._BaseDataLoaderIter
    next_batch: Callable[[Any], Any] = iterator.__next__

    def recorded(self: Any) -> Any:
        data = next_batch(self)
        if not is_elsewhere():
            num_items = None
            if self._auto_collation:
                num_items = getattr(self._index_sampler, "batch_size", None)
            workers = self._num_workers
            inputs.loaded(data, dataset=self._dataset, num_items=num_items, num_workers=workers)
        return data

    undo.callback(setattr, iterator, "__next__", next_batch)
    iterator.__next__ = recorded

"""Process groups as a recording knows them: a text each, and the stream of its communicator."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from neusight.fake_cuda.distributed.rank import Rank, ranks_text
from neusight.recording.recording import FIRST_COMMUNICATION_STREAM


class Groups:
    """The process groups of the program, from the rank that runs."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._texts: dict[tuple[str, tuple[int, ...] | None], str] = {}
        self._streams: dict[tuple[str, int | None], int] = {}

    def text_of(self, group: Any, between: tuple[int, ...] | None = None) -> str:
        """What a recording keeps of a group, or of two of its ranks: "size=8 nodes=1 per_node=8
        name=0 ranks=0..7"."""
        key = (group.group_name, between)
        text = self._texts.get(key)
        if text is None:
            ranks = between or tuple(dist.get_process_group_ranks(group))
            per_node = self._rank.gpus_per_node
            nodes = len({rank // per_node for rank in ranks})
            text = (
                f"size={len(ranks)} nodes={nodes} per_node={per_node} name={key[0]} "
                f"ranks={ranks_text(ranks)}"
            )
            self._texts[key] = text
        return text

    def stream_of(self, group: Any, peer: int | None = None) -> int:
        """The stream of a group's communicator; sends and receives that are not batched have one
        with each peer."""
        key = (group.group_name, peer)
        return self._streams.setdefault(key, FIRST_COMMUNICATION_STREAM + len(self._streams))

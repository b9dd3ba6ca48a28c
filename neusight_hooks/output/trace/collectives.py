"""What a trace says of collectives: their names, what `record_param_comms` notes, the groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from neusight.ops.communication.messages import BARRIER, Message, ProcessGroup, messages_of
from neusight.output.trace.arguments import CPP_TYPES
from neusight.predictors.kernel import DTYPE_BYTES, CollectiveSize, Kernel, KernelClass
from neusight.timeline.spans import KernelSpan, Timeline

#: The group of all ranks, as torch names it.
_WORLD, _WORLD_DESCRIPTION, _OTHER_DESCRIPTION = "0", "default_pg", "undefined"
_BACKEND = "nccl"
#: That of torch 2.13, which `torch.cuda.nccl.version` answers in a forecast, too.
_NCCL_VERSION = "2.27.7"

#: A profile lists at most so many ranks or splits (kTruncatLength, torch/csrc/profiler/util.cpp).
_MOST_NUMBERS = 30

#: How a profile names dtypes of NCCL (c10::toString).
_DTYPES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16",
    "int8": "Char", "uint8": "Byte", "int16": "Short", "int32": "Int", "int64": "Long",
    "bool": "Bool", "float8_e4m3fn": "Float8_e4m3fn", "float8_e5m2": "Float8_e5m2",
}  # fmt: skip

#: A kernel's name where its call does not state what it says to NCCL.
_MESSAGES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "send_recv": "send",
}

#: The annotation around a call, which torch-tb-profiler counts by its name: it knows five, so
#: gathers and scatters into one tensor ("nccl:_all_gather_base") are called as those into lists.
_ANNOTATIONS = {
    "allreduce": "nccl:all_reduce",
    "allreduce_coalesced": "nccl:all_reduce",
    "_allgather_base": "nccl:all_gather",
    "allgather_into_tensor_coalesced": "nccl:all_gather",
    "_reduce_scatter_base": "nccl:reduce_scatter",
    "reduce_scatter_tensor_coalesced": "nccl:reduce_scatter",
    "all_to_allv": "nccl:all_to_all",
    BARRIER: "nccl:all_reduce_barrier",
}
#: That of several transfers at once, and what their kernel says it is.
_COALESCED = "coalesced"


def _key(span: KernelSpan) -> tuple[int, int, int]:
    """Identifies a kernel of a timeline, wherever its op is."""
    return span.correlation, span.stream, span.start_ns


def is_collective(kernel: Kernel) -> bool:
    """Whether NCCL launches it."""
    return kernel.kernel_class is KernelClass.COLLECTIVE


class Collectives:
    """The collectives of a timeline as one rank says them; `numbers` count the calls of each group,
    those of steps that were folded away included."""

    def __init__(self, timeline: Timeline, rank: int) -> None:
        self.rank = rank
        self._messages: dict[int, tuple[Message, ...]] = {}
        self._groups: dict[ProcessGroup, int] = {}
        self._group_of: dict[int, int] = {}
        self._numbers = self._numbered(timeline)
        #: Whether there are any, in what is shown or before it.
        self.are_any = bool(self._numbers)

    def messages(self, span: KernelSpan) -> tuple[Message, ...]:
        """What the call of this kernel says, a message or more."""
        known = self._messages.get(id(span.call.signature))
        if known is None:
            known = messages_of(span.call.signature) or (_message_of(span.kernel),)
            self._messages[id(span.call.signature)] = known
            group = self._groups.setdefault(known[0].group, len(self._groups))
            self._group_of[id(span.call.signature)] = group
        return known

    def number(self, span: KernelSpan) -> int:
        """Which call of its group it is, from 1 on."""
        return self._numbers[_key(span)]

    def arguments(self, span: KernelSpan) -> dict[str, object]:
        """What the kernel has beside its grid."""
        messages = self.messages(span)
        first = messages[0]
        if len(messages) > 1:
            first = first._replace(
                name=_COALESCED,
                sent=sum(message.sent for message in messages if message.name == "send"),
                received=sum(message.received for message in messages if message.name != "send"),
                peer=-1,
            )
        return parameters(first, self.rank, self.number(span))

    def annotation(self, span: KernelSpan) -> tuple[str, dict[str, object]]:
        """The name of what lies around the call, and its inputs, of which readers count bytes."""
        messages = self.messages(span)
        given = [message for message in messages if message.name != "recv"] or messages
        shapes: dict[str, object] = {
            "Input Dims": [[message.sent] for message in given],
            "Input type": [CPP_TYPES.get(message.dtype, "float") for message in given],
        }
        if len(messages) > 1:
            return f"nccl:{_COALESCED}", shapes
        (message,) = messages
        name = _ANNOTATIONS.get(message.name, f"nccl:{message.name}")
        if message.peer >= 0:
            name += f" {self.rank}{'->' if message.name == 'send' else '<-'}{message.peer}"
        return name, shapes

    def groups(self, world_size: int) -> list[ProcessGroup]:
        """Those that communicate, with that of all ranks first. Of a group that only sends and
        receives, those are known that take part in it."""
        ranks = {_WORLD: tuple(range(world_size))}
        for group in self._groups:
            known = set(ranks.get(group.name, ()))
            if known <= set(group.ranks):
                ranks[group.name] = group.ranks
            elif not known >= set(group.ranks):
                ranks[group.name] = tuple(sorted(known.union(group.ranks)))
        return [ProcessGroup(name, members) for name, members in ranks.items()]

    def _numbered(self, timeline: Timeline) -> dict[tuple[int, int, int], int]:
        numbers: dict[tuple[int, int, int], int] = {}
        counts: Counter[int] = Counter()
        for step in timeline.steps:
            own = [
                span
                for span in timeline.kernels[step.first_kernel : step.last_kernel]
                if is_collective(span.kernel)
            ]
            groups = [self._group(span) for span in own]
            for group, count in Counter(groups).items():  # in equal steps, folded away before it
                counts[group] += count * (step.represents - 1)
            for span, group in zip(own, groups, strict=True):
                counts[group] += 1
                numbers[_key(span)] = counts[group]
        return numbers

    def _group(self, span: KernelSpan) -> int:
        """The number of the group of a collective's call."""
        self.messages(span)
        return self._group_of[id(span.call.signature)]


def parameters(message: Message, rank: int, number: int) -> dict[str, object]:
    """One message, as `record_param_comms` notes it."""
    args: dict[str, object] = {
        "Collective name": message.name,
        "In msg nelems": message.sent,
        "Out msg nelems": message.received,
        "Group size": len(message.group.ranks),
        "dtype": _DTYPES.get(message.dtype, "Float"),
        "In split size": _listed(message.sent_splits),
        "Out split size": _listed(message.received_splits),
        "Process Group Name": message.group.name,
        "Process Group Description": _description(message.group.name),
        "Process Group Ranks": _listed(message.group.ranks),
        "Seq": number,
    }
    if message.peer >= 0:
        ends = (rank, message.peer) if message.name == "send" else (message.peer, rank)
        args["Src Rank"], args["Dst Rank"] = ends
    return args


def distributed_info(
    rank: int, world_size: int, groups: Sequence[ProcessGroup]
) -> dict[str, object]:
    """The process groups, as the profiler describes them."""
    return {
        "backend": _BACKEND,
        "rank": rank,
        "world_size": world_size,
        "pg_count": len(groups),
        "pg_config": [
            {
                "pg_name": group.name,
                "pg_desc": _description(group.name),
                "backend_config": f"cuda:{_BACKEND}",
                "pg_size": len(group.ranks),
                "ranks": list(group.ranks),
            }
            for group in groups
        ],
        "nccl_version": _NCCL_VERSION,
    }


def _listed(numbers: Sequence[int]) -> str:
    shown = [str(number) for number in numbers[:_MOST_NUMBERS]]
    return f"[{', '.join(shown)}{', ...' if len(numbers) > _MOST_NUMBERS else ''}]"


def _description(name: str) -> str:
    return _WORLD_DESCRIPTION if name == _WORLD else _OTHER_DESCRIPTION


def _message_of(kernel: Kernel) -> Message:
    """What a call says that states no ranks: those of one host, in the group of all."""
    size = kernel.size
    assert isinstance(size, CollectiveSize)
    elements = int(size.num_bytes / DTYPE_BYTES.get(kernel.dtype, 4))
    return Message(
        name=_MESSAGES.get(kernel.name, kernel.name),
        group=ProcessGroup(_WORLD, tuple(range(size.world_size))),
        sent=elements // size.world_size if kernel.name == "all_gather" else elements,
        received=elements // size.world_size if kernel.name == "reduce_scatter" else elements,
        dtype=kernel.dtype,
    )

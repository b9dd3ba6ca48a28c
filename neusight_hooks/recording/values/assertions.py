"""What a program must read for an assertion, or a check that raises, to let it go on."""

from __future__ import annotations

import dis
import sys
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

_OWN_FOLDER = f"{Path(__file__).parents[2]}/"
#: Parts of torch that lie between a program's line and the op that reads for it.
_BETWEEN = ("/torch/_", "/torch/overrides.py", "/torch/utils/")

#: Codes looked at and kept; a program has few lines that check a tensor.
_KEPT = 4096
#: Instructions that may lie before an error; a longer way is a part of the program.
_LONGEST = 400


def passing_truth() -> bool | None:
    """The truth with which the line that now reads one does not raise: of `assert x.all()` True, of
    `if x.any(): raise ValueError` False; None where the program goes on with either.

    A program that is worth a forecast passes its own checks.
    """
    frame = _reader()
    return None if frame is None else _passing(frame.f_code, frame.f_lasti)


def _reader() -> FrameType | None:
    """The innermost frame that is neither neusight's nor of what torch has between."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OWN_FOLDER) and not any(part in name for part in _BETWEEN):
            return frame
        frame = frame.f_back
    return None


@lru_cache(maxsize=_KEPT)
def _passing(code: CodeType, offset: int) -> bool | None:
    """Of the instruction at this offset, whose result is true or false."""
    instructions = list(dis.get_instructions(code))
    places = {instruction.offset: place for place, instruction in enumerate(instructions)}
    place = places.get(offset)
    if place is None:
        return None
    is_negated = False
    if not _is_jump(instructions[place]):
        is_negated = instructions[place].opname == "UNARY_NOT"
        place += 1
    while place < len(instructions) and not _is_jump(instructions[place]):
        name = instructions[place].opname
        if name not in ("UNARY_NOT", "TO_BOOL", "NOP", "EXTENDED_ARG"):
            return None
        is_negated ^= name == "UNARY_NOT"
        place += 1
    if place >= len(instructions):
        return None
    truth = _truth_at(instructions, place, places)
    return truth if truth is None else truth ^ is_negated


def _is_jump(instruction: dis.Instruction) -> bool:
    """Whether it goes one of two ways by a truth, which it takes off the stack."""
    name = instruction.opname
    return name.startswith("POP_JUMP") and name.endswith(("IF_TRUE", "IF_FALSE"))


def _truth_at(
    instructions: list[dis.Instruction], place: int, places: dict[int, int]
) -> bool | None:
    """The truth for which this jump does not go where an error is raised."""
    jump = instructions[place]
    jumps_when = jump.opname.endswith("IF_TRUE")
    raises_there = _raises(instructions, places, places.get(jump.argval, len(instructions)))
    raises_next = _raises(instructions, places, place + 1)
    if raises_there == raises_next:
        return None
    return not jumps_when if raises_there else jumps_when


def _raises(instructions: list[dis.Instruction], places: dict[int, int], start: int) -> bool:
    """Whether each way from here on ends in an error; one that goes back ends in none."""
    waiting, seen = [start], set()
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        if place >= len(instructions) or len(seen) > _LONGEST:
            return False
        following = _following(instructions[place], place, places)
        if following is None or any(next_place <= place for next_place in following):
            return False
        waiting.extend(following)
    return True


def _following(
    instruction: dis.Instruction, place: int, places: dict[int, int]
) -> tuple[int, ...] | None:
    """Where the program may go from here: nowhere after an error, None where it leaves."""
    name = instruction.opname
    if name == "RAISE_VARARGS":
        return ()
    if name.startswith(("RETURN", "RERAISE", "YIELD", "FOR_ITER", "SETUP")):
        return None
    if instruction.opcode not in _JUMPS:
        return (place + 1,)
    target = places.get(instruction.argval, -1)
    return (target,) if name.startswith("JUMP") and "IF" not in name else (target, place + 1)


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))

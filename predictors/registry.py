"""Predictors by name: neusight's own, those a program registers, those that packages bring.

A package brings one by an entry point of the group `neusight.predictors`, in its `pyproject.toml`:

    [project.entry-points."neusight.predictors"]
    mine = "my_package.pricing:MyPredictor"

The name then works wherever a predictor is named: `neusight run --predictor mine`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Literal

from neusight.predictors.errors import OptionError, RegistrationError, UnknownPredictorError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate, Predictor, PredictorFactory

#: The predictor that prices where none is named.
DEFAULT_PREDICTOR = "tiled"

#: Where packages announce predictors: name = "module:factory".
ENTRY_POINT_GROUP = "neusight.predictors"

#: Modules that register neusight's own predictors when they load. They need numpy, so they load
#: when one of their predictors is first asked for.
_OWN_MODULES = {
    DEFAULT_PREDICTOR: "neusight.predictors.tiled",
    "tiled_burst": "neusight.predictors.tiled",
    "roofline": "neusight.predictors.roofline",
    "linear": "neusight.predictors.published.linear",
    "habitat": "neusight.predictors.published.habitat",
    "neusight": "neusight.predictors.published.neusight",
}

#: At which clocks a GPU runs: a short burst's, or those that its power limit allows for long.
Clock = Literal["burst", "sustained"]

#: The default predictor at each.
_AT_CLOCK: dict[Clock, str] = {"burst": "tiled_burst", "sustained": DEFAULT_PREDICTOR}

_factories: dict[str, PredictorFactory] = {}


def register_predictor(name: str, factory: PredictorFactory) -> None:
    """Makes `find_predictor(name)` give what `factory()` makes.

    RegistrationError where the name is empty or taken, or the factory cannot be called.
    """
    if not isinstance(name, str) or not name.strip():
        raise RegistrationError(f"Predictor name {name!r}: it must be a non-empty text.")
    own_module = _OWN_MODULES.get(name)
    is_own = own_module is not None and getattr(factory, "__module__", None) == own_module
    if name in _factories or (own_module is not None and not is_own):
        raise RegistrationError(f"Predictor {name!r} is already registered; choose another name.")
    if not callable(factory):
        raise RegistrationError(f"Predictor {name!r}: {factory!r} is no factory to call.")
    _factories[name] = factory


def predictor_at(clock: Clock | None, name: str | None = None) -> str | None:
    """The name of the predictor of that name at that clock; OptionError where it knows no clocks.

    >>> predictor_at("burst"), predictor_at(None, "roofline")
    ('tiled_burst', 'roofline')
    """
    if clock is None:
        return name
    if name not in (None, *_AT_CLOCK.values()):
        raise OptionError(
            f"--clock {clock} means nothing to predictor {name!r}; leave one of the two out"
        )
    return _AT_CLOCK[clock]


def clock_of(name: str) -> Clock | None:
    """The clock that a predictor of that name prices at; None where it knows no clocks.

    >>> clock_of("tiled"), clock_of("roofline")
    ('sustained', None)
    """
    return next((clock for clock, own in _AT_CLOCK.items() if own == name), None)


def predictor_names() -> list[str]:
    """Names of all predictors that can be asked for, sorted.

    >>> "roofline" in predictor_names()
    True
    """
    return sorted({*_OWN_MODULES, *_factories, *entry_points(group=ENTRY_POINT_GROUP).names})


def find_predictor(name: str | Predictor | None = None) -> Predictor:
    """A new predictor of that name; None gives the default, a predictor is given back as it is.

    UnknownPredictorError names near misses; RegistrationError says what is wrong with a predictor
    that a package brings.

    >>> find_predictor("roofline").name
    'roofline'
    """
    if name is None:
        name = DEFAULT_PREDICTOR
    if not isinstance(name, str):
        return name
    made = _factory_of(name)()
    if not isinstance(made, Predictor):
        raise RegistrationError(
            f"Predictor {name!r}: its factory gave {type(made).__name__}, which lacks"
            " `name` or `predict(kernels, gpu)`."
        )
    return made


def require_predictor(name: str | None) -> None:
    """Raises as `find_predictor(name)` would, without loading neusight's own predictors."""
    if name is not None and name not in _OWN_MODULES:
        find_predictor(name)


def predict(
    kernels: Sequence[Kernel], gpu: str | GPU, predictor: str | Predictor | None = None
) -> list[Estimate]:
    """How long each kernel takes on the GPU, in order.

    UnknownGPUError, UnsupportedKernelError where the GPU cannot run a kernel.

    >>> from neusight.predictors.kernel import Kernel
    >>> [estimate] = predict([Kernel.gemm(4096, 4096, 4096)], "H100")
    >>> estimate.bound
    'compute'
    """
    return find_predictor(predictor).predict(kernels, find_gpu(gpu))


def _factory_of(name: str) -> PredictorFactory:
    if name in _OWN_MODULES and name not in _factories:
        import_module(_OWN_MODULES[name])
    if name in _factories:
        return _factories[name]
    found = entry_points(group=ENTRY_POINT_GROUP, name=name)
    brought = list({entry.value: entry for entry in found}.values())  # each place once
    if len(brought) > 1:
        raise RegistrationError(
            f"Predictor {name!r} is brought by {' and by '.join(map(_origin_of, brought))}."
            " Uninstall all but one of them."
        )
    if brought:
        return partial(_made_by_package, name, brought[0])
    near = difflib.get_close_matches(name, predictor_names(), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UnknownPredictorError(
        f"Unknown predictor {name!r}.{hint} Known: {', '.join(predictor_names())};"
        f" `register_predictor` or an entry point of the group {ENTRY_POINT_GROUP!r} adds one."
    )


def _made_by_package(name: str, entry: EntryPoint) -> Predictor:
    """What the factory of an entry point makes; a failure names the package."""
    try:
        made: Predictor = entry.load()()
    except Exception as error:  # foreign code: it may raise anything
        raise RegistrationError(
            f"Predictor {name!r} of {_origin_of(entry)} does not work: {type(error).__name__}:"
            f" {error}. Repair, update or uninstall that package, or name another predictor:"
            f" {', '.join(_OWN_MODULES)}."
        ) from error
    return made


def _origin_of(entry: EntryPoint) -> str:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unnamed package"
    return f"the package {package} ({entry.value})"

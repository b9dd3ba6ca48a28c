"""Forecast what a PyTorch CUDA program does on a GPU that is not there: latency, memory, timeline.

    import neusight

    with neusight.forecast_on("H100") as forecast:
        train()
    print(forecast.summary())

`neusight.predictors` has kernels, GPUs and who prices one on the other. Callbacks for
trainers: `neusight.integrations.frameworks.lightning` and
`neusight.integrations.frameworks.transformers`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neusight._version import __version__ as __version__
    from neusight.forecast import Forecast as Forecast
    from neusight.integrations.frameworks.tensorboard import trace_handler as trace_handler
    from neusight.integrations.profiles.calibration import calibrate as calibrate
    from neusight.integrations.profiles.carrying.carried import carry as carry
    from neusight.integrations.profiles.comparison.comparison import compare as compare
    from neusight.integrations.report.embedding import notebook_html as notebook_html
    from neusight.ops import register_op as register_op
    from neusight.predictors import GPU as GPU
    from neusight.predictors import gpus as gpus
    from neusight.predictors import register_gpu as register_gpu
    from neusight.predictors import register_predictor as register_predictor
    from neusight.predictors.errors import BaselineError as BaselineError
    from neusight.predictors.errors import CalibrationError as CalibrationError
    from neusight.predictors.errors import DataError as DataError
    from neusight.predictors.errors import ForecastStateError as ForecastStateError
    from neusight.predictors.errors import NeusightError as NeusightError
    from neusight.predictors.errors import RecordingError as RecordingError
    from neusight.predictors.errors import RegistrationError as RegistrationError
    from neusight.predictors.errors import RegressionError as RegressionError
    from neusight.predictors.errors import TopologyError as TopologyError
    from neusight.predictors.errors import TraceError as TraceError
    from neusight.predictors.errors import UnknownGPUError as UnknownGPUError
    from neusight.predictors.errors import UnmappedOpError as UnmappedOpError
    from neusight.predictors.errors import UnsupportedKernelError as UnsupportedKernelError
    from neusight.predictors.errors import UnsupportedTorchError as UnsupportedTorchError
    from neusight.predictors.errors import WeightsError as WeightsError
    from neusight.session import forecast_on as forecast_on

# Names only: importing neusight must not import torch (a test tool that loads our pytest plugin
# pays for it in every run).
_HOME = {
    name: f"neusight.{home}"
    for home, names in {
        "_version": "__version__",
        "forecast": "Forecast",
        "integrations.frameworks.notebook": "load_ipython_extension unload_ipython_extension",
        "integrations.frameworks.tensorboard": "trace_handler",
        "integrations.profiles.calibration": "calibrate",
        "integrations.profiles.carrying.carried": "carry",
        "integrations.profiles.comparison.comparison": "compare",
        "integrations.report.embedding": "notebook_html",
        "ops": "register_op",
        "predictors": "GPU gpus register_gpu register_predictor",
        "predictors.errors": "BaselineError CalibrationError DataError ForecastStateError "
        "NeusightError RecordingError RegistrationError RegressionError TopologyError TraceError "
        "UnknownGPUError UnmappedOpError UnsupportedKernelError UnsupportedTorchError WeightsError",
        "session": "forecast_on",
    }.items()
    for name in names.split()
}

__all__ = [  # noqa: RUF022  (sorted as a reader looks: by letter, whatever the case)
    "BaselineError",
    "CalibrationError",
    "DataError",
    "Forecast",
    "ForecastStateError",
    "GPU",
    "NeusightError",
    "RecordingError",
    "RegistrationError",
    "RegressionError",
    "TopologyError",
    "TraceError",
    "UnknownGPUError",
    "UnmappedOpError",
    "UnsupportedKernelError",
    "UnsupportedTorchError",
    "WeightsError",
    "__version__",
    "calibrate",
    "carry",
    "compare",
    "forecast_on",
    "gpus",
    "register_gpu",
    "register_op",
    "register_predictor",
    "trace_handler",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'neusight' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__


if "IPython" in sys.modules:  # in a notebook `import neusight` is enough for %%neusight
    import_module("neusight.integrations.frameworks.notebook").register_where_it_runs()

"""Every error neusight raises, below all other modules so that each can raise them."""

from __future__ import annotations


class NeusightError(Exception):
    """Base of all errors of neusight: `except NeusightError` catches every one."""


class UnknownGPUError(NeusightError, ValueError):
    """The name is no GPU that neusight knows."""


class UnknownPredictorError(NeusightError, ValueError):
    """The name is no predictor: neither neusight, the program nor a package brings it."""


class UnmappedOpError(NeusightError, NotImplementedError):
    """Under `strict`, an op was dispatched that no registered function maps to kernels."""


class ForecastStateError(NeusightError, RuntimeError):
    """A forecast, or a tensor of one, was used when it cannot be."""


class RegistrationError(NeusightError, ValueError):
    """A GPU, op or predictor could not be registered: wrong, incomplete or already there."""


class TraceError(NeusightError, ValueError):
    """A trace could not be read or written."""


class RecordingError(NeusightError, ValueError):
    """A saved forecast could not be read: damaged, foreign or of another schema version."""


class WeightsError(NeusightError, ValueError):
    """A file of trained weights could not be used: damaged, truncated, foreign or too new."""


class DataError(NeusightError, ValueError):
    """A table of measurements could not be used: missing columns, impossible values, no reader."""


class CalibrationError(NeusightError, ValueError):
    """A calibration could not be made or used: damaged, foreign, of another GPU or version."""


class OptionError(NeusightError, ValueError):
    """An option of a command means nothing: a price that is no number, a sweep over nothing."""


class TopologyError(NeusightError, ValueError):
    """A topology could not be used: unknown, damaged, or without a level that joins a group."""


class UnansweredCallError(NeusightError, NotImplementedError):
    """A program calls what only a GPU could answer, or a C library that is not there."""


class UnansweredRankError(NeusightError, RuntimeError):
    """A program waits for what another rank would send it, and that rank is not run."""


class MismatchError(NeusightError, RuntimeError):
    """Ranks of a process group do not agree on what they do together; a cluster would hang."""


class HangError(NeusightError, RuntimeError):
    """Ranks wait for each other and none can go on; a cluster would hang."""


class BaselineError(NeusightError, ValueError):
    """A baseline could not be used: missing, damaged, of another version, or not to be written."""


class RegressionError(NeusightError, AssertionError):
    """A forecast is worse than its baseline, or than its budget; the text says what and where."""


class SlowMachineError(NeusightError, TimeoutError):
    """A check of this machine did not end in time, so its result is unknown."""


class UnsupportedKernelError(NeusightError, ValueError):
    """The GPU has no unit for this kernel's data type."""


class UnsupportedTorchError(NeusightError, RuntimeError):
    """This torch build or platform has no proven way to take the CUDA path without CUDA."""

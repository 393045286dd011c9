"""Instruments: timing, text and files between passes, checks, a journal of rewrites."""

from onnxopt.pipeline.instrument import Instrument
from onnxopt.pipeline.instruments.checks import CheckEach, VerifyEach
from onnxopt.pipeline.instruments.counts import Counts
from onnxopt.pipeline.instruments.journal import Entry, Journal
from onnxopt.pipeline.instruments.printing import DumpModels, PrintIR
from onnxopt.pipeline.instruments.sizes import Sizes
from onnxopt.pipeline.instruments.timeline import Timeline
from onnxopt.pipeline.instruments.timing import Timing

__all__ = [
    "CheckEach",
    "Counts",
    "DumpModels",
    "Entry",
    "Instrument",
    "Journal",
    "PrintIR",
    "Sizes",
    "Timeline",
    "Timing",
    "VerifyEach",
]

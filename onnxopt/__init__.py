"""onnxopt: optimize ONNX models, prove that nothing broke, and say what was done.

import onnxopt
result = onnxopt.optimize("model.onnx")  # or a ModelProto; verified against the original: result.model, result.report
onnxopt.optimize("model.onnx", "model.opt.onnx")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from onnxopt.startup import listing

if TYPE_CHECKING:
    from onnxopt.analysis.types import dtype as dtype
    from onnxopt.analysis.types import shape as shape
    from onnxopt.api.analyses import Found as Found
    from onnxopt.api.analyses import bisect as bisect
    from onnxopt.api.analyses import find as find
    from onnxopt.api.analyses import stats as stats
    from onnxopt.api.analyses import verify as verify
    from onnxopt.api.optimizing import Result as Result
    from onnxopt.api.optimizing import optimize as optimize
    from onnxopt.api.optimizing import optimize_file as optimize_file
    from onnxopt.api.page import Page as Page
    from onnxopt.api.page import diff as diff
    from onnxopt.api.page import report as report
    from onnxopt.bisection import Finding as Finding
    from onnxopt.conversion.extraction import Extraction as Extraction
    from onnxopt.conversion.extraction import extract as extract
    from onnxopt.conversion.extraction import extract_file as extract_file
    from onnxopt.errors import DomainError as DomainError
    from onnxopt.errors import EmissionError as EmissionError
    from onnxopt.errors import InstrumentError as InstrumentError
    from onnxopt.errors import InvariantError as InvariantError
    from onnxopt.errors import MistypedError as MistypedError
    from onnxopt.errors import ModelError as ModelError
    from onnxopt.errors import NoFixpointError as NoFixpointError
    from onnxopt.errors import OnnxOptError as OnnxOptError
    from onnxopt.errors import PassError as PassError
    from onnxopt.errors import PreconditionError as PreconditionError
    from onnxopt.errors import UsageError as UsageError
    from onnxopt.errors import VerificationError as VerificationError
    from onnxopt.errors import WriteError as WriteError
    from onnxopt.graph import Graph as Graph
    from onnxopt.graph import Model as Model
    from onnxopt.graph import Node as Node
    from onnxopt.graph import Value as Value
    from onnxopt.graph import declare_domain as declare_domain
    from onnxopt.graph import read_model as read_model
    from onnxopt.graph import write_model as write_model
    from onnxopt.io.load import load as load
    from onnxopt.io.save import save as save
    from onnxopt.optimizer import OptimizeOptions as OptimizeOptions
    from onnxopt.optimizer import Report as Report
    from onnxopt.optimizer import optimize_model as optimize_model
    from onnxopt.pipeline import CapabilityPartitioner as CapabilityPartitioner
    from onnxopt.pipeline import CheckEach as CheckEach
    from onnxopt.pipeline import ConfigKey as ConfigKey
    from onnxopt.pipeline import DebugPass as DebugPass
    from onnxopt.pipeline import DumpModels as DumpModels
    from onnxopt.pipeline import Fixpoint as Fixpoint
    from onnxopt.pipeline import GraphInterpreter as GraphInterpreter
    from onnxopt.pipeline import GraphPass as GraphPass
    from onnxopt.pipeline import Instrument as Instrument
    from onnxopt.pipeline import Journal as Journal
    from onnxopt.pipeline import ModelPass as ModelPass
    from onnxopt.pipeline import OperatorSupport as OperatorSupport
    from onnxopt.pipeline import Partition as Partition
    from onnxopt.pipeline import Pass as Pass
    from onnxopt.pipeline import PassContext as PassContext
    from onnxopt.pipeline import PassInfo as PassInfo
    from onnxopt.pipeline import PassManager as PassManager
    from onnxopt.pipeline import PassReport as PassReport
    from onnxopt.pipeline import PipelineReport as PipelineReport
    from onnxopt.pipeline import PrintIR as PrintIR
    from onnxopt.pipeline import RewritePass as RewritePass
    from onnxopt.pipeline import RuleReport as RuleReport
    from onnxopt.pipeline import Sequential as Sequential
    from onnxopt.pipeline import StmtPass as StmtPass
    from onnxopt.pipeline import Timing as Timing
    from onnxopt.pipeline import VerifyEach as VerifyEach
    from onnxopt.pipeline import all_passes as all_passes
    from onnxopt.pipeline import all_targets as all_targets
    from onnxopt.pipeline import any_chain as any_chain
    from onnxopt.pipeline import chain as chain
    from onnxopt.pipeline import config_keys as config_keys
    from onnxopt.pipeline import create_pattern_support as create_pattern_support
    from onnxopt.pipeline import declare_config as declare_config
    from onnxopt.pipeline import fuse_partition as fuse_partition
    from onnxopt.pipeline import generate_pattern_op_partitions as generate_pattern_op_partitions
    from onnxopt.pipeline import get_pass as get_pass
    from onnxopt.pipeline import graph_pass as graph_pass
    from onnxopt.pipeline import load_module as load_module
    from onnxopt.pipeline import model_pass as model_pass
    from onnxopt.pipeline import option as option
    from onnxopt.pipeline import parse_pipeline as parse_pipeline
    from onnxopt.pipeline import pattern_partitions as pattern_partitions
    from onnxopt.pipeline import register as register
    from onnxopt.pipeline.outlining import Part as Part
    from onnxopt.pipeline.outlining import split as split
    from onnxopt.rewriting import Match as Match
    from onnxopt.rewriting import Replaced as Replaced
    from onnxopt.rewriting import SubgraphMatch as SubgraphMatch
    from onnxopt.rewriting import SubgraphMatcher as SubgraphMatcher
    from onnxopt.rewriting import about as about
    from onnxopt.rewriting import const as const
    from onnxopt.rewriting import either as either
    from onnxopt.rewriting import one_of as one_of
    from onnxopt.rewriting import op as op
    from onnxopt.rewriting import replace_pattern as replace_pattern
    from onnxopt.rewriting import rewrite as rewrite
    from onnxopt.rewriting import var as var
    from onnxopt.verification import VerifyOptions as VerifyOptions
    from onnxopt.verification.records import Verification as Verification
    from onnxopt.verification.runtime import declare_reference as declare_reference

__version__ = "0.1.0"

# Where each name comes from; imported on first use, so that `onnxopt --help` does not pay for onnx. Passes are
# registered before anything of the framework is handed out.
_HOMES: Final = {
    "onnxopt.analysis.types": "dtype shape",
    "onnxopt.api.analyses": "Found bisect find stats verify",
    "onnxopt.api.optimizing": "Result optimize optimize_file",
    "onnxopt.api.page": "Page diff report",
    "onnxopt.bisection": "Finding",
    "onnxopt.io.load": "load",
    "onnxopt.io.save": "save",
    "onnxopt.optimizer": "OptimizeOptions Report optimize_model",
    "onnxopt.verification": "VerifyOptions",
    "onnxopt.verification.records": "Verification",
    "onnxopt.errors": (
        "DomainError EmissionError InstrumentError InvariantError MistypedError ModelError NoFixpointError "
        "OnnxOptError PassError PreconditionError UsageError VerificationError WriteError"
    ),
    "onnxopt.conversion.extraction": "Extraction extract extract_file",
    "onnxopt.graph": "Graph Model Node Value declare_domain read_model write_model",
    "onnxopt.pipeline": (
        "CapabilityPartitioner CheckEach ConfigKey DebugPass DumpModels Fixpoint GraphInterpreter GraphPass "
        "Instrument Journal ModelPass OperatorSupport Partition Pass PassContext PassInfo PassManager PassReport "
        "PipelineReport PrintIR RewritePass RuleReport Sequential StmtPass Timing VerifyEach all_passes all_targets "
        "any_chain chain config_keys create_pattern_support declare_config fuse_partition "
        "generate_pattern_op_partitions get_pass graph_pass load_module model_pass option parse_pipeline "
        "pattern_partitions register"
    ),
    "onnxopt.pipeline.outlining": "Part split",
    "onnxopt.verification.runtime": "declare_reference",
    "onnxopt.rewriting": (
        "Match Replaced SubgraphMatch SubgraphMatcher about const either one_of op replace_pattern rewrite var"
    ),
}

__all__ = sorted(["__version__", *" ".join(_HOMES.values()).split()])


__dir__ = listing(__name__)


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names.split():
            if home.startswith("onnxopt.pipeline"):
                import_module("onnxopt.passes")
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'onnxopt' has no attribute {name!r}")

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
    from onnxopt.graph import *  # noqa: F403
    from onnxopt.io.load import load as load
    from onnxopt.io.save import save as save
    from onnxopt.optimizer import OptimizeOptions as OptimizeOptions
    from onnxopt.optimizer import Report as Report
    from onnxopt.optimizer import optimize_model as optimize_model
    from onnxopt.pipeline import *  # noqa: F403
    from onnxopt.pipeline.instruments import CheckEach as CheckEach
    from onnxopt.pipeline.instruments import DumpModels as DumpModels
    from onnxopt.pipeline.instruments import PrintIR as PrintIR
    from onnxopt.pipeline.instruments import Timing as Timing
    from onnxopt.pipeline.instruments import VerifyEach as VerifyEach
    from onnxopt.pipeline.interpreter import GraphInterpreter as GraphInterpreter
    from onnxopt.pipeline.interpreter import StmtPass as StmtPass
    from onnxopt.pipeline.journal import Journal as Journal
    from onnxopt.pipeline.manager import PassManager as PassManager
    from onnxopt.pipeline.outlining import Part as Part
    from onnxopt.pipeline.outlining import fuse_partition as fuse_partition
    from onnxopt.pipeline.outlining import split as split
    from onnxopt.pipeline.partition import CapabilityPartitioner as CapabilityPartitioner
    from onnxopt.pipeline.partition import OperatorSupport as OperatorSupport
    from onnxopt.pipeline.partition import Partition as Partition
    from onnxopt.pipeline.partition import any_chain as any_chain
    from onnxopt.pipeline.partition import chain as chain
    from onnxopt.pipeline.partition import create_pattern_support as create_pattern_support
    from onnxopt.pipeline.partition import generate_pattern_op_partitions as generate_pattern_op_partitions
    from onnxopt.pipeline.partition import pattern_partitions as pattern_partitions
    from onnxopt.rewriting import *  # noqa: F403
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
        "ConfigKey DebugPass Fixpoint GraphPass Instrument ModelPass Pass PassContext PassInfo PassReport "
        "PipelineReport RewritePass Sequential all_passes all_targets config_keys declare_config get_pass graph_pass "
        "load_module model_pass option parse_pipeline register"
    ),
    "onnxopt.pipeline.instruments": "CheckEach DumpModels PrintIR Timing VerifyEach",
    "onnxopt.pipeline.interpreter": "GraphInterpreter StmtPass",
    "onnxopt.pipeline.journal": "Journal",
    "onnxopt.pipeline.manager": "PassManager",
    "onnxopt.pipeline.outlining": "Part fuse_partition split",
    "onnxopt.pipeline.partition": (
        "CapabilityPartitioner OperatorSupport Partition any_chain chain create_pattern_support "
        "generate_pattern_op_partitions pattern_partitions"
    ),
    "onnxopt.verification.runtime": "declare_reference",
    "onnxopt.rewriting": (
        "Match Replaced RuleReport SubgraphMatch SubgraphMatcher about const either one_of op replace_pattern rewrite "
        "var"
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

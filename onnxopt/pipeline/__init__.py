"""The pass framework: definition, registry, ordering, execution, instruments and records of passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxopt.pipeline.base import DebugPass, GraphPass, ModelPass, Pass, PassInfo, RewritePass, option
from onnxopt.pipeline.config import ConfigKey, config_keys, declare_config
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.execute import execute
from onnxopt.pipeline.instrument import Instrument
from onnxopt.pipeline.records import PassReport, PipelineReport, RuleReport
from onnxopt.pipeline.registry import all_passes, get_pass, is_rule, load_module, origin, register
from onnxopt.pipeline.sequence import Fixpoint, Sequential
from onnxopt.pipeline.text import parse_pipeline, pipeline_text
from onnxopt.startup import lazy, listing

if TYPE_CHECKING:
    from onnxopt.pipeline.decorators import graph_pass, model_pass
    from onnxopt.pipeline.fuse import fuse_partition
    from onnxopt.pipeline.instruments.checks import CheckEach, VerifyEach
    from onnxopt.pipeline.instruments.journal import Journal
    from onnxopt.pipeline.instruments.printing import DumpModels, PrintIR
    from onnxopt.pipeline.instruments.timing import Timing
    from onnxopt.pipeline.interpreter import GraphInterpreter
    from onnxopt.pipeline.manager import PassManager, in_order
    from onnxopt.pipeline.partition import CapabilityPartitioner, Partition
    from onnxopt.pipeline.pattern_partition import (
        create_pattern_support,
        generate_pattern_op_partitions,
        pattern_partitions,
    )
    from onnxopt.pipeline.statement import StmtPass
    from onnxopt.pipeline.support import OperatorSupport, any_chain, chain
    from onnxopt.pipeline.targets import all_targets

__all__ = [
    "CapabilityPartitioner",
    "CheckEach",
    "ConfigKey",
    "DebugPass",
    "DumpModels",
    "Fixpoint",
    "GraphInterpreter",
    "GraphPass",
    "Instrument",
    "Journal",
    "ModelPass",
    "OperatorSupport",
    "Partition",
    "Pass",
    "PassContext",
    "PassInfo",
    "PassManager",
    "PassReport",
    "PipelineReport",
    "PrintIR",
    "RewritePass",
    "RuleReport",
    "Sequential",
    "StmtPass",
    "Timing",
    "VerifyEach",
    "all_passes",
    "all_targets",
    "any_chain",
    "chain",
    "config_keys",
    "create_pattern_support",
    "declare_config",
    "execute",
    "fuse_partition",
    "generate_pattern_op_partitions",
    "get_pass",
    "graph_pass",
    "in_order",
    "is_rule",
    "load_module",
    "model_pass",
    "option",
    "origin",
    "parse_pipeline",
    "pattern_partitions",
    "pipeline_text",
    "register",
]

__dir__ = listing(__name__)
__getattr__ = lazy(
    __name__,
    {
        "decorators": ("graph_pass", "model_pass"),
        "fuse": ("fuse_partition",),
        "interpreter": ("GraphInterpreter",),
        "instruments.checks": ("CheckEach", "VerifyEach"),
        "instruments.journal": ("Journal",),
        "instruments.printing": ("DumpModels", "PrintIR"),
        "instruments.timing": ("Timing",),
        "manager": ("PassManager", "in_order"),
        "partition": ("CapabilityPartitioner", "Partition"),
        "pattern_partition": ("create_pattern_support", "generate_pattern_op_partitions", "pattern_partitions"),
        "statement": ("StmtPass",),
        "support": ("OperatorSupport", "any_chain", "chain"),
        "targets": ("all_targets",),
    },
)

"""The pass framework: definition, registry, ordering, execution, instruments and records of passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxopt.pipeline.base import DebugPass, GraphPass, ModelPass, Pass, PassInfo, RewritePass, option
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.decorators import graph_pass, model_pass
from onnxopt.pipeline.execute import execute
from onnxopt.pipeline.records import Instrument, PassReport, PipelineReport, RuleReport
from onnxopt.pipeline.registry import all_passes, get_pass, is_rule, load_module, origin, register
from onnxopt.pipeline.sequence import Fixpoint, Sequential, parse_pipeline, pipeline_text
from onnxopt.pipeline.settings import ConfigKey, all_targets, config_keys, declare_config
from onnxopt.startup import lazy, listing

if TYPE_CHECKING:
    from onnxopt.pipeline.instruments import CheckEach, DumpModels, PrintIR, Timing, VerifyEach
    from onnxopt.pipeline.interpreter import GraphInterpreter, StmtPass
    from onnxopt.pipeline.journal import Journal
    from onnxopt.pipeline.manager import PassManager, in_order
    from onnxopt.pipeline.outlining import fuse_partition
    from onnxopt.pipeline.partition import (
        CapabilityPartitioner,
        OperatorSupport,
        Partition,
        any_chain,
        chain,
        create_pattern_support,
        generate_pattern_op_partitions,
        pattern_partitions,
    )

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
        "outlining": ("fuse_partition",),
        "interpreter": ("GraphInterpreter", "StmtPass"),
        "instruments": ("CheckEach", "DumpModels", "PrintIR", "Timing", "VerifyEach"),
        "journal": ("Journal",),
        "manager": ("PassManager", "in_order"),
        "partition": (
            "CapabilityPartitioner",
            "OperatorSupport",
            "Partition",
            "any_chain",
            "chain",
            "create_pattern_support",
            "generate_pattern_op_partitions",
            "pattern_partitions",
        ),
    },
)

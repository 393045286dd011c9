"""The pass framework: what a pass is, how passes are found, ordered, run and recorded."""

from onnxopt.pipeline.base import GraphPass, ModelPass, Pass, PassInfo, RewritePass, option
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.manager import run_fixpoint
from onnxopt.pipeline.records import PassReport, PipelineReport, RuleReport
from onnxopt.pipeline.registry import all_passes, get_pass, register

__all__ = [
    "GraphPass",
    "ModelPass",
    "Pass",
    "PassContext",
    "PassInfo",
    "PassReport",
    "PipelineReport",
    "RewritePass",
    "RuleReport",
    "all_passes",
    "get_pass",
    "option",
    "register",
    "run_fixpoint",
]

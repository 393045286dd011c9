"""The pass framework: definition, registry, ordering, execution, instruments and records of passes."""

from __future__ import annotations

from onnxopt.pipeline.base import DebugPass, GraphPass, ModelPass, Pass, PassInfo, RewritePass, option
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.decorators import graph_pass, model_pass
from onnxopt.pipeline.execute import execute
from onnxopt.pipeline.records import Instrument, PassReport, PipelineReport
from onnxopt.pipeline.registry import all_passes, get_pass, is_rule, load_module, origin, register
from onnxopt.pipeline.sequence import Fixpoint, Sequential, parse_pipeline, pipeline_text
from onnxopt.pipeline.settings import ConfigKey, all_targets, config_keys, declare_config

__all__ = [
    "ConfigKey",
    "DebugPass",
    "Fixpoint",
    "GraphPass",
    "Instrument",
    "ModelPass",
    "Pass",
    "PassContext",
    "PassInfo",
    "PassReport",
    "PipelineReport",
    "RewritePass",
    "Sequential",
    "all_passes",
    "all_targets",
    "config_keys",
    "declare_config",
    "execute",
    "get_pass",
    "graph_pass",
    "is_rule",
    "load_module",
    "model_pass",
    "option",
    "origin",
    "parse_pipeline",
    "pipeline_text",
    "register",
]

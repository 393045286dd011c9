"""Names for nodes that have none."""

from __future__ import annotations

from onnxopt.graph import Model


def name_nodes(model: Model) -> None:
    """Call each node without a name by its operator and its place in the model, bodies and functions counted:
    `Conv_12`. No two nodes have one name."""
    scopes = [model.graph, *model.functions.values()]
    for i, node in enumerate(node for scope in scopes for node in scope.walk()):
        if not node.name:
            node.proto.name = model.node_name(f"{node.proto.op_type}_{i}", "")
            model.version += 1

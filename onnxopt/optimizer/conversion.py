"""Attribution of a wrong or refused result to an opset conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from onnxopt.conversion.opset import opset_of
from onnxopt.errors import ModelError
from onnxopt.io import Staged
from onnxopt.io.load import read_proto
from onnxopt.optimizer.options import OptimizeOptions
from onnxopt.optimizer.results import ConversionFault
from onnxopt.verification import DIFFERENT, UNVERIFIED, Verification, Verifier
from onnxopt.verification.missing import missing


def judged(
    verdict: Verification, result: Path, source: Path, options: OptimizeOptions, verifier: Verifier
) -> Verification:
    """Return the verdict on a result with converted opset.

    If onnxruntime lacks an operator of the opset even without optimization, the verdict comes from onnx's reference
    evaluator. Raises ModelError if making dims dynamic alone causes the fault, and ConversionFault if the opset
    conversion alone does.
    """
    own, model = opset_of(read_proto(source, weights=False)), options.load_specialised(source)
    opset = model.opsets.get("", 0)
    if verdict.status != DIFFERENT or (opset == own and not options.make_dynamic):
        return verdict
    with TemporaryDirectory() as folder:
        converted = Path(folder) / "converted.onnx"
        with Staged(converted) as staged:
            staged.write(options.load_converted(source), options.external)
            staged.commit()
        verifier.submit(converted)
        alone = verifier.finish()
        if alone.status != DIFFERENT:
            return verdict
        if options.make_dynamic and alone.cases:
            raise ModelError(f"{source}: {', '.join(options.freed)} cannot be dynamic: {alone.message}", alone.hint)
        lacks = missing(alone.message)
        if alone.cases or not lacks:
            if opset > own:
                hint = "onnx's version converter makes that of it; try a lower opset, or export the model again"
            else:
                hint = "an older form of an operator computes something else: report it, or try a higher opset"
            raise ConversionFault(f"{source} cannot be converted to opset {opset}: {alone.message}", hint, own)

        def by_reference(path: Path, rename: Mapping[str, str]) -> Verification:
            with Verifier(source, replace(verifier.options, without=lacks)) as judge:
                judge.describe(model.proto, model.data_of, override=not options.freeze_initializers)
                judge.submit(path, rename=rename)
                return judge.finish()

        found = by_reference(result, options.rename)
        lacks_it = found.status == UNVERIFIED
        if lacks_it or (found.status == DIFFERENT and by_reference(converted, {}).status == DIFFERENT):
            hint = "compare it in a runtime that has it, or choose an older opset"
            asks = "--target" if options.target_opset is None else "--target-opset"
            return Verification(UNVERIFIED, f"{lacks}, which {asks} asks for", hint=hint)
        return found

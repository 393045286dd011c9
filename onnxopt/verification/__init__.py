"""The judge: compares two files, and shares no code with what rewrites them."""

from onnxopt.verification.client import Verifier, verify
from onnxopt.verification.records import CaseRecord, OutputRecord, Verification, VerifyOptions

__all__ = ["CaseRecord", "OutputRecord", "Verification", "Verifier", "VerifyOptions", "verify"]

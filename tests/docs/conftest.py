"""A registry that forgets what a test of a page registers."""

from tests.pipeline.conftest import _forget  # noqa: F401  a fixture

"""The store of these tests."""

from tests.support.stores import project, team

__all__ = ["project", "team"]

"""The version of orch, in a module that imports nothing: the root package imports the Python
interface.
"""

from __future__ import annotations

__version__ = "0.1.0"

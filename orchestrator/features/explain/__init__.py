"""Compare a bench with a prediction from separate measurements, and divide the gap to the ideal
into parts.
"""

from orchestrator.feature import Feature

FEATURE = Feature(provides={"section": "section"})

"""A tune against its own default: which candidates are run, and what was proven."""

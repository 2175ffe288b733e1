"""The parts of a step that a program reports, and what follows from them: transfers, and overlap
with computing.
"""

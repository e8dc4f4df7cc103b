"""Faults that were fixed once, each for its whole kind; every docstring says the fault."""

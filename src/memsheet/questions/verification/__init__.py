"""A plan under three witnesses: predicted, traced and measured side by side, on as much of it as a person can
afford to run.
"""

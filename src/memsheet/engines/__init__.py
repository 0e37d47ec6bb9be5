"""One folder an engine: everything of it and nothing of another. ``facts.py`` is what it keeps, its dtypes,
buffers and defaults as data, each with its source; ``defaults.py`` what it alone refuses or takes where
nobody says; ``layers`` its own model code; ``server.py`` what it holds while it serves. They are reached by
name (``plan/engine_registry.py``, ``formulas/model_code``, ``formulas/serving/servers.py``), so that a new
engine is a new folder. ``shared`` is what several have alike.
"""

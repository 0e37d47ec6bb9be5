"""One module a kind of architecture, each with ``read(config: Fields) -> ModelSpec``; ``registry.py`` says
which reads what.
"""

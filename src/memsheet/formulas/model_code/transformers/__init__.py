"""The transformers library's model code (5.23): ``code.py`` is what an engine asks for, the rest what its
layers run.
"""

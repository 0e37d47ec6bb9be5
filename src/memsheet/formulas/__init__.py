"""Bytes as pure functions. From the inside out:

``tapes``      operations over shape-only tensors: recorded, played backward, given numbers
``model_code`` what layers, embeddings and losses run, operation by operation, for each code that writes
               them down; ``numerics.py``, ``adapters.py`` and ``packed_linear.py`` are the linear layers
               that all of them are made of
``states``     parameters, master weights, gradients and optimizer states, tensor by tensor
``sharding``   the algorithms by which ranks divide them, and what each keeps around the layers
``step.py``    one rank's training step: ``pipeline.py`` says which layers, ``groups.py`` and
               ``activations.py`` which tapes, ``training.py`` and ``recompute_segments.py`` what is
               there at each moment
``replay``     the same step through the allocator's rules; ``runtime.py``: what is there besides tensors
``serving``    weights, caches and work of a server
``operators``  what a block runs and moves, each operator once; ``step_time`` and ``serving_time`` price it
"""

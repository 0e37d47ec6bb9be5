"""What servers share; what is of one alone lies in its engine's folder, which ``servers.py`` finds.

``loaded.py``, ``quantized_ends.py``, ``cut_blocks.py``   weights as an engine loads them
``kv_cache.py``, ``states.py``         what a token and a sequence take, by kind of layer;
                                      ``capacity.py``: who has room
``widest_layer.py``, ``sampling.py``, ``graphs.py``   what a pass holds beside them
``dp_attention.py``, ``deepep.py``     groups of ranks with requests of their own, and what they exchange
``drafts.py``                          drafts, as far as engines share them
"""

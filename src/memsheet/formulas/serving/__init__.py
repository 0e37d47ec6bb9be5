"""What servers share; what is of one alone lies in its engine's folder, which ``servers.py`` finds.

``loaded.py``, ``quantized_ends.py``   weights as an engine loads them
``kv_cache.py``, ``pages.py``, ``states.py``   what a token, a block and a sequence take, by kind of layer;
                                      ``capacity.py``: who has room
``profiled.py``, ``pictures.py``, ``sampling.py``, ``work.py``   what a pass holds beside them
``dp_attention.py``, ``deepep.py``     groups of ranks with requests of their own, and what they exchange
``drafts.py``                          drafts, as far as engines share them
"""

"""What a server keeps. ``servers.py`` finds the module of an engine; ``serving.py`` is transformers'
generation.

``vllm``, ``sglang``, ``llama_cpp``   a folder each: ``server.py`` puts a rank's items together;
                                      beside it drafts, adapters, pools, buffers
``autoawq.py``, ``gpt_fast.py``, …     engines that need one file
``loaded.py``, ``quantized_ends.py``   weights as an engine loads them
``kv_cache.py``, ``pages.py``, ``states.py``   what a token, a block and a sequence take, by kind of layer;
                                      ``capacity.py``: who has room
``profiled.py``, ``pictures.py``, ``sampling.py``, ``work.py``   what a pass holds beside them
``dp_attention.py``, ``deepep.py``     groups of ranks with requests of their own, and what they exchange
``drafts.py``, ``assisted.py``, ``peft_lora.py``   drafts and adapters, as far as engines share them
"""

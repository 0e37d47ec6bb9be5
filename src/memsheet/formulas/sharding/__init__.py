"""How data-parallel ranks divide states: what a rank keeps, and what stands around its layers meanwhile
(gathered parameters, buffers, gradients on their way).

``algorithm.py`` is what all are asked; each member of ``Sharding`` has a module of its name with an
``ALGORITHM``. Three divide states tensor by tensor: ``by_tensor.py`` is what these have alike, and
``division.py`` what differs. A file that begins with an algorithm's word is a part of it.
"""

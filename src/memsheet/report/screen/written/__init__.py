"""What a screen is made of, and how that is written: ``parts``, the data; ``plain``, without colours;
``coloured``, with them.
"""

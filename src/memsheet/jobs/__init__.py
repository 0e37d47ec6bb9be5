"""Jobs of several models on the same cards: roles and phases in, one sheet a kind of card out."""

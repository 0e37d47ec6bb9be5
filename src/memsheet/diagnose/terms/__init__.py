"""Products that a requested size may be, by what they are of; and what a text says of their axes."""

"""One file an emitter: what its messages look like, and what they say of themselves."""

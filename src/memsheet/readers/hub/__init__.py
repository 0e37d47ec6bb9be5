"""A model's repository on a hub, or in the hub's local cache: its configuration, and of its weights the
headers alone.

refusals    what is said where a hub says no
client      bounded requests: bytes, time, parts of files
remote_file a file on a hub as a reader reads one: forward, in parts
repository  the files of a repository: on the hub, or in the local cache
gguf_choice which GGUF file of a repository is meant
contents    those files → a configuration or a model
lookup      a name → what is in the cache, else on the hub
"""

"""What a job that died of memory said → what it died of: messages and logs → facts → verdict, cures.

interval    a printed figure as the bytes it may stand for
cleaned     a log without colours, boxes, prefixes and line wraps
messages/   one file an emitter: what its messages look like, and what they say
signs       which frames, settings and programs a log shows (frames, log_programs, tracebacks)
script_lines, growing_figures   what a script's statements keep; figures that reach what was held
kept_tensors, regimes   leaks and runs that become another, in scripts and logs
said_regimes, tongues   the same as people say it, in English and in other tongues
denials     what they say that it was not
rules       one message of an allocator → one verdict, by arithmetic
causes/     what shows a cause: tests and words
identities  a requested size → the tensor that it is (candidates, model_tensors, named_models)
terms/      the products that it may be: logits, attention scores, a model's own; the axes that a text says
cures/      what would have helped, and what would not
verdict     all of it for one text
printed     what a log says beside the sheet of a plan
snapshot/   the allocator's own history
with_snapshots   histories and texts of one job as one
"""

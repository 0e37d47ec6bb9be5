"""Where what a training script says stands among the values that are read of it."""

from __future__ import annotations

from memsheet.patterns import late_pattern

RELEASE_DEFAULTS = "left_to_release"
"""Keys that nobody says and whose default TRL has changed."""
OLDER_WORDS = "of_older_release"
"""Keys of TRL's that newer releases stop at."""
BITS, UNMADE, LIKELY_NAME = "BitsAndBytesConfig", "unmade", "likely_name"
OWN_TRAINER = "own_trainer"
"""That what trains is a class of somebody's own."""
OF_TRAINER, BY_NAME = "of_trainer", "model_by_name"
"""Models that a trainer of a method is given beside the one that it trains, and whether it loads that one."""
COPY, LOADED_OTHERWISE = "a copy of the model that trains", "loaded_otherwise"
"""In the place of such a model's name; and which of them are loaded in another width."""
DEFAULTS = "defaults"
"""Arguments that are a flag's default, with the flag's name and the line that says it."""
OWN_FIELDS = "own_fields"
"""Fields of a script's own class of arguments, which takes them whether the library knows them or not."""
SCRIPT, LOOP = "script", "loop"
CLASS, LINE, WHOLE, SCOPE, BRANCH = "class", "lambda", "import", "def", "if"
"""What else is known of a call, beside its arguments, none of which can have a word of the language."""
MODEL_FLAG = "$.model"
"""Until its place is known: the flag whose default the model's name is."""
INLINE = "deepspeed"
"""The argument that is a file, or what would stand in one (training_args.py: deepspeed)."""
ASKS_CARD = "asks_card"
"""That the script asks its card whether it has bf16; it is read as on one that has."""
WITHIN = "within max_memory"
"""In place of a map's name, where the call says how much each card may take."""
SPREADS, MAPS = "device_map", ("auto", "balanced", "balanced_low_0", "sequential", WITHIN)
SAME_MAP = {"auto": "balanced"}
"""One word for maps that are made alike (transformers 5.23.0 integrations/accelerate.py:349-360)."""
COLOCATED = "colocated"
"""The share of the card that a server in the trainer's own process takes."""
SERVED = "served"
"""What such a server is told beside its share."""
OWN_LAYERS = "own_layers"
"""That Unsloth's class is one that runs some families in layers of its own (models/loader.py:407, 1140)."""
OF_ENVIRONMENT = "$"
"""How names begin among what a script is given that are variables of the environment it is started in."""
OWN_SCRIPT = "own_script"
"""Of flags that a command gives a script: that nobody read what the script itself does."""
ABSENT = "whose text is not among the files"
UNREAD_FLAGS = "unread_flags"
"""Flags that a script is given of which its text was read without any effect."""
COMMAND_FLAGS = "command_flags"
"""That a parser fills the arguments of a script from a command line that nobody has."""
SEVERAL = "several_trainings"
"""That a script makes arguments of several trainings that differ, of which the last are read."""
SEVERAL_LOADS = "several_loads"
"""That a script loads the model that trains in one of several ways, by what its text does not decide."""
UNSAID = "unsaid"
"""The dtype of a call that names none: transformers' default, by its release."""
LABELS = late_pattern(
    r"\w*For(?:SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice)\b",
    holds=("For",),
)
LABELS_PLACE = f"{SCRIPT}.labels"
NOTEBOOK, DOTENV = ".ipynb", ".env"
FAMILY_CLASS = "model_class"
"""The library's class of one family that a model is loaded with: its layers are that family's, whatever the
checkpoint is of (huggingface/transformers v5.3.0 modeling_utils.py, from_pretrained: ``cls(config)``).
"""
FURTHER_TRAININGS = "further_trainings"
"""The place of trainings that a script starts and that are not read."""
OF_OWN_SCRIPT = "that its script has"
"""How what a file of people's own leaves open begins: its script takes any key."""
BY_NAMES = f"{OF_OWN_SCRIPT}, whose own file this is: it is read by its names"
TOKENIZERS = "as long as the tokenizer says, where the model goes as far, and else 1024"
"""Of a length that no file says (huggingface/transformers v5.3.0
examples/pytorch/language-modeling/run_clm.py: block_size).
"""
NO_PROMPT = "not said: the sheet is of a prompt of one token, and longer ones need more"
ONE_PROCESS = "one_process"
"""Of a start by ``python`` alone: the Trainer then wraps its model so on several cards (transformers 5.23.0
trainer.py:2666-2672, training_args.py, _setup_devices).
"""
SEEN_CARDS = "visible cards"
"""The form of cards that one process sees, which is no launcher."""
CARD = "@card_bytes"
"""What a share of the card is of, in the place of its bytes."""
OF_RELEASE_5 = ", transformers 5's default; 4 loads float32"
"""How a dtype ends in words that the release decides which a script does not say."""
TRAINS_STATES = "trains_states"
"""That a script trains a model's states, and how many texts of a row the sheet is of."""

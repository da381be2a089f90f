"""Differences that no reading claims, or that one claims wrongly, with the reason."""

import re

import records

# The newest versions of engines.json, which compat means.
NEWEST = {"hf": "5.23.0", "vllm": "0.33.0"}

_LLAMA4 = "the engine reorders the weights of q and k when it loads them, and so turns halves"
_INDEXER = "its indexer, which chooses tokens, turns heads of its own by halves"
_QUARTER = "lists for whole heads: the engine's class turns a quarter and drops them"
_NO_LISTS = "lists for whole heads of partial ones: its converter writes no lists"
_MINISTRAL = "SGLang's class takes 16384 for max_position_embeddings; no released file has longrope"
_NULL = "rope_scaling null: Transformers 5 takes the yarn of the class, Transformers 4 no scaling"
_OLDER = "the record's file has keys of Transformers 4, which has no class of this model"
_NEWER = "Transformers 4 has no class of this model, and the code of its repository was not run"
_OWN_YARN = "without rope_scaling the class of Transformers 4 has a yarn of its own"
_FLAT = "Transformers 5 saves parameters by layer type, which the record's file has not"
_DROPPED = "lists for whole heads of partial ones: the engine does not read them"

# (engines, configs, reason): the first two are regular expressions.
MISSING = (
    ("vllm|sglang|llamacpp", "deepseek-v3.2", _INDEXER),
    ("vllm|sglang", "llama-4-scout", _LLAMA4),
    ("vllm|sglang", r"stablelm/longrope( \d+)?", _QUARTER),
    ("llamacpp", r"(glm4|nemotron|stablelm)/longrope( \d+)?", _NO_LISTS),
    ("sglang", r"ministral3/longrope( \d+)?", _MINISTRAL),
    ("sglang|llamacpp", "gpt_oss/default", _NULL),
    ("sglang", "ministral3/default", _NULL),
    ("llamacpp", "gemma-4-31b", _OLDER),
    ("sglang", "gpt_oss/.*" + records.NEWER, _OWN_YARN),
    ("sglang", "(internlm2-chat-7b|mimo-v2-flash|minimax-m2)" + records.NEWER, _NEWER),
    ("sglang", "ministral3/.*" + records.NEWER, _NEWER),
    ("sglang", "olmo-3-7b" + records.NEWER, _FLAT),
    ("sglang", r"glm4/longrope( \d+)?" + records.NEWER, _DROPPED),
)


def entry_of(engine, config):
    """The entry that explains what is missing for a config; or None."""
    names = (config, config.removesuffix(records.NEWER))
    for entry in MISSING:
        if re.fullmatch(entry[0], engine) and any(re.fullmatch(entry[1], name) for name in names):
            return entry
    return None

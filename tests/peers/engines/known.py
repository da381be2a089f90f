"""Differences that no reading claims, with the reason why none does."""

# The newest versions of engine_table.cc, which compat means.
NEWEST = {"hf": "5.23.0", "vllm": "0.33.0"}

_CHATGLM = "a warning says that code of its repository decides, and how it turns"
_LLAMA4 = "vLLM reorders the weights of q and k when it loads them, and so turns halves"
_INDEXER = "its indexer, which chooses tokens, turns heads of its own by halves"
_DEEPSEEK = "its class makes yarn of every rope_type; only yarn's reading is claimed, by design"

# By engine and config.
MISSING = {
    ("vllm", "deepseek_v2/llama3"): _DEEPSEEK,
    ("vllm", "deepseek_v3/llama3"): _DEEPSEEK,
    ("vllm", "glm-4-9b-chat"): _CHATGLM,
    ("vllm", "deepseek-v3.2"): _INDEXER,
    ("vllm", "llama-4-scout"): _LLAMA4,
}

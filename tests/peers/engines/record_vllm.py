"""Records every rotary table that vLLM's own code makes of config.json files, on a CPU.

Usage: record_vllm.py [--out=FILE] CONFIG...
The engine's class of each config is built with its first layers and without weights. The keys
that its rotary modules depend on are as in the file. compare.py reads what is written.
"""

import argparse
import contextlib
import copy
import importlib.metadata
import json
import os
import pathlib
import signal
import sys
import tempfile

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import records
import torch
from torch.overrides import TorchFunctionMode
from vllm.model_executor.layers import rotary_embedding

# Enough for every fourth and every sixth layer to differ. The last is one of these: Gemma 4 makes
# its last layer a full one.
LAYERS = 12
SECONDS = 600  # for one config
LONG = 32768  # a --max-model-len for which longrope takes the long list
MOST_ROWS = 1 << 18  # of a table that is made here; the later rows are not recorded
# The lengths that a module of transformers is asked for: its tables may follow the length.
LENGTHS = (1, 20001)
# Keys without rope that a class wants and that our file lacks.
FILLED = {
    "afmoe": {"score_func": "sigmoid", "route_norm": True, "route_scale": 1.0}
    | {"n_group": 1, "topk_group": 1, "mup_enabled": True}
}
_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


CALLED = {}  # what get_rope returned for this config, by id


class FewerRows(TorchFunctionMode):
    """Ends every torch.arange of one argument at MOST_ROWS."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.arange and len(args) == 1 and args[0] > MOST_ROWS:
            args = (MOST_ROWS,)
        return function(*args, **(kwargs or {}))


def accept_sparse_attention():
    """Gives sparse attention the backend of the dense one: no attention is computed here."""
    from vllm.platforms.cpu import CpuPlatform

    own = CpuPlatform.get_attn_backend_cls.__func__

    def get_attn_backend_cls(cls, *args, **kwargs):
        key = "attn_selector_config"
        if key in kwargs:
            kwargs[key] = kwargs[key]._replace(use_sparse=False)
        return own(cls, *args, **kwargs)

    CpuPlatform.get_attn_backend_cls = classmethod(get_attn_backend_cls)


def know(model_type):
    """Lets transformers load a config whose class its repository has: a class of its keys."""
    import transformers

    def with_parts(self, **keys):
        parts = {k: v for k, v in keys.items() if k.endswith("_config") and isinstance(v, dict)}
        keys |= {k: transformers.PretrainedConfig(**v) for k, v in parts.items()}
        transformers.PretrainedConfig.__init__(self, **keys)

    if model_type and model_type not in transformers.CONFIG_MAPPING:
        members = {"model_type": model_type, "__init__": with_parts}
        kind = type("FileConfig", (transformers.PretrainedConfig,), members)
        transformers.AutoConfig.register(model_type, kind)


def make_tables_on_the_cpu():
    """Makes get_rope ignore the meta device. REQUIRES: no model of vLLM is imported yet."""
    own = rotary_embedding.get_rope

    def get_rope(*args, **kwargs):
        with torch.device("cpu"), FewerRows():
            made = own(*args, **kwargs)
        CALLED[id(made)] = made
        return made

    rotary_embedding.get_rope = get_rope


def inspect_in_this_process():
    """Spares the process that vLLM starts for each architecture."""
    from vllm.model_executor.models import registry

    registry._LazyRegisteredModel.inspect_model_cls = lambda lazy: (
        registry._ModelInfo.from_model_cls(lazy.load_model_cls())
    )


def shrink(config):
    """The config with its first layers only."""
    config = copy.deepcopy(config)
    for part in (config, *(v for v in config.values() if isinstance(v, dict))):
        count = next((part[key] for key in _COUNTS if key in part), None)
        if not isinstance(count, int) or count <= LAYERS:
            continue
        for key, value in part.items():
            if key in _COUNTS:
                part[key] = LAYERS
            elif isinstance(value, list) and len(value) == count:
                part[key] = value[:LAYERS]
            elif key == "full_attn_idxs":
                part[key] = [i for i in value if i < LAYERS]
    for key, value in FILLED.get(config.get("model_type"), {}).items():
        config.setdefault(key, value)
    config.pop("quantization_config", None)
    config.pop("auto_map", None)
    return config


def engine_config(folder, length):
    from vllm.engine.arg_utils import EngineArgs

    args = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="float32",
        max_model_len=length,
        enforce_eager=True,
        limit_mm_per_prompt={"image": 0, "video": 0, "audio": 0},
    )
    return args.create_engine_config()


def start_distributed(config):
    """One process, which every parallel layer of vLLM asks for."""
    from vllm import distributed
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            path = tempfile.mktemp()
            distributed.init_distributed_environment(1, 0, "file://" + path, 0, "gloo")
        distributed.destroy_model_parallel()  # a model with experts has a group more
        distributed.ensure_model_parallel_initialized(1, 1)


def build(config, length):
    """The engine's model of a config.json, and the length that it is started with."""
    from vllm.model_executor.model_loader.utils import initialize_model

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "config.json").write_text(json.dumps(shrink(config)))
        know(config.get("model_type"))
        made = engine_config(path, length)
        start_distributed(made)
        from vllm.config import set_current_vllm_config

        with torch.device("meta"), set_current_vllm_config(made):
            model = initialize_model(vllm_config=made)
        return model, made.model_config.max_model_len


def table_of(module):
    """The record of a rotary module of vLLM, which keeps a table of cos and sin."""
    table = getattr(module, "cos_sin_cache", None)
    if table is None:
        table = getattr(module, "long_short_cos_sin_cache")
    if table.is_meta:
        with torch.device("cpu"), FewerRows():
            table = module._compute_cos_sin_cache()
    long_list = getattr(module, "use_long_rope", False)
    first = module.original_max_position_embeddings if long_list else 0
    table = table[first:].float()
    if table.shape[-1] != module.rotary_dim:
        raise NotImplementedError(f"{type(module).__name__} has a table of another kind")
    cos, sin = table.double().chunk(2, -1)
    return {
        "rotary_dim": module.rotary_dim,
        "head_size": module.head_size,
        "neox": bool(getattr(module, "is_neox_style", True)),  # Phi3LongRoPE... has no other
        "dtype": str(table.dtype).removeprefix("torch."),
        "factor": records.shortest(torch.hypot(cos[0], sin[0]).max().item()),
        "rows": len(table),
        "inv_freq": records.floats(frequencies_of(module, cos[:2], sin[:2])),
        **sections_of(module),
        "sha256": records.digest(table[p].numpy() for p in records.POSITIONS if p < len(table)),
    }


def sections_of(module):
    section = getattr(module, "mrope_section", None)
    return {"mrope_section": list(section)} if section else {}


def frequencies_of(module, cos, sin):
    """The frequencies of the module's own computation, which has to explain its row 1."""
    row = torch.atan2(sin[1], cos[1])
    for argument in ("base", "scaling_factor", "short_factor", "long_factor"):
        with contextlib.suppress(Exception), torch.device("cpu"):
            own = module._compute_inv_freq(getattr(module, argument)).double()
            if torch.allclose(own, row, rtol=1e-5, atol=1e-7):
                return own.tolist()
    return row.tolist()


def hf_records(module):
    """The records of a module of transformers, by layer type and length."""
    types = getattr(module, "layer_types", None)
    known = [t for t in dict.fromkeys(types or []) if hasattr(module, f"{t}_inv_freq")] or [None]
    config = module.config
    for layer_type in known:
        for length in LENGTHS:
            keywords = {"layer_type": layer_type} if layer_type else {}
            with torch.device("cpu"):
                fresh = type(module)(config)
                positions = torch.tensor([[p for p in records.POSITIONS if p < length]])
                cos, sin = fresh(torch.zeros(1), positions, **keywords)
            prefix = f"{layer_type}_" if layer_type else ""
            inv_freq = getattr(fresh, prefix + "inv_freq")
            yield {
                "rotary_dim": 2 * len(inv_freq),
                "dtype": "float32",
                "factor": records.shortest(float(getattr(fresh, prefix + "attention_scaling"))),
                "inv_freq": records.floats(inv_freq.double().tolist()),
                "length": length,
                **({"layer_type": layer_type} if layer_type else {}),
                "sha256": records.digest(torch.cat((cos, sin), -1)[0].float().numpy()),
            }


def is_table(module):
    return hasattr(module, "cos_sin_cache") or hasattr(module, "long_short_cos_sin_cache")


def is_of_transformers(module):
    name = type(module)
    return name.__module__.startswith("transformers.") and "RotaryEmbedding" in name.__name__


def tables_made(model):
    """A record for each rotary module, with the prefixes of the layers that have it."""
    prefixes = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if is_table(module) or is_of_transformers(module):
            prefixes.setdefault(id(module), (module, []))[1].append(name)
    for module, names in prefixes.values():
        common = {"class": type(module).__name__, "at": records.joined(names)}
        if is_of_transformers(module):
            yield from ({**common, **record} for record in hf_records(module))
        else:
            yield {**common, **table_of(module)}


def reason_of(error):
    """The first line that says what is wrong, without folders."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("For further information")]
    text = next((x for x in lines if "rror" in x and "1 validation" not in x), (lines or [""])[0])
    text = text.split(" [type=")[0]
    return f"{type(error).__name__}: {records.without_folders(text)}"[:200]


def called_before(error):
    """What is known of a class that could not be built: what it asked get_rope for until then."""
    if not CALLED:
        return {"refused": reason_of(error)}
    modules = [{"class": type(m).__name__, "at": "", **table_of(m)} for m in CALLED.values()]
    return {"incomplete": reason_of(error), "max_model_len": max(LENGTHS), "modules": modules}


def record(config, length=None):
    rotary_embedding._ROPE_DICT.clear()
    CALLED.clear()
    signal.alarm(SECONDS)
    try:
        model, length = build(config, length)
        return {
            "class": type(model).__name__,
            "max_model_len": length,
            "modules": list(tables_made(model)),
        }
    except (Exception, SystemExit) as error:
        return called_before(error)
    finally:
        signal.alarm(0)


def lengths_of(config):
    """The --max-model-len of each run: none, and for longrope one above the original length."""
    return (None, LONG) if "longrope" in json.dumps(config) else (None,)


def late(*_):
    raise TimeoutError(f"took more than {SECONDS} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configs", nargs="+", type=pathlib.Path)
    version = importlib.metadata.version("vllm-cpu")
    parser.add_argument("--out", type=pathlib.Path, default=records.DATA / f"vllm-{version}.json")
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, late)
    make_tables_on_the_cpu()
    inspect_in_this_process()
    accept_sparse_attention()
    writer = records.Writer("vllm", version)
    writer.notes["torch"] = torch.__version__
    writer.notes["transformers"] = importlib.metadata.version("transformers")
    for path in arguments.configs:
        for name, config in records.configs_of(path):
            for length in lengths_of(config):
                made = record(config, length)
                writer.add(name if length is None else f"{name} {length}", made)
                print(name, made.get("refused") or f"{len(made['modules'])} modules", flush=True)
    writer.write(arguments.out)


if __name__ == "__main__":
    sys.exit(main())

"""What the recorders of all engines do: they run one config after the other, and write records.

An engine's class of each config is built with its first layers and without weights. The keys that
its rotary modules depend on are as in the file.
"""

import argparse
import copy
import itertools
import json
import os
import pathlib
import re
import signal
import tempfile
from importlib import metadata

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported

import records
import tables

# Enough for every fourth and every sixth layer to differ. The last is one of these: Gemma 4 makes
# its last layer a full one.
LAYERS = 12
SECONDS = 600  # for one config
LONG = 32768  # a context for which longrope takes the long list
# Keys without rope that a class wants and that our file lacks.
FILLED = {
    "afmoe": {"score_func": "sigmoid", "route_norm": True, "route_scale": 1.0}
    | {"n_group": 1, "topk_group": 1, "mup_enabled": True},
    "exaone4": {"sliding_window_pattern": "LLLG"},
}
_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


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


def know(model_type):
    """Lets transformers load a config whose class its repository has: a class of its keys."""
    import transformers

    def with_parts(self, **keys):
        parts = {k: v for k, v in keys.items() if k.endswith("_config") and isinstance(v, dict)}
        keys |= {k: transformers.PretrainedConfig(**v) for k, v in parts.items()}
        transformers.PretrainedConfig.__init__(self, **keys)
        if "rope_theta" in keys:  # an attribute of such classes; PretrainedConfig moves it
            self.rope_theta = keys["rope_theta"]

    if model_type and model_type not in transformers.CONFIG_MAPPING:
        members = {"model_type": model_type, "__init__": with_parts}
        kind = type("FileConfig", (transformers.PretrainedConfig,), members)
        transformers.AutoConfig.register(model_type, kind)


def rotary_modules(model):
    """(module, names) of each rotary module of a text model, with its names in the model."""
    found = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if tables.is_rotary(module) and not re.search("vision|visual|audio", name.lower()):
            found.setdefault(id(module), (module, []))[1].append(name)
    return list(found.values())


def reason_of(error):
    """The first line that says what is wrong, without folders."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("For further information")]
    text = next((x for x in lines if "rror" in x and "1 validation" not in x), (lines or [""])[0])
    text = text.split(" [type=")[0]
    return f"{type(error).__name__}: {records.without_folders(text)}"[:200]


def called_before(error, made):
    """What is known of a class that could not be built: what get_rope returned until then."""
    if not made:
        return {"refused": reason_of(error)}
    modules = [
        {"class": type(module).__name__, "at": "", **record}
        for module in made.values()
        for record in tables.records_of(module)
    ]
    longest = max(tables.LENGTHS)
    return {"incomplete": reason_of(error), "max_model_len": longest, "modules": modules}


def late(*_):
    raise TimeoutError(f"took more than {SECONDS} s")


class Recorder:
    """Base class of an engine's: `build` is the engine's own."""

    engine = ""

    def __init__(self):
        self.made = {}  # what get_rope returned for this config, by id

    def version(self):
        raise NotImplementedError

    def notes(self):
        """The versions of other packages that the tables depend on."""
        raise NotImplementedError

    def build(self, folder, length):
        """(model, context) of the config.json in a folder; length: the context, or None."""
        raise NotImplementedError

    def modules_of(self, model):
        """(module, names) of the modules that the model calls."""
        return rotary_modules(model)

    def records_of(self, module):
        """What a record says of a module: one table, or one for each length."""
        return tables.records_of(module)

    def lengths_of(self, config):
        """The context of each run: none, and for longrope one above the original length."""
        return (None, LONG) if "longrope" in json.dumps(config) else (None,)

    def spellings(self):
        """The ends of the names of records, and what makes each file of a config: as its
        repository has it; for transformers 4 also in keys that it knows, and in those that 5
        saves."""
        if not metadata.version("transformers").startswith("4."):
            return {"": lambda config: config}
        return {"": records.in_older_keys, records.NEWER: records.in_newer_keys}

    def built(self, config, length=None):
        """(model, context) of a config with its first layers; length: the context, or None."""
        self.made.clear()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "config.json").write_text(json.dumps(self.file_of(config)))
            return self.build(path, length)

    def file_of(self, config):
        """The content of config.json: the first layers."""
        know(config.get("model_type"))
        return shrink(config)

    def record(self, config, length=None):
        signal.alarm(SECONDS)
        try:
            model, length = self.built(config, length)
            return {
                "class": type(model).__name__,
                "max_model_len": length,
                "modules": [
                    {"class": type(module).__name__, "at": records.joined(names), **record}
                    for module, names in self.modules_of(model)
                    for record in self.records_of(module)
                ],
            }
        except (Exception, SystemExit) as error:
            return called_before(error, self.made)
        finally:
            signal.alarm(0)

    def main(self):
        parser = argparse.ArgumentParser(description=f"Records what {self.engine} makes.")
        parser.add_argument("--only", default="", metavar="REGEX", help="configs, by name")
        parser.add_argument("--out", type=pathlib.Path, default=records.DATA, metavar="FOLDER")
        arguments = parser.parse_args()
        signal.signal(signal.SIGALRM, late)
        for is_set in (False, True):
            paths = [path for path in records.inputs() if records.is_set(path) == is_set]
            name = f"{self.engine}-{self.version()}{'-stress' if is_set else ''}.json"
            self._update(arguments.out / name, paths, arguments.only)

    def _update(self, out, paths, only):
        """Records the chosen configs; those that the file has of others stay."""
        configs = records.load(out)["configs"] if out.exists() else {}
        inputs = {name: config for path in paths for name, config in records.configs_of(path)}
        for (name, config), (end, spelt) in itertools.product(
            inputs.items(), self.spellings().items()
        ):
            for length in self.lengths_of(config) if re.search(only, name) else ():
                made = self.record(spelt(config), length)
                key = name if length is None else f"{name} {length}"
                configs[key + end] = made
                words = made.get("refused") or f"{len(made['modules'])} modules"
                print(key + end, words, flush=True)
        order = list(inputs)
        names = sorted(configs, key=lambda name: order.index(name.split()[0]))
        in_order = {name: configs[name] for name in names}
        records.write(out, self.engine, self.version(), self.notes(), in_order)

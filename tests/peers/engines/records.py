"""The files of recorded rotary tables: one for each engine and version, one line a module.

A file is JSON: engine, version, notes, `frequencies` (shared lists of float32, by name) and
`configs`. A config has the modules that the engine's class made, or why the engine made none.
"""

import copy
import hashlib
import json
import pathlib
import re
import struct

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE / "data"
CONFIGS = HERE.parent.parent / "conformance" / "configs"
POSITIONS = (0, 1, 7, 100, 1000, 4000, 20000)  # the rows of which a record has the sha256


def to_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def shortest(value):
    """The shortest decimal that is the same float32."""
    single = to_float32(value)
    for digits in range(1, 10):
        text = float(f"{single:.{digits}g}")
        if to_float32(text) == single:
            return int(text) if text == int(text) and abs(text) < 1e6 else text
    return single


def floats(values):
    return [shortest(value) for value in values]


def digest(rows):
    """The sha256 of float32 rows, in the order given."""
    sha = hashlib.sha256()
    for row in rows:
        sha.update(row.astype("<f4").tobytes())
    return sha.hexdigest()


def without_folders(text):
    return re.sub(r"(?<![\w.])/[\w./+-]*/", "", text)


def joined(names):
    """The names, with numbers that differ as one list: layers.0,1,3.attn."""
    groups = {}
    for name in names:
        number = re.search(r"\.(\d+)\.", name)
        key = name if number is None else name[: number.start(1)] + "#" + name[number.end(1) :]
        groups.setdefault(key, []).append(number.group(1) if number else "")
    return " ".join(key.replace("#", ",".join(n)) for key, n in groups.items())


NEWER = " in keys of transformers 5"  # the end of the name of such a record


def in_older_keys(config):
    """The config with the keys of transformers 4, which has one rope_type for all layers."""
    config = {k: in_older_keys(v) if k == "text_config" else v for k, v in config.items()}
    rope = dict(config.pop("rope_parameters", None) or {})
    if "full_attention" in rope:  # Gemma 3's
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            config[key] = rope.pop(key)
    if rope:
        config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return config


def in_newer_keys(config):
    """The config as transformers 5 saves it: one rope_parameters, with the base."""
    config = {k: in_newer_keys(v) if k == "text_config" else v for k, v in config.items()}
    if config.get("rope_parameters") or not config.keys() & {"rope_theta", "rope_scaling"}:
        return config
    rope = dict(config.pop("rope_scaling", None) or {})
    rope["rope_type"] = rope.pop("type", rope.get("rope_type", "default"))
    for key in ("rope_theta", "partial_rotary_factor"):
        if config.get(key) is not None:
            rope[key] = config.pop(key)
    local = config.pop("rope_local_base_freq", None)
    if local is not None:
        local = {"rope_type": "default", "rope_theta": local}
        rope = {"full_attention": rope, "sliding_attention": local}
    return {**config, "rope_parameters": rope}


def spelt(config, name, transformers):
    """The config of a record by its name, as the engine saw it: that of `transformers`."""
    if not transformers.startswith("4."):
        return config
    return in_newer_keys(config) if name.endswith(NEWER) else in_older_keys(config)


def is_set(path):
    """Whether a file has many configs, by name."""
    return path.name.endswith(".set.json")


def inputs():
    """The files of configs that engines are recorded with."""
    return [*sorted(CONFIGS.glob("*.json")), *sorted(DATA.glob("*.set.json"))]


def configs_of(path):
    """(name, config) of each config in a file: one config.json, or a set of named ones."""
    content = json.loads(path.read_text())
    if is_set(path):
        yield from content.items()
    else:
        yield path.stem, content


def load(path):
    """The content of a file of records, with the frequencies where their names were."""
    data = json.loads(path.read_text())
    for made in data["configs"].values():
        for module in made.get("modules", ()):
            module["inv_freq"] = data["frequencies"][module["inv_freq"]]
    return data


def write(path, engine, version, notes, configs):
    """Writes the records of configs, by name, with each list of frequencies once."""
    names = {}
    configs = copy.deepcopy(configs)
    for made in configs.values():
        for module in made.get("modules", ()):
            key = json.dumps(module["inv_freq"])
            module["inv_freq"] = names.setdefault(key, f"f{len(names)}")
    lists = ",\n".join(f'"{name}": {text}' for text, name in names.items())
    lines = ",\n".join(map(_text_of, configs, configs.values()))
    head = json.dumps({"engine": engine, "version": version, "notes": notes})[:-1]
    path.write_text(f'{head},\n"frequencies": {{\n{lists}\n}},\n"configs": {{\n{lines}\n}}}}\n')


def _text_of(name, made):
    rest = {key: value for key, value in made.items() if key != "modules"}
    text = f"{json.dumps(name)}: {json.dumps(rest)[:-1]}"
    if "modules" not in made:
        return text + "}"
    lines = "".join(f"\n  {json.dumps(m)}," for m in made["modules"])
    return f'{text}, "modules": [{lines.removesuffix(",")}]}}'

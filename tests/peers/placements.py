"""Compares where the service and transformers' config classes find rope parameters in a file.

Usage: placements.py [--only=REGEX] [-v]
Every text config class gets every form of placements.json as a config.json: a block, two blocks, a
key beside a block, null, empty, keys of another family. What the class makes of it (no torch is
needed) is compared with what the service reads, for each layer type. A difference that no warning
of lint names is printed. Before them comes a table: the config classes of rotary classes, with or
without text, that model_types.json lacks, or whose defaults are others there. Exit status: 1 if the
table has a line, or if there is a difference.
"""

import argparse
import collections
import copy
import functools
import inspect
import json
import logging
import pathlib
import re
import sys
import warnings

warnings.filterwarnings("ignore")

import ropeserve
import transformers
from ropeserve.client import own_engine
from ropeserve.errors import RopeError
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

logging.getLogger("transformers").setLevel(logging.CRITICAL)
_MODELS = pathlib.Path(transformers.__file__).parent / "models"
_ENTRIES = pathlib.Path(__file__).parents[2] / "kernels" / "config" / "model_types.json"
_ROTARY = re.compile(r"(?ms)^class (?!\w*Attention)\w*(?:Rotary|Rope|RoPE)\w*\(.*?(?=^\S|\Z)")
_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")

# By name, the keys of the file; "around": beside text_config.
FORMS = json.loads(pathlib.Path(__file__).with_name("placements.json").read_text())


@functools.cache
def code_of(config_cls):
    """The modeling files beside a config class, or the one of another folder that has its model."""
    folder = pathlib.Path(inspect.getfile(config_cls)).parent
    texts = [path.read_text() for path in sorted(folder.glob("modeling_*.py"))]
    if not texts and config_cls.model_type in MODEL_MAPPING_NAMES:
        head = f"\nclass {MODEL_MAPPING_NAMES[config_cls.model_type]}("
        texts = [text for text in modeling_files().values() if head in text]
    return "\n".join(texts)


@functools.cache
def modeling_files():
    return {path: path.read_text() for path in sorted(_MODELS.glob("*/modeling_*.py"))}


def by_layer_type(config_cls):
    """Whether the rotary class looks parameters up by layer type."""
    usual = config_cls().rope_parameters
    if usual:
        return all(value is None or isinstance(value, dict) for value in usual.values())
    return re.search(r"rope_parameters\[(?!\")", code_of(config_cls)) is not None


def text_classes():
    """(type, config class, type of the composite or None) of every text config with rope."""
    alone, around = {}, {}
    for name in sorted(CONFIG_MAPPING):
        try:
            config = CONFIG_MAPPING[name]()
            text = config.get_text_config()
        except Exception:  # some need another config
            continue
        if not hasattr(text, "rope_parameters") or text.default_rope_type != "default":
            continue
        if not re.search("otary", code_of(type(text))):
            continue
        if text is config:
            alone[text.model_type] = type(text)
        elif isinstance(getattr(config, "text_config", None), type(text)):
            around.setdefault(text.model_type, name)
    return [(name, cls, around.get(name)) for name, cls in sorted(alone.items())]


def rotary_configs():
    """{type: config class} of the classes that the rotary classes of modeling files name."""
    found = {}
    for text in modeling_files().values():
        for rotary in _ROTARY.findall(text):
            name = re.search(r"\bconfig: \"?(\w+)", rotary)
            cls = name and getattr(transformers, name[1], None)
            if getattr(cls, "model_type", ""):
                found[cls.model_type] = cls
    return found


def news_of(name, config_cls, entries):
    """What the entry of a type does not say as its config class does; "": nothing."""
    names = (name, f"{name}_text", name.removesuffix("_text"))
    entry = next((entries[each] for each in names if each in entries), None)
    if entry is None:
        return "no entry"
    return ", ".join(
        f"{key} {value}, in the class {getattr(config_cls, key)}"
        for key, value in entry.get("defaults", {}).items()
        if "rope_" not in key and getattr(config_cls, key, None) not in (None, value))


def file_of(name, composite, form):
    keys = copy.deepcopy(form)
    around = keys.pop("around", None)
    text = {"model_type": name, "max_position_embeddings": 131072, **keys}
    if around is None:
        return {"architectures": ["XForCausalLM"], **text}
    if composite is None:
        return None
    return {"architectures": ["XForConditionalGeneration"], "model_type": composite,
            "text_config": text, **around}


def head_of(config):
    """The channels of a head; 0: the class does not say, or layers differ."""
    if getattr(config, "is_heterogeneous", False):
        return 0
    sizes = [getattr(config, key, None) for key in ("hidden_size", "num_attention_heads")]
    return getattr(config, "head_dim", None) or (sizes[0] // sizes[1] if all(sizes) else 0)


def channels_of(config, parameters):
    """The fraction of the head that turns; the code may not read it."""
    fraction = parameters.get("partial_rotary_factor", 1.0)
    if fraction is None:
        return 1.0
    if parameters["rope_type"] == "default":
        own = re.findall(r"def compute_default_rope_parameters.*?return inv_freq",
                         code_of(type(config)), re.DOTALL)
        if own and not any("partial_rotary_factor" in text for text in own):
            return 1.0
    return fraction


class Fails(Exception):
    """The class refuses the file, or leaves parameters that its rotary class cannot use."""


def made_by_class(name, file):
    """{layer type: (rope_type, base, factor, original length, channels)} by the config class."""
    try:
        config = CONFIG_MAPPING[file["model_type"]].from_dict(copy.deepcopy(file))
        if hasattr(config, "text_config"):
            config = config.text_config
    except Exception as error:
        raise Fails(f"{type(error).__name__}: {str(error).splitlines()[0][:80]}") from error
    parameters = config.rope_parameters
    if not isinstance(parameters, dict):
        raise Fails(f"rope_parameters {parameters}")
    nested = by_layer_type(type(config))
    labels = getattr(config, "_rope_type_labels", None) or getattr(config, "layer_types", None)
    blocks = {"": parameters}
    if nested:
        blocks = {label: parameters.get(label) for label in dict.fromkeys(labels or ())}
    made = {}
    for label, block in blocks.items():
        if block is None and nested:  # most classes fail, some have layers without positions
            continue
        if not isinstance(block, dict):
            raise Fails(f"{label} {block}")
        if block.get("rope_type") not in _TYPES:
            raise Fails(f"rope_type {block.get('rope_type')}")
        if not isinstance(block.get("rope_theta"), (int, float)):
            raise Fails(f"rope_theta {block.get('rope_theta')}")
        scaled = block["rope_type"] != "default"
        ramps = block["rope_type"] in ("yarn", "llama3", "longrope")
        made[label] = (
            block["rope_type"], float(block["rope_theta"]),
            float(block.get("factor") or 1) if scaled else 1.0,
            block.get("original_max_position_embeddings") if ramps else None,
            int(head_of(config) * channels_of(config, block)) // 2 * 2)
    if not made:
        raise Fails("no parameters")
    return made


def made_by_service(text):
    """The same."""
    made = {}
    for name in ropeserve._core.layer_types(text, "") or [None]:
        told = own_engine().describe(config=text, layer_type=name)
        if not told.rotates:
            continue
        config = told.config
        scaled = config["rope_type"] != "default"
        ramps = config["rope_type"] in ("yarn", "llama3", "longrope")
        length = config.get("original_max_position_embeddings",
                            config.get("max_position_embeddings"))
        made[told.layer_type] = (
            config["rope_type"], float(config["rope_theta"]),
            float(config.get("factor") or 1) if scaled else 1.0,
            length if ramps else None, config["rotary_dim"])
    return made


def differences(theirs, ours, comparable):
    """What differs; the channels of the layer types that are comparable."""
    for label, want in theirs.items() if ours else ():
        got = ours.get(label) or (next(iter(ours.values())) if len(ours) == 1 else None)
        if got is None:
            yield f"{label}: not read here"
            continue
        names = ("rope_type", "rope_theta", "factor", "original length", "channels")
        for key, a, b in zip(names, want, got, strict=True):
            if a != b and (key != "channels" or label in comparable):
                yield f"{label} {key} {b} here, {a} there"


def warned(text):
    """What lint says of keys that are not used, or where Hugging Face fails."""
    return [each for each in ropeserve.lint(text, engine="hf")
            if each.weight != "note" or each.rule == "unknown-key"]


def judge(name, composite, form):
    """(verdict, words) of one file; None: the form does not apply."""
    file = file_of(name, composite, FORMS[form])
    if file is None:
        return None
    text = json.dumps(file)
    try:
        theirs, fails = made_by_class(name, file), None
    except Fails as error:
        theirs, fails = {}, str(error)
    try:
        ours = made_by_service(text)
    except RopeError as error:
        return ("both refuse", "") if fails else ("refused here", str(error))
    if not ours:
        return "no layer rotates", ""
    found = ([f"the class fails: {fails}"] if fails
             else list(differences(theirs, ours, comparable(name))))
    if not found:
        return "same", ""
    said = warned(text)
    rules = sorted({each.rule for each in said})
    return ("said: " + ", ".join(rules) if said else "silent"), "; ".join(found)


@functools.cache
def comparable(name):
    """The layer types whose channels are the class's head_dim where nothing but a base is stated:
    latent attention has channels of its own."""
    text = {"model_type": name, "architectures": ["XForCausalLM"], "rope_theta": 345000.0}
    try:
        theirs, ours = made_by_class(name, text), made_by_service(json.dumps(text))
    except (Fails, RopeError):
        return set()
    return {label for label in theirs if label in ours and theirs[label][4] == ours[label][4]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="model types, by name")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every difference")
    arguments = parser.parse_args()
    counts, files = collections.Counter(), 0
    classes = [each for each in text_classes() if re.search(arguments.only, each[0])]
    known = rotary_configs() | {name: cls for name, cls, _ in classes}
    entries, news = json.loads(_ENTRIES.read_text()), 0
    for name, cls in sorted(known.items()):
        said = news_of(name, cls, entries) if re.search(arguments.only, name) else ""
        if said and not cls.sub_configs:  # a composite has the entries of its parts
            news += 1
            print(f"{name:40} {cls.__name__:40} {said}")
    for name, _, composite in classes:
        for form in FORMS:
            judged = judge(name, composite, form)
            if judged is None:
                continue
            files += 1
            verdict, words = judged
            counts[verdict] += 1
            wanted = arguments.verbose and verdict not in ("same", "both refuse")
            if verdict == "silent" or wanted:
                print(f"{name}: {form}: {verdict}: {words}", flush=True)
    print(f"{len(classes)} classes of transformers {transformers.__version__}, {len(FORMS)} forms, "
          f"{files} files")
    for verdict, count in counts.most_common():
        print(f"{count:6} {verdict}")
    return int(counts["silent"] + news > 0)


if __name__ == "__main__":
    sys.exit(main())

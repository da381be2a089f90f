"""Records the scale of attention that an engine's own modules have of small configs, on a CPU.

Usage: record_scale.py hf|vllm [--only=REGEX] [--out=FOLDER]
REGEX: cases, by name; default: all. scale_cases.json has them: `configs`; `adapted`, configs as
vLLM's adapter makes them of Mistral's params.json; `families`, of configs with multi-head latent
attention without their rope, each of which gets rope_parameters of `settings`; and `params`,
params.json files. `kept` and `params_kept` are the keys of a config that its row has.
Each line of the file is a config with what its modules have: the softmax's scale times the root of
a head's size, the factor of cos and sin, and the temperature of q by position, where there is one.
A config that the engine refuses has no line.
With vllm, a second file has the config that vLLM's adapter makes of each params.json.
"""

import argparse
import copy
import importlib
import inspect
import json
import pathlib
import re
import sys
from typing import Any, NamedTuple
from unittest import mock

import recorder
import records
import tables
import torch

POSITIONS = (0, 8191, 8192, 20000, 100000)  # of the temperatures
NAMES = {"hf": "transformers", "vllm": "vllm"}  # of the files
_DATA = json.loads((records.HERE / "scale_cases.json").read_text())
KEPT, PARAMS_KEPT = _DATA["kept"], _DATA["params_kept"]


class Scale(NamedTuple):
    """What one layer has."""

    softmax: float  # times the root of a head's size
    factor: float | None  # of cos and sin; None: the layer does not rotate
    temperature: Any  # of q, by position


def head_of(attention):
    return getattr(attention, "qk_head_dim", None) or attention.head_dim


def by_position(values):
    return {str(position): float(value) for position, value in zip(POSITIONS, values)}


# --- cases ---


def _mla_cases(engine):
    for family, base in _DATA["families"].items():
        if engine == "vllm" and family == "mistral_large4":  # it has no class of it
            continue
        # vLLM: the class of deepseek_v3 is shared by most of the other families.
        whole = engine == "hf" or family == "deepseek_v3"
        for setting, parameters in _DATA["settings"].items():
            if not whole and setting not in _DATA["few"]:
                continue
            more = {"llama_4_scaling_beta": 0.1} if family == "mistral4" else {}  # or it fails
            yield f"{family} {setting}", base | {"rope_parameters": parameters | more}
        if whole:  # the spelling of DeepSeek's own files
            yield f"{family} legacy yarn 1 1", base | _DATA["legacy"]


def cases_of(engine):
    """(name, config) of each case, for hf or vllm."""
    yield from _DATA["configs"].items()
    if engine == "vllm":
        yield from _DATA["adapted"].items()
    yield from _mla_cases(engine)


# --- transformers ---


def class_of(module, fits):
    """The first class of a file of transformers that a function of its name and text accepts."""
    own = [k for k in vars(module).values() if inspect.isclass(k) and "Vision" not in k.__name__]
    own = [k for k in own if k.__module__ == module.__name__]
    return next(k for k in own if fits(k.__name__, inspect.getsource(k)))


def is_attention(name, text):
    return name.endswith(("Attention", "MLA")) and "self.scaling =" in text and "layer_idx" in text


def factor_of(rotary, size):
    """The measured length of (cos, sin), which has to be the module's own attention_scaling."""
    made = rotary(torch.zeros(1, 3, size), torch.tensor([[0, 1, 7]]))
    made = made.abs() if torch.is_tensor(made) else torch.hypot(made[0].double(), made[1].double())
    own = float(rotary.attention_scaling)
    assert torch.allclose(made.double(), torch.tensor(own, dtype=torch.double), rtol=1e-5), own
    return own


class Past:
    """A cache that has seen as many tokens as the position says."""

    def __init__(self, position):
        self.position = position

    def get_seq_length(self, *_):
        return self.position

    def update(self, key, value, *_, **__):
        return key, value


def query_of(attention, config, rotary, position):
    """The q of one token that the module hands to its attention function."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    seen = []

    def capture(module, query, key, value, mask, **_):
        seen.append(query.double())
        return value.transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS["capture"] = capture
    config._attn_implementation = "capture"
    hidden = torch.rand(1, 1, config.hidden_size, generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([[position]])
    call = {"hidden_states": hidden, "position_embeddings": rotary(hidden, ids)}
    try:
        attention(**call, attention_mask=None, position_ids=ids, past_key_values=Past(position))
    except RuntimeError:  # after the attention function: v may have another size than q
        if not seen:
            raise
    return seen[0]


def without_temperature(module, attention):
    """What takes the temperature of q away for a while; None: there is no temperature."""
    name = "get_llama_4_attn_scale"
    if hasattr(module, name):
        ones = lambda ids, *_: torch.ones(1, 1, ids.shape[-1], 1)  # noqa: E731
        return mock.patch.object(module, name, ones)
    name = "attn_temperature_tuning"
    return mock.patch.object(attention, name, False) if hasattr(attention, name) else None


def hf_temperature(module, attention, config, rotary):
    """How many times longer q is than without the temperature, by position."""
    off = without_temperature(module, attention)
    if off is None:
        return None
    ratios = []
    for position in POSITIONS:
        query = query_of(attention, config, rotary, position)
        with off:
            plain = query_of(attention, config, rotary, position)
        ratios.append(query.norm() / plain.norm())
    return by_position(ratios)


class Hf:
    def __init__(self):
        import record_hf

        self.recorder = record_hf.Transformers()

    def scales(self, config, layers):
        import transformers

        known = transformers.models.auto.configuration_auto
        name = known.model_type_to_module_name(config["model_type"])
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        torch.manual_seed(0)
        made = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
        rotary = class_of(module, lambda name, _: name.endswith("RotaryEmbedding"))(config=made)
        for layer in layers:
            attention = class_of(module, is_attention)(made, layer)
            weights = (p for n, p in attention.named_parameters() if "q" in n)
            torch.nn.init.normal_(next(weights))
            softmax = float(attention.scaling) / head_of(attention) ** -0.5
            temperature = hf_temperature(module, attention, made, rotary)
            yield Scale(softmax, factor_of(rotary, head_of(attention)), temperature)


# --- vLLM ---


def accept_indices():
    """Sparse attention got the backend of the dense one, which does not know all its arguments."""
    from vllm.model_executor.layers.attention.mla_attention import MLACommonImpl

    own = MLACommonImpl.__init__
    known = inspect.signature(own).parameters

    def with_known(self, *args, **keywords):
        own(self, *args, **{k: v for k, v in keywords.items() if k in known})

    MLACommonImpl.__init__ = with_known


def attention_of(model, layer):
    """The module of a layer that scales: with a rotary module, or None in its place."""
    for name, module in getattr(model, "model", model).named_modules():
        if name.startswith(f"layers.{layer}.") and hasattr(module, "rotary_emb"):
            if hasattr(module, "scaling") or hasattr(module, "scale"):
                return module
    raise NotImplementedError(f"layer {layer} has no attention that is known here")


def vllm_temperature(model, attention):
    model = getattr(model, "model", model)
    given = getattr(getattr(model, "config", None), "llama_4_scaling", None)
    of_file = getattr(sys.modules[type(model).__module__], "_get_llama_4_scaling", None)
    with torch.device("cpu"):
        positions = torch.tensor(POSITIONS)
        if getattr(attention, "do_llama_4_scaling", False):
            made = attention._get_llama_4_attn_scale(positions)
        elif getattr(attention, "attn_temperature_tuning", False) and attention.nope:
            made = attention._get_attn_scale(positions)
        elif given is not None and of_file is not None:
            made = of_file(given["original_max_position_embeddings"], given["beta"], positions)
        else:
            return None
    return by_position(made.flatten().tolist())


def scale_of_vllm(model, layer):
    attention = attention_of(model, layer)
    scale = float(getattr(attention, "scaling", None) or attention.scale)
    impls = (getattr(module, "impl", None) for module in attention.modules())
    kernels = [float(impl.scale) for impl in impls if hasattr(impl, "scale")]
    assert kernels and all(abs(kernel / scale - 1) < 1e-6 for kernel in kernels), (scale, kernels)
    rotary = attention.rotary_emb
    factor = None if rotary is None else float(tables.records_of(rotary)[0]["factor"])
    return Scale(scale / head_of(attention) ** -0.5, factor, vllm_temperature(model, attention))


def scale_of_backend(model):
    """Of a model without a class of vLLM: transformers' modules over a kernel of vLLM."""
    from vllm.model_executor.models.transformers.base import VLLM_ATTN_ATTR

    attention = next(m for m in model.modules() if hasattr(m, VLLM_ATTN_ATTR))
    rotary = next(m for m in model.modules() if tables.is_of_transformers(m))
    scale = float(getattr(attention, VLLM_ATTN_ATTR).scale)
    parameters = getattr(getattr(attention, "config", None), "rope_parameters", None) or {}
    temperature = "as transformers" if "llama_4_scaling_beta" in parameters else None
    return Scale(scale / head_of(attention) ** -0.5, float(rotary.attention_scaling), temperature)


class Vllm:
    def __init__(self):
        import record_vllm

        self.recorder = record_vllm.Vllm()
        accept_indices()

    def scales(self, config, layers):
        model, _ = self.recorder.built(config)
        if type(model).__name__.startswith("Transformers"):
            return [scale_of_backend(model)]
        return [scale_of_vllm(model, layer) for layer in layers]


def adapted(params):
    """The config that vLLM makes of a params.json without a config.json beside it."""
    from vllm.transformers_utils.config import patch_rope_parameters
    from vllm.transformers_utils.configs.mistral import adapt_config_dict

    params.setdefault("max_position_embeddings", 128_000)  # as vLLM's parser of the file does
    text = adapt_config_dict(params, defaults={}).get_text_config()
    patch_rope_parameters(text)
    config = {key: getattr(text, key, None) for key in PARAMS_KEPT}
    return {key: value for key, value in config.items() if value is not None}


# --- the files ---


def layers_of(config):
    """The layers to read: the first, or another where layers differ."""
    return {"llama4_text": range(4), "bailing_hybrid": (3,)}.get(config["model_type"], (0,))


def scale_row(engine, config):
    layers = layers_of(config)
    scales = list(engine.scales(copy.deepcopy(config), layers))
    (softmax,) = {scale.softmax for scale in scales}
    (factor,) = {scale.factor for scale in scales} - {None}
    kept = {key: value for key, value in config.items() if key in KEPT}
    row = {"config": kept, "softmax": softmax, "attention_factor": factor}
    if len(layers) > 1:
        row["temperatures"] = {str(n): scale.temperature for n, scale in zip(layers, scales)}
    elif scales[0].temperature is not None:
        row["temperature"] = scales[0].temperature
    return row


def params_row(params):
    return {"params": params, "config": adapted(copy.deepcopy(params))}


def record(path, cases, row_of, only):
    """Records the chosen cases. Rows that the file has keep their place; new ones follow."""
    lines = path.read_text().splitlines() if path.exists() else []
    old = {json.loads(line)["case"]: line for line in lines}
    cases = dict(cases)
    rows = {name: old.get(name) for name in (*old, *cases) if name in cases}
    for name, case in cases.items():
        if not re.search(only, name):
            continue
        try:
            row = {"case": name} | row_of(case)
            rows[name] = json.dumps(row, separators=(",", ":"), default=str)
            print(name, row.get("softmax", "read"), flush=True)
        except (Exception, SystemExit) as error:
            rows[name] = None
            print(name, recorder.reason_of(error), flush=True)
    path.write_text("".join(f"{row}\n" for row in rows.values() if row is not None))


def main():
    parser = argparse.ArgumentParser(description="Records the scale of attention of an engine.")
    parser.add_argument("engine", choices=NAMES)
    parser.add_argument("--only", default="", metavar="REGEX", help="cases, by name")
    parser.add_argument("--out", type=pathlib.Path, default=records.DATA, metavar="FOLDER")
    arguments = parser.parse_args()
    engine = Hf() if arguments.engine == "hf" else Vllm()
    name = f"{NAMES[arguments.engine]}_{engine.recorder.version()}.jsonl"
    cases = cases_of(arguments.engine)
    record(arguments.out / f"scale_{name}", cases, lambda c: scale_row(engine, c), arguments.only)
    if arguments.engine == "vllm":
        cases = _DATA["params"].items()
        record(arguments.out / f"params_{name}", cases, params_row, arguments.only)


if __name__ == "__main__":
    sys.exit(main())

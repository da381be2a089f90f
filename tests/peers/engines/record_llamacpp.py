"""Records every rotation that llama.cpp's own code makes of config.json files, on a CPU.

Usage: record_llamacpp.py [--only=REGEX] [--out=FOLDER]
REGEX: names of configs; default: all of the repository. compare.py reads what is written.
llamacpp.sh has made the folder of PYTHONPATH. llama.cpp's converter writes a GGUF file of each
config, without weights. llamacpp_graph then runs the rotations of llama.cpp's graph of that file.
"""

import contextlib
import json
import logging
import math
import os
import pathlib
import subprocess
import sys
from importlib import metadata
from typing import NamedTuple

import recorder
import records
import torch

AXES = "thwe"  # of positions; a token of text has 0 on the last
FAR = 1000  # the second position of llamacpp_graph
ERROR = 2e-6  # of a float32 angle, which ggml multiplies up from channel to channel
# Weights whose first rows are q of the first head, and of which a converter may change the order.
Q_WEIGHTS = ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.W_pack.weight",
             "model.layers.0.attention.wqkv.weight")
# Keys without rope that a converter wants and that our file lacks, as in recorder.FILLED.
_ALPHA = 3.5565588200778455
FILLED = {
    "deepseek_v32": {"num_experts_per_tok": 8, "n_shared_experts": 1, "routed_scaling_factor": 2.5}
    | {"n_group": 8, "topk_group": 4, "norm_topk_prob": True, "scoring_func": "sigmoid"}
    | {"num_nextn_predict_layers": 1},
    "gemma4": {"num_kv_shared_layers": 0, "moe_intermediate_size": None},
    "granitemoehybrid": {"mamba_n_groups": 1},
    "minimax_text_01": {"layernorm_linear_attention_alpha": _ALPHA, "layernorm_mlp_alpha": _ALPHA}
    | {"layernorm_linear_attention_beta": 1.0, "layernorm_mlp_beta": 1.0},
}


class Rope(NamedTuple):
    """A rotation that nodes of the graph have; pairs are of channels in the order of the file."""

    members: dict
    pairs: list


def run(program, *arguments):
    """The JSON lines that a program prints."""
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    done = subprocess.run([program, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"ends with {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def converter_of(folder, out):
    """The converter's object of a model without weights and without a tokenizer."""
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    from conversion.base import gguf

    keys = ModelBase.load_hparams(folder, is_mistral_format=False)
    kind = get_model_class(get_model_architecture(keys, ModelType.TEXT))
    kind.no_mtp = kind.supports_mtp_export
    model = kind(folder, gguf.LlamaFileType.ALL_F32, out)
    model = getattr(model, "impl", model)  # Mistral 3 and 4 hand all on to another

    def set_vocab():
        model._set_vocab_none()
        model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])

    model.set_vocab = set_vocab
    model._get_suppress_tokens = lambda: None  # MiniMax's, which reads the tokenizer
    return model


def write(model):
    """What the converter's write() does, without a progress bar."""
    model.prepare_tensors()
    model.prepare_metadata(vocab_only=False)
    model.gguf_writer.write_header_to_file(path=model.fname_out)
    model.gguf_writer.write_kv_data_to_file()
    model.gguf_writer.write_tensors_to_file()
    model.gguf_writer.close()


def order_of(model, channels):
    """The channels of a head in the order in which the converter writes them."""
    heads = model.find_hparam(["num_attention_heads", "n_head", "n_heads"])
    groups = model.find_hparam(["num_key_value_heads", "n_kv_heads"], optional=True) or heads
    for name in Q_WEIGHTS:
        rows = (heads if "q_proj" in name else heads + 2 * groups) * channels
        columns = model.hparams["hidden_size"] if "wqkv" in name else 1
        weight = torch.arange(rows, dtype=torch.float32)[:, None].expand(rows, columns)
        with contextlib.suppress(Exception):
            written = dict(model.modify_tensors(weight, name, 0))
            first = written.get("blk.0.attn_q.weight", written.get("blk.0.attn_qkv.weight"))
            order = first[:channels, 0].long().tolist()
            if sorted(order) == list(range(channels)):
                return order
    return list(range(channels))


def ropes_of(model, lines):
    """(rope, names) of each different rotation of a graph's first layers."""
    ropes = {line["rotation"]: line for line in lines if "pairs" in line}
    found = {}
    for line in lines:
        name, _, layer = line["node"].rpartition("-")
        number = int(layer.split()[0])
        if number < recorder.LAYERS:
            found.setdefault(line["rotation"], []).append(f"layers.{number}.{name}")
    for rotation, nodes in found.items():
        members = ropes[rotation]
        order = order_of(model, members["channels"])
        pairs = [(order[i], order[j], *rest) for i, j, *rest in members["pairs"]]
        yield Rope(members, sorted(pairs)), nodes


def check_loads(model, lines):
    """llama.cpp loads no file with tensors that its class does not make."""
    written = {name for part in model.gguf_writer.tensors for name in part}
    if written and not written & {line.get("factors") for line in lines}:
        raise RuntimeError(f"its class makes no {' '.join(sorted(written))}, which the file has")


def check_far(pairs, inv_freq):
    """Whether the angle at the far position is that of position 1, times it."""
    for pair, frequency in zip(pairs, inv_freq, strict=True):
        off = math.remainder(math.atan2(pair[6], pair[5]) - FAR * frequency, 2 * math.pi)
        assert abs(off) <= ERROR * FAR * frequency + 1e-6, (pair, frequency, off)


def pairing_of(pairs):
    """Whether the channels of all pairs are half the rotated ones apart; False: one."""
    apart = {second - first for first, second, *_ in pairs}
    assert apart in ({1}, {len(pairs)}), apart
    return apart == {len(pairs)}


class LlamaCpp(recorder.Recorder):
    engine = "llamacpp"

    def __init__(self):
        super().__init__()
        logging.disable(logging.WARNING)
        import conversion

        self._folder = pathlib.Path(conversion.__file__).parents[2]

    def version(self):
        return (self._folder / "commit").read_text().strip()

    def notes(self):
        return {"torch": torch.__version__, "transformers": metadata.version("transformers")}

    def file_of(self, config):
        """With all layers: their number decides what some models are, and they take no memory."""
        kept = {k: v for k, v in config.items() if k not in ("auto_map", "quantization_config")}
        return FILLED.get(config.get("model_type"), {}) | kept

    def build(self, folder, length):
        with torch.inference_mode():
            model = converter_of(folder, folder / "model.gguf")
            write(model)
            program = self._folder / "llamacpp_graph"
            first, *nodes = run(program, model.fname_out, str(length or 0))
            check_loads(model, nodes)
            model.ropes = list(ropes_of(model, nodes))
        return model, first["context"]

    def modules_of(self, model):
        return model.ropes

    def records_of(self, rope):
        members, pairs = rope
        inv_freq = [math.atan2(pair[4], pair[3]) for pair in pairs]
        check_far(pairs, inv_freq)
        section = members["sections"]
        axes = "".join(AXES[pair[2]] for pair in pairs)
        return [
            {
                "rotary_dim": 2 * len(pairs),
                "head_size": members["channels"],
                "neox": pairing_of(pairs),
                "dtype": "float32",
                "factor": records.shortest(max(math.hypot(pair[3], pair[4]) for pair in pairs)),
                "inv_freq": records.floats(inv_freq),
                **({"mrope_section": section[: 3 + (section[3] > 0)]} if any(section) else {}),
                **({"axes": axes} if set(axes) != {"t"} else {}),
            }
        ]


if __name__ == "__main__":
    sys.exit(LlamaCpp().main())

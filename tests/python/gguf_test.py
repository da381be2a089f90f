"""GGUF files, written with the gguf package of PyPI, read like the config.json of the same model.

The keys of each model are those of conversion/ of ggml-org/llama.cpp at 0c1e57098.
"""
import json
import math
import pathlib
import struct
import sys
import warnings

import numpy as np
import pytest

import ropeserve as rs
import ropeserve.gguf
from ropeserve._gguf_file import ARCHITECTURES

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")

CONFIGS = pathlib.Path(__file__).parents[1] / "conformance" / "configs"
FREQS, LONG, SHORT = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def write(path, architecture, keys, tensors=(), endianess=gguf.GGUFEndian.LITTLE):
    """Keys that start with a dot get the architecture before them. An int is a uint32, a float a
    float32. Without an architecture there is no general.architecture."""
    writer = gguf.GGUFWriter(path, architecture, endianess=endianess)
    for key, value in keys.items():
        name = architecture + key if key.startswith(".") else key
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
               str: writer.add_string, list: writer.add_array}[type(value)]
        add(name, value)
    for name, numbers in dict(tensors).items():
        writer.add_tensor(name, np.array(numbers, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def small(tmp_path):
    """Writes a model with 2 frequencies, 1 and 0.01."""
    def made(architecture="llama", keys=(), tensors=(), name="model.gguf"):
        return write(tmp_path / name, architecture, {
            ".rope.freq_base": 10000.0, ".attention.key_length": 4, **dict(keys)}, tensors)
    return made


def parsed(name):
    return json.loads((CONFIGS / f"{name}.json").read_text())


# -- Layers that do not rotate, scaling that was lost ----------------------------------------------

# llama.cpp has no code for GPT-J's rotation, and BERT's has that of models which share it.
OTHERWISE = {"gptj", "bert"}


def test_both_formats_name_the_same_models_without_rotation():
    types = json.loads((CONFIGS.parents[2] / "kernels/config/model_types.json").read_text())
    for architecture, known in ARCHITECTURES.items():
        name = next((each for each in (architecture, architecture.replace("-", "_"))
                     if each in types), None)
        if name is not None and architecture not in OTHERWISE:
            assert (known.rope == "none") == ("positions" in types[name]), architecture


LENGTHS = {".context_length": 131072, ".rope.scaling.original_context_length": 4096}
LLAMA_31 = {".context_length": 131072, ".rope.freq_base": 500000.0}


@pytest.mark.parametrize("architecture, keys, tensors, lost", [
    ("phi3", LENGTHS, {}, "context_length 131072 is above the original 4096"),
    ("phi3", LENGTHS, {LONG: [1, 2], SHORT: [1, 1]}, ""),
    ("qwen2", {**LENGTHS, ".rope.scaling.type": "yarn", ".rope.scaling.factor": 32.0}, {}, ""),
    ("phi3", {**LENGTHS, ".context_length": 4096}, {}, ""),
    ("llama", LLAMA_31, {}, "rope_freqs absent"),
    ("llama", LLAMA_31, {FREQS: [1, 8]}, ""),
    ("llama", {**LLAMA_31, ".context_length": 8192}, {}, ""),
    ("qwen3", LLAMA_31, {}, ""),
])
def test_a_length_that_only_a_scaling_explains(small, architecture, keys, tensors, lost):
    notes = [note for note in rs.gguf.read(small(architecture, keys, tensors)).notes
             if note.rule == "lost-scaling"]
    assert len(notes) == bool(lost) and all(lost in note.message and note.weight == "warning"
                                            for note in notes)


# -- The same reading as the config.json ----------------------------------------------------------

def sizes(layers, width, heads, kv_heads, length):
    """The keys that every conversion writes."""
    return {".block_count": layers, ".context_length": length, ".embedding_length": width,
            ".attention.head_count": heads, ".attention.head_count_kv": kv_heads}


def yarn(factor, original):
    return {".rope.scaling.type": "yarn", ".rope.scaling.factor": float(factor),
            ".rope.scaling.original_context_length": original}


def llama3(theta, dim, factor, low, high, length):
    """Llama 3's scaling as divisors: the formula of Hugging Face's "llama3"."""
    turns = length / (2 * np.pi) * theta ** (-np.arange(0, dim, 2) / dim)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return {FREQS: 1 / ((1 - kept) / factor + kept)}


PHI = parsed("phi-4-mini")["rope_scaling"]
GEMMA3 = {".attention.key_length": 256, ".rope.freq_base": 1e6}
GEMMA4_FULL = [i % 6 == 5 for i in range(60)]
# By config.json: architecture, pairing, keys, tensors.
SAME = {
    "llama-3.1-8b": ("llama", "interleaved", {
        **sizes(32, 4096, 32, 8, 131072), ".rope.freq_base": 500000.0,
        ".rope.dimension_count": 128}, {"token_embd.weight": np.zeros((7, 5)),
                                        **llama3(500000, 128, 8, 1, 4, 8192)}),
    "qwen2.5-7b-instruct": ("qwen2", "half", {
        **sizes(28, 3584, 28, 4, 32768), ".rope.freq_base": 1e6}, {}),
    "qwen3-8b": ("qwen3", "half", {
        **sizes(36, 4096, 32, 8, 40960), ".rope.freq_base": 1e6, ".attention.key_length": 128}, {}),
    "qwen3-8b-yarn": ("qwen3", "half", {
        **sizes(36, 4096, 32, 8, 40960), ".rope.freq_base": 1e6, ".attention.key_length": 128,
        **yarn(4, 32768)}, {}),
    "gemma-3-4b": ("gemma3", "half", {
        **sizes(34, 2560, 8, 4, 131072), **GEMMA3, ".rope.scaling.type": "linear",
        ".rope.scaling.factor": 8.0, ".rope.freq_base_swa": 10000.0,
        ".attention.sliding_window": 1024}, {}),
    "gemma-3-27b-rope-parameters": ("gemma3", "half", {
        **sizes(62, 5376, 32, 16, 131072), **GEMMA3, ".attention.key_length": 128,
        ".rope.scaling.type": "linear", ".rope.scaling.factor": 8.0,
        ".attention.sliding_window": 1024}, {}),
    "gemma-3-1b": ("gemma3", "half", {  # the base of sliding layers is the architecture's
        **sizes(26, 1152, 4, 1, 32768), **GEMMA3, ".attention.sliding_window": 512,
        ".attention.sliding_window_pattern": 6}, {}),
    "gemma-4-31b": ("gemma4", "half", {
        **sizes(60, 5376, 32, [4 if full else 16 for full in GEMMA4_FULL], 262144),
        ".attention.sliding_window_pattern": [not full for full in GEMMA4_FULL],
        ".attention.sliding_window": 1024, ".rope.freq_base": 1e6, ".rope.freq_base_swa": 10000.0,
        ".attention.key_length": 512, ".attention.key_length_swa": 256,
        ".rope.dimension_count": 512, ".rope.dimension_count_swa": 256},
        {FREQS: [1] * 64 + [1e30] * 192}),
    "gpt-oss-20b": ("gpt-oss", "half", {
        **sizes(24, 2880, 64, 8, 131072), ".attention.key_length": 64,
        ".attention.sliding_window": 128, ".rope.freq_base": 150000.0, **yarn(32, 4096),
        ".rope.scaling.yarn_beta_fast": 32.0, ".rope.scaling.yarn_beta_slow": 1.0}, {}),
    "deepseek-v2-lite": ("deepseek2", "interleaved", {
        **sizes(27, 2048, 16, 1, 163840), ".attention.kv_lora_rank": 512,
        ".attention.key_length": 576, ".attention.key_length_mla": 192,
        ".rope.dimension_count": 64, ".rope.freq_base": 10000.0, **yarn(40, 4096),
        ".rope.scaling.yarn_log_multiplier": 0.0707}, {}),
    "phi-4-mini": ("phi3", "half", {
        **sizes(32, 3072, 24, 8, 131072), ".rope.scaling.original_context_length": 4096,
        ".rope.dimension_count": 96, ".rope.freq_base": 10000.0,
        ".attention.sliding_window": 262144, ".rope.scaling.type": "longrope",
        ".rope.scaling.attn_factor": math.sqrt(1 + math.log(32) / math.log(4096))},
        {LONG: PHI["long_factor"], SHORT: PHI["short_factor"]}),
    "olmo-3-7b": ("olmo2", "half", {  # scaled in full layers only
        **sizes(32, 4096, 32, 32, 65536), ".rope.freq_base": 500000.0, **yarn(8, 8192),
        ".rope.scaling.yarn_attn_factor": 1.2079442, ".rope.scaling.yarn_beta_fast": 32.0,
        ".rope.scaling.yarn_beta_slow": 1.0, ".attention.sliding_window": 4096}, {}),
    "smollm3-3b": ("smollm3", "interleaved", {
        **sizes(36, 2048, 16, 4, 65536), ".rope.freq_base": 5e6}, {}),
    "exaone-4.0-32b": ("exaone4", "half", {
        **sizes(64, 5120, 40, 8, 131072), ".rope.freq_base": 1e6, ".attention.key_length": 128,
        ".attention.sliding_window": 4096}, llama3(1000000, 128, 16, 1, 4, 8192)),
    "qwen2-vl-7b": ("qwen2vl", "half", {
        **sizes(28, 3584, 28, 4, 32768), ".rope.freq_base": 1e6,
        ".rope.dimension_sections": [16, 24, 24, 0]}, {}),
    "qwen3-vl-8b": ("qwen3vl", "half", {
        **sizes(36, 4096, 32, 8, 262144), ".rope.freq_base": 5e6, ".attention.key_length": 128,
        ".rope.dimension_sections": [24, 20, 20, 0]}, {}),
    "qwen3-next-80b-a3b": ("qwen3next", "half", {
        **sizes(48, 2048, 16, 2, 262144), ".rope.freq_base": 1e7, ".attention.key_length": 256,
        ".rope.dimension_count": 64}, {}),
}
FLOAT32 = 1.2e-7  # half a unit, a few numbers one


def numbers_of(told):
    """All that a description says of the rotation, but the pairing."""
    kept = ("head_dim", "rotary_dim", "max_position_embeddings", "mrope_section", "mrope_layout")
    return (told.rotates, {key: told.config.get(key) for key in kept}), [
        told.attention_factor, *told.inv_freq]


@pytest.mark.parametrize("name", SAME)
def test_a_file_reads_like_its_config(local, tmp_path, name):
    architecture, pairing, keys, tensors = SAME[name]
    file = write(tmp_path / "model.gguf", architecture, keys, tensors)
    first = local.describe(config=file, layer=0)
    said, wanted = json.dumps(rs.gguf.read(file).config), (CONFIGS / f"{name}.json").read_text()
    assert first.config_id == local.describe(config=said, layer=0).config_id
    for seq_len in (1, 1 << 20) if first.depends_on_seq_len else (1,):
        for layer in range(keys[".block_count"]):
            got = local.describe(config=said, layer=layer, seq_len=seq_len)
            (got_facts, got_numbers), (facts, numbers) = (numbers_of(got), numbers_of(
                local.describe(config=wanted, layer=layer, seq_len=seq_len)))
            assert got_facts == facts
            np.testing.assert_allclose(got_numbers, numbers, rtol=FLOAT32)
            assert got.pairing == pairing or not got.rotates
    with pytest.raises(rs.InvalidField, match="layer: got"):
        local.describe(config=file, layer=keys[".block_count"])


@pytest.mark.parametrize("name", SAME)
def test_a_correct_conversion_passes_diff(tmp_path, name):
    architecture, _, keys, tensors = SAME[name]
    file = write(tmp_path / "model.gguf", architecture, keys, tensors)
    config = CONFIGS / f"{name}.json"
    for a, b in ((file, config), (config, file), (file, file)):
        for layer in rs.diff(a, b):
            assert layer.equal, layer
            permuted = architecture in ("llama", "smollm3") and a != b
            assert ("llama.cpp permutes" in layer.note) == permuted


def test_diff_finds_what_a_conversion_got_wrong(small):
    config = {"model_type": "llama", "head_dim": 4, "rope_theta": 10000,
              "max_position_embeddings": 4096}
    same, = rs.diff(small(), config)
    assert same.equal and same.a["pairing"] != same.b["pairing"]
    base, = rs.diff(small(keys={".rope.freq_base": 10010.0}), config)
    assert (base.equal, base.first_position is not None) == (False, True)
    # Qwen's weights are not permuted, and a checkpoint with interleaved pairs needs no permutation.
    assert not rs.diff(small("qwen2"), {**config, "rope_interleave": True})[0].equal
    assert not rs.diff(small("command-r"), config)[0].equal
    dims, = rs.diff(small("qwen2", {".rope.dimension_count": 2}), config)
    assert not dims.equal


# -- Pairing, defaults and scaling ----------------------------------------------------------------

SECTIONS = {".rope.dimension_sections": [1, 1, 0, 0]}


@pytest.mark.parametrize("architecture, keys, pairing", [
    ("llama", {}, "interleaved"), ("qwen2", {}, "half"), ("qwen2vl", SECTIONS, "half"),
    ("deepseek2", {".rope.dimension_count": 4}, "interleaved"), ("glm4", {}, "interleaved"),
    ("glm4", SECTIONS, "half"), ("glm4moe", {}, "half")])
def test_the_pairing_is_that_of_the_files_tensors(local, small, architecture, keys, pairing):
    told = local.describe(config=small(architecture, keys))
    assert told.pairing == pairing
    assert ("mrope_section" in told.config) == (keys == SECTIONS)


def test_an_unknown_architecture_has_no_pairing_and_a_warning(local, small):
    file = small("llama9")
    told = local.describe(config=file)
    assert told.pairing is None and '"llama9" is unknown' in told.warnings[0]
    assert [(finding.weight, finding.rule) for finding in rs.lint(file)][0] == (
        "warning", "unknown-model-type")
    with pytest.warns(rs.ConfigWarning, match="llama9"):
        local.rotate(np.ones((1, 1, 4), np.float32), config=file, pairing="half", start=0)


def test_the_warnings_of_a_file_come_with_every_reply(local, small):
    file = small("nobody-knows", {})
    told = local.describe(config=file).warnings
    assert told and local.tables(config=file, end=2).warnings[:1] == told[:1]


def test_an_architecture_without_rotation_says_so(local, small):
    file = small("mamba", {".block_count": 3})
    assert not local.describe(config=file, layer=2).rotates
    assert any("llama.cpp does not rotate in mamba" in finding.message for finding in rs.lint(file))


def test_absent_keys_take_the_defaults_of_llama_cpp(local, tmp_path):
    file = write(tmp_path / "a", "llama", {".embedding_length": 64, ".attention.head_count": 4})
    told = local.describe(config=file)
    assert (told.config["rope_theta"], told.config["head_dim"]) == (10000, 16)
    assert told.config["rope_type"] == "default" and told.warnings == []
    note, *_ = [finding for finding in rs.lint(file) if finding.rule == "default-assumed"]
    assert (note.weight, note.message) == (
        "note", "llama.rope.freq_base absent, taken as 10000, as llama.cpp does")


def test_numbers_are_the_shortest_decimals(small):
    model = rs.gguf.read(small(keys={".rope.freq_base": 0.1, ".rope.scaling.factor": 1.3}))
    assert model.config["rope_parameters"] == {
        "rope_type": "linear", "rope_theta": 0.1, "factor": 1.3}


YARN = {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0, ".context_length": 64}
LOG = {**YARN, ".rope.scaling.yarn_log_multiplier": 0.5}


@pytest.mark.parametrize("architecture, keys, tensors, want", [
    ("llama", {".rope.scaling.factor": 1.0}, {}, {"rope_type": "default", "factor": None}),
    ("llama", {".rope.scaling.factor": 4.0}, {}, {"rope_type": "linear", "factor": 4}),
    ("llama", {".rope.scale_linear": 4.0}, {}, {"rope_type": "linear", "factor": 4}),
    ("llama", {".rope.scaling.type": "none", ".rope.scaling.factor": 4.0}, {},
     {"rope_type": "default", "factor": None}),
    ("llama", {}, {FREQS: [2, 1e30]}, {"inv_freq": [0.5, 0]}),
    ("llama", {".rope.scaling.factor": 4.0}, {FREQS: [2, 1]}, {"inv_freq": [0.125, 0.0025]}),
    ("phi3", {}, {LONG: [1, 4], SHORT: [1, 2]},
     {"rope_type": "longrope", "long_factor": [1, 4], "attention_factor": 1}),
    ("phi3", {".rope.scaling.factor": 2.0}, {LONG: [1, 4], SHORT: [1, 2]},
     {"short_factor": [2, 4]}),
    ("llama", YARN, {}, {"beta_fast": 32, "truncate": True}),
    ("grok", YARN, {}, {"beta_fast": 8}),
    ("grok", {**YARN, ".rope.scaling.yarn_attn_factor": 0.5}, {}, {"attn_factor": 0.5}),
    ("llama", {**YARN, ".rope.scaling.yarn_beta_fast": 16.0}, {}, {"beta_fast": 16}),
    ("deepseek2", {**LOG, ".rope.dimension_count": 4}, {}, {"mscale_all_dim": 5, "mscale": 5}),
    ("mistral3", LOG, {}, {"mscale_all_dim": 0.5, "mscale": 1}),
    ("llama", LOG, {}, {"mscale_all_dim": None}),
    ("hunyuan_vl", {".rope.scaling.alpha": 1000.0}, {}, {"rope_type": "dynamic", "alpha": 1000}),
])
def test_scaling(small, architecture, keys, tensors, want):
    parameters = rs.gguf.read(small(architecture, keys, tensors)).config["rope_parameters"]
    assert {key: parameters.get(key) for key in want} == want


def test_a_multiplier_that_is_not_used_is_noted(small):
    note, = rs.gguf.read(small(keys=LOG)).notes
    assert note.rule == "unused-setting" and "yarn_log_multiplier is not used" in note.message


# -- Layers ---------------------------------------------------------------------------------------

def letters(local, file, layers):
    """F full, S sliding, L linear, A any; lower case: the layer does not rotate."""
    types = rs.gguf.read(file).config.get("layer_types", ["any"] * layers)
    rotates = [local.describe(config=file, layer=i).rotates for i in range(layers)]
    return "".join(each[0].upper() if turns else each[0] for each, turns in zip(types, rotates))


GEMMA = {".block_count": 7, ".attention.sliding_window": 8}


@pytest.mark.parametrize("architecture, keys, want", [
    ("gemma3", GEMMA, "SSSSSFS"),
    ("gemma3", {**GEMMA, ".attention.sliding_window_pattern": 2}, "SFSFSFS"),
    ("gemma3", {**GEMMA, ".attention.sliding_window_pattern": [i == 1 for i in range(7)]},
     "FSFFFFF"),
    ("gemma3", {".block_count": 2}, "AA"),
    ("llama4", {".block_count": 4, ".attention.sliding_window": 0}, "AAAA"),
    ("llama4", {".block_count": 4}, "CCCf"),
    ("cohere2", {".block_count": 5, ".attention.sliding_window": 8}, "SSSfS"),
    ("smollm3", {".block_count": 5}, "AAAaA"),
    ("qwen3next", {".block_count": 5}, "lllFl"),
    ("qwen35", {".block_count": 3, ".attention.recurrent_layers": [True, False, True], **SECTIONS},
     "lFl"),
    ("lfm2", {".block_count": 3, ".attention.head_count_kv": [0, 2, 0]}, "aAa"),
    ("granitehybrid", {".block_count": 2, ".rope.scaling.finetuned": False}, "aa"),
    ("glm4moe", {".block_count": 5, ".nextn_predict_layers": 1}, "AAAA"),
])
def test_layers(local, small, architecture, keys, want):
    file = small(architecture, keys)
    assert letters(local, file, len(want)) == want
    with pytest.raises(rs.InvalidField):
        local.describe(config=file, layer=len(want))


def test_head_counts_by_layer_give_the_largest(small):
    config = rs.gguf.read(small("gemma3", {".attention.head_count": 8,
                                           ".attention.head_count_kv": [2, 4, 2]})).config
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (8, 4)


def test_a_head_dim_of_sliding_layers_reaches_the_parser(local, small):
    file = small("llama4", {".block_count": 4, ".attention.key_length_swa": 8,
                            ".rope.dimension_count_swa": 8})
    told = local.describe(config=file, layer_type="chunked_attention")
    assert (told.config["head_dim"], told.config["rotary_dim"]) == (8, 8)


# -- Files that are refused -----------------------------------------------------------------------

@pytest.mark.parametrize("architecture, keys, tensors, want", [
    ("llama", {".rope.freq_base": "1e4"}, {},
     "llama.rope.freq_base: got a string, want a number"),
    ("llama", {".rope.freq_base": -1.0}, {}, "llama.rope.freq_base: got -1, want a finite number"),
    ("llama", {".block_count": 2.0}, {}, "llama.block_count: got a number, want an integer"),
    ("llama", {".block_count": 0}, {}, "llama.block_count: got 0, want 1 to 65536"),
    ("llama", {".rope.scaling.type": 1}, {},
     "llama.rope.scaling.type: got an integer, want a string"),
    ("qwen2vl", {".rope.dimension_sections": "1"}, {},
     "qwen2vl.rope.dimension_sections: got a string, want integers"),
    ("qwen2vl", {".rope.dimension_sections": [1, 1, 1, 1]}, {},
     "qwen2vl.rope.dimension_sections: got four axes, want three counts"),
    ("qwen2vl", {".rope.dimension_sections": ["a"]}, {},
     "qwen2vl.rope.dimension_sections: got a list of 1 values, want at most 65536 numbers"),
    ("llama", {".rope.dimension_count": [1, 2]}, {},
     "llama.rope.dimension_count: got a list of 2 integers, want an integer"),
    ("llama", {".attention.head_count": [-1]}, {}, "llama.attention.head_count: got -1"),
    ("\x01", {}, {}, 'general.architecture: got "?", want a name'),
    ("", {}, {}, "general.architecture: got nothing, want the name"),
    ("llama", {".rope.scaling.type": "ntk"}, {},
     'llama.rope.scaling.type: got "ntk", want none, linear, yarn or longrope'),
    ("llama", {".rope.scaling.factor": -1.0}, {}, "llama.rope.scaling.factor: got -1, want"),
    ("llama", {".rope.scaling.attn_factor": 2.0}, {},
     "llama.rope.scaling.attn_factor: got 2, want 1 without yarn"),
    ("llama", {**YARN, ".rope.scaling.yarn_ext_factor": 0.5}, {},
     "llama.rope.scaling.yarn_ext_factor: got 0.5, want 1"),
    ("llama", {}, {FREQS: [1]}, "rope_freqs.weight: got 1 numbers, want rotary_dim/2, 2"),
    ("llama", {}, {FREQS: [1, 0]}, "rope_freqs.weight[1]: got 0, want a finite number > 0"),
    ("llama", {}, {FREQS: [[1, 1], [1, 1]]}, "rope_freqs.weight: got shape [2, 2], want one"),
    ("llama", {}, {LONG: [1, 1]},
     "rope_factors_short.weight: got no tensor, want one for longrope"),
    ("llama", YARN, {FREQS: [1, 1]},
     "llama.rope.scaling.type: got yarn beside a tensor of factors"),
    ("gemma3", {**GEMMA, ".attention.sliding_window_pattern": [False, True]}, {},
     "gemma3.attention.sliding_window_pattern: got 2 elements, want one for each of 7"),
    ("gemma3", {**GEMMA, ".attention.sliding_window_pattern": 0}, {},
     "gemma3.attention.sliding_window_pattern: got 0, want a list, or a period"),
    ("qwen35", {".block_count": 2, ".full_attention_interval": 0, **SECTIONS}, {},
     "qwen35.full_attention_interval: got 0, want at least 1"),
    ("llama", {"split.count": 0}, {}, "split.count: got 0, want 1 to 65535"),
])
def test_errors_name_the_key(small, architecture, keys, tensors, want):
    file = small(architecture, keys, tensors)
    with pytest.raises(rs.InvalidField) as raised:
        rs.gguf.read(file)
    assert str(raised.value).startswith(f"{file}: {want}")
    finding, = rs.lint(file)
    assert (finding.weight, finding.message) == ("error", str(raised.value))
    assert finding.rule == ("missing-value" if " got nothing" in want else "invalid-value")
    with pytest.raises(rs.InvalidField):
        rs.diff(file, {"head_dim": 4})


def test_every_truncation_is_refused(small, tmp_path):
    whole = small(keys={"tokenizer.ggml.tokens": ["a", "bc", ""], "tokenizer.ggml.scores": [1.0]},
                  tensors={FREQS: [1, 2]}).read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in range(4, len(whole)):
        cut.write_bytes(whole[:size])
        try:
            rs.gguf.read(cut)
        except rs.InvalidField as error:
            assert f"gguf: got {size} bytes, want at least " in str(error)
        else:  # the package pads the data
            assert size >= len(whole.rstrip(b"\0"))


def test_counts_that_no_file_has_are_refused_at_once(tmp_path):
    def header(tensors, keys, rest=b""):
        return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest
    def key(*kinds, count):
        return struct.pack("<Q1sI", 1, b"a", 9) + struct.pack("<IQ", *kinds, count)
    for data in (header(2**64 - 1, 0), header(0, 2**64 - 1), header(0, 1, key(4, count=2**61)),
                 header(0, 1, key(8, count=2**64 - 1)), header(0, 1, key(9, count=1)),
                 header(0, 1, struct.pack("<Q1sI", 1, b"a", 13)),
                 header(0, 1, struct.pack("<Q", 2**63)),
                 header(0, 1, struct.pack("<Q1sIB", 1, b"\xff", 0, 1)),
                 header(0, 1, key(8, count=2) + struct.pack("<Q", 2**64 - 1)),
                 b"GGUF" + struct.pack("<I", 4) + bytes(64), b"GGUF"):
        (tmp_path / "a.gguf").write_bytes(data)
        with pytest.raises(rs.InvalidField, match="gguf: got "):
            rs.gguf.read(tmp_path / "a.gguf")


def test_damaged_files_are_read_or_refused(small, tmp_path):
    whole = small(keys={".block_count": 3, "tokenizer.ggml.tokens": ["a", "bc"]},
                  tensors={FREQS: [1, 2]}).read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for _ in range(500):
            data = bytearray(whole)
            for at in random.integers(4, len(data), random.integers(1, 4)):
                data[at] = random.integers(256)
            (tmp_path / "a.gguf").write_bytes(data)
            try:
                rs.gguf.read(tmp_path / "a.gguf")
            except rs.InvalidField:
                refused += 1
    assert 50 < refused < 500


def test_what_is_no_gguf_file(tmp_path, small):
    (tmp_path / "config.json").write_text('{"head_dim": 64}')
    with pytest.raises(rs.InvalidField, match="GGUF magic invalid"):
        rs.gguf.read(tmp_path / "config.json")
    with pytest.raises(rs.InvalidField, match="got a folder"):
        rs.gguf.read(tmp_path)
    with pytest.raises(FileNotFoundError):
        rs.gguf.read(tmp_path / "none")
    named = tmp_path / "model.gguf"  # the magic decides, not the name
    named.write_text('{"head_dim": 64}')
    assert rs.diff(named, tmp_path / "config.json")[0].equal
    file = small(name="other.json")
    assert rs.diff(str(file), file)[0].equal
    with pytest.raises(rs.InvalidField, match="sub_config: got 'vision_config', want none"):
        rs.diff(file, file, sub_config="vision_config")
    assert rs.lint(file, sub_config="vision_config")[0].rule == "invalid-value"


def test_big_endian_files_are_read(tmp_path):
    keys = {**sizes(2, 64, 4, 4, 128), ".rope.freq_base": 500000.0,
            "tokenizer.ggml.tokens": ["a", "bc"]}
    read = [rs.gguf.read(write(tmp_path / order.name, "llama", keys, {FREQS: [1.5] * 8}, order))
            for order in gguf.GGUFEndian]
    assert read[0] == read[1] and read[0].config["rope_parameters"]["rope_theta"] == 500000


# -- Split models ---------------------------------------------------------------------------------

@pytest.fixture
def split(small, tmp_path):
    """A model in three files; rope_freqs is in the third."""
    first = small(keys={"split.no": 0, "split.count": 3}, name="m-00001-of-00003.gguf")
    for part in (1, 2):
        write(tmp_path / f"m-0000{part + 1}-of-00003.gguf", "", {
            "split.no": part, "split.count": 3}, {FREQS: [1, 4]} if part == 2 else {})
    return first


def test_the_tensor_of_another_part_is_found(split):
    model = rs.gguf.read(split)
    assert model.config["rope_parameters"]["inv_freq"] == [1, 0.0025] and model.notes == []


@pytest.mark.parametrize("lose", [
    lambda first: (first.parent / "m-00002-of-00003.gguf").unlink(),
    lambda first: (first.parent / "m-00003-of-00003.gguf").write_bytes(b"GGUF\3"),
    lambda first: first.rename(first.parent / "m.gguf")])
def test_a_part_that_is_not_there_is_warned_of(local, split, lose):
    moved = lose(split)
    file = moved if isinstance(moved, pathlib.Path) else split
    text = "the model is split into 3 files, of which not all were read"
    assert text in local.describe(config=file).warnings[0]
    assert [finding for finding in rs.lint(file) if finding.rule == "missing-part"]


def test_a_later_part_has_no_metadata(split, small):
    with pytest.raises(rs.InvalidField, match="the first part of a split model has it"):
        rs.gguf.read(split.parent / "m-00003-of-00003.gguf")
    with pytest.raises(rs.InvalidField, match="split.no: got 1, want 0"):
        rs.gguf.read(small(keys={"split.no": 1, "split.count": 3}))


# -- The package ----------------------------------------------------------------------------------

def test_a_vocabulary_is_not_loaded(tmp_path):
    many = 1 << 18
    file = write(tmp_path / "a.gguf", "llama", {
        ".rope.freq_base": 5e5, "tokenizer.ggml.tokens": [f"token {i}" for i in range(many)],
        "tokenizer.ggml.scores": [0.5] * many, ".attention.key_length": 8})
    reader = rs.gguf.contents(str(file))[0]["tokenizer.ggml.tokens"]
    assert len(reader.parts) == 5  # the key's length, the key, two types and a count
    assert rs.gguf.read(file).config["rope_parameters"]["rope_theta"] == 5e5


def test_without_the_package_the_error_says_what_to_install(local, small, monkeypatch):
    file = small()
    monkeypatch.setitem(sys.modules, "gguf", None)
    for call in (lambda: rs.lint(file), lambda: rs.diff(file, {}), lambda: rs.gguf.read(file),
                 lambda: local.describe(config=file)):
        with pytest.raises(ModuleNotFoundError, match=r"pip install ropeserve\[gguf\]"):
            call()
    assert rs.lint({"head_dim": 64}) is not None

"""The scale of attention: what describe says, beside what the engines' own modules have."""
from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import pytest

import ropeserve as rs

DATA = pathlib.Path(__file__).parents[1] / "peers" / "engines" / "data"
NONE = {"softmax": 1.0, "temperature_beta": 0.0}


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def temperature(scale: dict[str, Any], position: int) -> float:
    if scale["temperature_beta"] == 0:
        return 1.0
    steps = (position + scale["temperature_offset"]) // scale["temperature_length"]
    return 1 + scale["temperature_beta"] * math.log(1 + steps)


def described(config: dict[str, Any], layer: int | None = None) -> rs.Description:
    return own.describe(config=config, layer=layer)


own = rs.local(threads=1)


def agrees(told: rs.Description, row: dict[str, Any], temperatures: dict[str, float] | None,
           scale: dict[str, Any]) -> bool:
    expected = temperatures or {"0": 1.0, "100000": 1.0}
    return (math.isclose(scale["softmax"], row["softmax"], rel_tol=1e-6)
            and all(math.isclose(temperature(scale, int(position)), value, rel_tol=1e-6)
                    for position, value in expected.items()))


def layers_of(row: dict[str, Any]) -> list[tuple[int | None, dict[str, float] | None]]:
    """The layers to ask for, with their temperatures by position."""
    if "temperatures" in row:
        return [(int(layer), values) for layer, values in row["temperatures"].items()]
    return [(None, row.get("temperature"))]


def test_the_models_own_scale_is_that_of_transformers_modules():
    wrong = []
    compared = 0
    for row in rows("scale_transformers_5.23.0.jsonl"):
        for layer, temperatures in layers_of(row):
            told = described(row["config"], layer)
            compared += 1
            if not agrees(told, row, temperatures, told.scale or NONE):
                wrong.append((row["case"], layer, row["softmax"], told.scale))
    assert compared > 330
    assert not wrong, (len(wrong), wrong[:3])


def test_what_is_said_of_vllm_is_the_scale_of_its_modules():
    wrong = []
    compared = 0
    for row in rows("scale_vllm_0.32.0.jsonl"):
        for layer, temperatures in layers_of(row):
            told = described(row["config"], layer)
            readings = [reading for reading in told.scale_readings
                        if (reading["engine"], reading["version"]) == ("vllm", "0.31.0 to 0.33.0")]
            if row["config"]["model_type"] == "axk1":
                assert not readings  # its class was not checked
                continue
            scale = readings[0]["scale"] if readings else told.scale or NONE
            if temperatures == "as transformers":
                temperatures = {"100000": temperature(told.scale or NONE, 100000)}
            compared += 1
            if not agrees(told, row, temperatures, scale):
                wrong.append((row["case"], layer, row["softmax"], scale))
    assert compared > 90
    assert not wrong, (len(wrong), wrong[:3])


LARGE_3 = {
    "dim": 7168, "n_layers": 61, "head_dim": 192, "hidden_dim": 16384, "n_heads": 128,
    "n_kv_heads": 128, "norm_eps": 1e-06, "vocab_size": 131072, "max_position_embeddings": 294912,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "kv_lora_rank": 512,
    "v_head_dim": 128, "rope_theta": 10000.0, "moe": {"num_shared_experts": 1},
    "yarn": {"factor": 36, "beta": 32, "alpha": 1, "original_max_position_embeddings": 8192,
             "apply_scale": False},
    "llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 8192}}
MISTRAL4 = {
    "model_type": "mistral4", "qk_nope_head_dim": 64, "qk_rope_head_dim": 64,
    "max_position_embeddings": 1048576,
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0,
                        "original_max_position_embeddings": 8192, "mscale": 1.0,
                        "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}}


def findings(config: dict[str, Any], rule: str, engine: str | None = None) -> list[str]:
    return [finding.message for finding in rs.lint(config, engine=engine) if finding.rule == rule]


def test_vllm_0_30_scales_mistral_large_3_although_apply_scale_is_false():
    """vLLM's pull request 57563."""
    told = own.describe(config=LARGE_3)
    assert told.scale["softmax"] == 1.0 and told.attention_factor == 1.0
    assert temperature(told.scale, 8192) == pytest.approx(1.0693147)
    assert findings(LARGE_3, "scaled-differently", "vllm@0.30.0") == [
        "vllm 0.30.0 (read): softmax scale times 1.84512, not 1; logits times 1.84512, not 1"]
    assert not findings(LARGE_3, "scaled-differently", "vllm@0.33.0")
    assert not findings(LARGE_3, "scaled-differently", "vllm@0.29.0")


def test_a_temperature_that_llama_cpp_does_not_have_is_named():
    """transformers' pull request 47435."""
    assert "multiplies its softmax scale by 2.20583" in findings(MISTRAL4, "softmax-scale")[0]
    assert findings(MISTRAL4, "scaled-differently", "llamacpp") == [
        "llamacpp 0c1e57098 (read): temperature of q none, not 1 + 0.1 ln(1 + floor(p / 8192))"]


def test_params_json_is_read_as_the_config_that_vllm_makes_of_it():
    for row in rows("params_vllm_0.32.0.jsonl"):
        parameters = row["config"].get("text_config", row["config"]).get("rope_parameters") or {}
        if not parameters.get("rope_theta"):  # the class decides; and Mamba has none
            continue
        ours = own.describe(config=row["params"])
        assert ours.config["rope_theta"] == parameters["rope_theta"], row["case"]
        assert ours.config.get("rope_type", "default") == parameters["rope_type"], row["case"]
        assert ours.config.get("factor") == parameters.get("factor"), row["case"]
        assert ours.pairing == "interleaved", row["case"]

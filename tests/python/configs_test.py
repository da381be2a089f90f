"""lint, diff, describe and tables: what ropectl says, as objects."""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from reference import LLAMA

import ropeserve as rs

CONFIGS = pathlib.Path(__file__).parents[1] / "conformance" / "configs"
YARN = {**LLAMA, "max_position_embeddings": 4096,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}


def ropectl(*arguments):
    program = os.path.join(os.path.dirname(os.environ["ROPE_SERVER"]), "ropectl")
    return json.loads(subprocess.run([program, *arguments, "--json"], capture_output=True,
                                     check=False).stdout)


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.json")), ids=lambda file: file.stem)
def test_lint_says_what_ropectl_says(file):
    want = ropectl("lint", str(file))[0]["findings"]
    got = [finding.__dict__ for finding in rs.lint(file)]
    assert [each["message"] for each in got] == [each["message"] for each in want]
    for one, other in zip(got, want):
        assert one == {"engine": "", "version": "",
                       **{key: value for key, value in other.items() if key in one}}


def test_lint_of_one_engine():
    everybody = {finding.engine for finding in rs.lint(YARN)}
    assert {finding.engine for finding in rs.lint(YARN, engine="llamacpp")} <= {"", "llamacpp"}
    assert set(rs.engines()) >= everybody - {""}


def test_diff(tmp_path):
    same, = rs.diff(LLAMA, json.dumps(LLAMA))
    assert same.equal and same.first_position is None
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "rope_theta": 2e4}))
    other, = rs.diff(LLAMA, tmp_path, error=0.1)
    assert not other.equal and other.inv_freq["index"] == 1 and other.first_position > 1
    want, = ropectl("diff", str(tmp_path / "config.json"), str(tmp_path / "config.json"))
    assert want["equal"]


def test_diff_does_not_hold_the_gil():
    # Another thread runs where diff gives the GIL up, and nowhere else: this is the reading of A.
    text = json.dumps({**LLAMA, "unread": [0] * 1_000_000})
    others = []

    def compare():
        for _ in range(20):
            with pytest.raises(rs.InvalidField):
                rs.diff(text, text, engine="nobody")
            if others:
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            future = pool.submit(compare)
            others.append(not future.done())
    finally:
        sys.setswitchinterval(interval)
    assert others == [True]


def test_describe(client):
    told = client.describe(config=YARN, positions=[0, 3])
    assert told.config["rope_type"] == "yarn" and told.config["max_position_embeddings"] == 4096
    assert (told.pairing, told.rotates, told.depends_on_seq_len) == ("half", True, False)
    assert told.attention_factor == pytest.approx(0.1 * np.log(4) + 1)
    np.testing.assert_allclose(told.inv_freq * told.wavelengths, 2 * np.pi)
    row = told.rows[1]
    np.testing.assert_allclose(row["cos"], told.attention_factor * np.cos(3 * told.inv_freq))
    assert len(told.config_id) == 32 and told.json["config_id"] == told.config_id


def test_describe_a_layer_without_rotation(client):
    told = client.describe(layer=1, config={
        **LLAMA, "num_hidden_layers": 2, "no_rope_layers": [1, 0]})
    assert (told.rotates, told.config, len(told.inv_freq)) == (False, {}, 0)


LAYOUTS = {"cos_sin_cache": ["table"], "complex": ["table"], "cos_sin": ["cos", "sin"],
           "duplicated": ["cos", "sin"]}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["fp64", "fp32", np.float16, ml_dtypes.bfloat16])
def test_tables(local, layout, dtype):
    seen = []
    made = local.tables(config=YARN, begin=5, end=2100, layout=layout, dtype=dtype,
                        progress=lambda done, rows: seen.append((done, rows)))
    arrays = [getattr(made, name) for name in LAYOUTS[layout]]
    assert seen == [(1024, 2095), (2048, 2095), (2095, 2095)]
    inv_freq = local.describe(config=YARN).inv_freq
    angles = np.outer(np.arange(5, 2100), inv_freq)
    cos, sin = np.cos(angles) * made.attention_factor, np.sin(angles) * made.attention_factor
    want = {"cos_sin_cache": [np.hstack([cos, sin])], "complex": [np.stack([cos, sin], -1)],
            "cos_sin": [cos, sin], "duplicated": [np.hstack([cos] * 2), np.hstack([sin] * 2)]}
    atol = {8: 1e-10, 4: 1e-6, 2: 5e-3}[arrays[0].dtype.itemsize]
    for got, expected in zip(arrays, want[layout]):
        np.testing.assert_allclose(got.astype(np.float64), expected, atol=atol)

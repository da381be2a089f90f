"""Plots: what is drawn, and the program `ropeserve plot`."""
import pathlib
import xml.etree.ElementTree

import numpy as np
import pytest
from reference import LLAMA

import ropeserve as rs
from ropeserve.cli import main

plot = pytest.importorskip("ropeserve.plot", reason="matplotlib is not installed")

CONFIGS = pathlib.Path(__file__).parents[1] / "conformance" / "configs"
LLAMA3 = {**LLAMA, "head_dim": 256, "max_position_embeddings": 65536, "rope_scaling": {
    "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
    "original_max_position_embeddings": 8192}}
LINEAR = {**LLAMA, "head_dim": 32, "max_position_embeddings": 4096,
          "rope_scaling": {"rope_type": "linear", "factor": 4}}
PROPORTIONAL = {"head_dim": 64, "rope_scaling": {
    "rope_type": "proportional", "partial_rotary_factor": 0.25}}


def lines(config, gid, other=None, **arguments):
    """The lines of that kind, in all panels."""
    return [line for axes in plot.figure(config, other, **arguments).axes for line in axes.lines
            if line.get_gid() == gid]


def labels(config, other=None, **arguments):
    return [line.get_label() for axes in plot.figure(config, other, **arguments).axes
            for line in axes.lines]


@pytest.mark.parametrize("gid", ["inv-freq-original", "inv-freq-scaled", "inv-freq-result",
                                 "wavelength-original", "wavelength-result"])
def test_a_point_for_each_pair(gid):
    line, = lines(LLAMA3, gid)
    assert list(line.get_xdata()) == list(range(128))


def test_result_of_linear_scaling_is_the_fully_scaled_curve():
    (result,), (scaled,) = lines(LINEAR, "inv-freq-result"), lines(LINEAR, "inv-freq-scaled")
    np.testing.assert_allclose(result.get_ydata(), scaled.get_ydata(), rtol=1e-12)
    assert result.get_ydata()[0] == pytest.approx(0.25)


@pytest.mark.parametrize("config, want", [
    (LLAMA3, [2048, 8192]),
    ({**LLAMA, "max_position_embeddings": 131072, "rope_scaling": {
        "rope_type": "yarn", "factor": 32, "original_max_position_embeddings": 4096,
        "truncate": False}}, [128, 4096]),  # beta_fast 32 and beta_slow 1 over 4096 positions
    (LINEAR, []),
], ids=["llama3", "yarn", "linear"])
def test_edges_of_the_ramp(config, want):
    edges = [line.get_ydata()[0] for line in lines(config, "ramp-edge")]
    np.testing.assert_allclose(edges, want)
    assert len(lines(config, "ramp-index")) == len(want)


def test_legend_and_title_have_the_numbers():
    assert {"fully scaled (1/8)", "original length 8192", "length 65536", "kept up to 2048",
            "scaled from 8192"} <= set(labels(LLAMA3))
    title = plot.figure(LLAMA3).get_suptitle()
    assert title == ("llama3: theta 10000, rotary_dim 256, factor 8, original length 8192, "
                     "attention factor 1")


def test_frequencies_of_zero_are_left_out():
    assert len(lines(PROPORTIONAL, "inv-freq-result")[0].get_xdata()) == 8
    assert len(lines(PROPORTIONAL, "wavelength-result")[0].get_xdata()) == 8


def test_both_lists_of_longrope():
    short, long = lines(CONFIGS / "phi-3.5-mini.json", "inv-freq-result")
    assert (short.get_label(), long.get_label()) == ("result at length 1",
                                                     "result at length 131072")
    assert (short.get_ydata() > long.get_ydata()).any()
    one, = lines(CONFIGS / "phi-3.5-mini.json", "inv-freq-result", seq_len=100)
    assert list(one.get_ydata()) == list(short.get_ydata())


def test_two_configs_over_each_other():
    a, b = lines(LLAMA, "inv-freq-result", other="llama-3.1-8b")
    assert (a.get_label(), b.get_label()) == ("A: result", "B: result")
    assert a.get_color() != b.get_color()


def test_decay_is_one_at_distance_zero_and_a_mean_of_cosines_elsewhere():
    product, envelope = plot.decay(np.array([1, 0.5]), np.array([0, 3]))
    np.testing.assert_allclose(product, [1, (np.cos(3) + np.cos(1.5)) / 2], rtol=1e-14)
    np.testing.assert_allclose(envelope, [1, np.cos(0.75)], rtol=1e-14)


@pytest.mark.parametrize("config, seq_len, want", [
    ({"max_position_embeddings": 100}, None, [100]),
    ({"max_position_embeddings": 131072, "rope_scaling": {
        "rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 8192}}, None,
     [8192, 131072]),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 8,
                       "original_max_position_embeddings": 8192}}, None, [8192, 65536]),
    ({}, 100, [100]),
    ({}, 1, []),
], ids=["one", "both", "by the factor", "of the call", "none"])
def test_lengths(local, config, seq_len, want):
    told = local.describe(config={"head_dim": 64, **config}, seq_len=seq_len)
    assert plot.lengths_of(told) == want


def test_a_layer_without_rotation_is_refused():
    with pytest.raises(rs.InvalidField, match="config: got a layer without rotary embedding"):
        plot.figure({**LLAMA, "num_hidden_layers": 2, "no_rope_layers": [1, 0]}, layer=1)


def test_the_program_writes_png_and_svg(tmp_path):
    config = str(CONFIGS / "gemma-3-4b.json")
    for name, configs in {"plot.png": [config], "plot.pdf": [config],
                          "plot.svg": [config, config]}.items():
        assert main(["plot", *configs, "--layer=0", f"--output={tmp_path / name}"]) == 0
    assert (tmp_path / "plot.png").read_bytes()[1:4] == b"PNG"
    assert (tmp_path / "plot.pdf").read_bytes()[:4] == b"%PDF"
    assert xml.etree.ElementTree.parse(tmp_path / "plot.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("arguments, status, said", [
    (["--output=x.txt"], 2, "got x.txt, want a name that ends in .png, .svg or .pdf"),
    ([], 2, "the following arguments are required: --output"),
    (["--output=x.svg", "--layer_type=none"], 1, "layer_type"),
    (["--output=/does/not/exist/x.svg", "--layer=0"], 1, "/does/not/exist/x.svg"),
    (["--output=x.svg"], 1, "got nothing, want one of full_attention, sliding_attention"),
])
def test_what_the_program_refuses(capsys, arguments, status, said):
    command = ["plot", str(CONFIGS / "gemma-3-4b.json"), *arguments]
    try:
        assert main(command) == status
    except SystemExit as exit:
        assert exit.code == status
    assert said in capsys.readouterr().err

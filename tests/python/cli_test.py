"""The program `ropeserve`: lint, diff and describe. plot_test.py has plots."""
import json
import pathlib
import sys

import numpy as np
import pytest
from reference import LLAMA, draw, rotated

import ropeserve as rs
from ropeserve.cli import main

CONFIGS = pathlib.Path(__file__).parents[1] / "conformance" / "configs"
LLAMA_31 = str(CONFIGS / "llama-3.1-8b.json")


@pytest.fixture
def gguf_file(tmp_path):
    """Llama 3.1 8B as a GGUF file, without rope_freqs."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(32)
    writer.add_context_length(131072)
    writer.add_embedding_length(4096)
    writer.add_head_count(32)
    writer.add_head_count_kv(8)
    writer.add_rope_freq_base(500000.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def ran(capsys, *arguments):
    """(exit status, stdout, stderr)"""
    try:
        status = main(list(arguments))
    except SystemExit as exit:
        status = exit.code
    return status, *capsys.readouterr()


def said(capsys, *arguments):
    """(exit status, stdout)"""
    return ran(capsys, *arguments)[:2]


def failed(capsys, *arguments):
    """(exit status, stderr)"""
    return ran(capsys, *arguments)[::2]


def test_lint(capsys, tmp_path, gguf_file):
    assert said(capsys, "lint", LLAMA_31) == (0, f"{LLAMA_31}: no findings\n")
    wrong = tmp_path / "config.json"
    wrong.write_text(json.dumps({**LLAMA, "rope_theta": -1}))
    status, text = said(capsys, "lint", str(wrong), gguf_file)
    assert status == 1 and f"{wrong}:1: error: rope_theta: got -1" in text
    assert f"{gguf_file}:" in text and "[lost-scaling]" in text  # without rope_freqs
    assert failed(capsys, "lint", "/does/not/exist", str(wrong))[0] == 1
    status, text = said(capsys, "lint", "/does/not/exist", LLAMA_31)
    assert status == 1 and text == f"{LLAMA_31}: no findings\n"  # the other one is linted
    status, text = said(capsys, "lint", "--json", str(wrong))
    assert status == 1 and json.loads(text)[0]["findings"][0]["weight"] == "error"
    phi = str(CONFIGS / "phi-3.5-mini.json")
    assert said(capsys, "lint", phi)[0] == 0
    status, text = said(capsys, "lint", phi, "--fail_on=reading", "--engine=llamacpp")
    assert status == 1 and "reading: llamacpp " in text and "vllm" not in text


def test_diff(capsys, gguf_file):
    status, text = said(capsys, "diff", LLAMA_31, LLAMA_31)
    assert status == 0 and text.startswith("all layers: equal")
    status, text = said(capsys, "diff", LLAMA_31, gguf_file)  # the scaling is missing
    assert status == 1 and text.startswith("all layers: different")
    assert "llama.cpp permutes the weights of llama" in text
    assert "differ by more than 0.001: " in text and "first differs at index 29" in text
    status, text = said(capsys, "diff", LLAMA_31, gguf_file, "--error=0.5", "--json")
    assert status == 1 and json.loads(text)[0]["first_position"] > 100


def test_describe(capsys, gguf_file):
    status, text = said(capsys, "describe", gguf_file)
    assert status == 0 and "rope_theta                        500000\n" in text
    assert "pairing                           interleaved" in text
    assert len(text.splitlines()) > 64 and "   63  2.4" in text
    status, text = said(capsys, "describe", "llama-3.1-8b", "--json")
    assert status == 0 and json.loads(text)["config"]["rope_type"] == "llama3"
    status, text = said(capsys, "describe", str(CONFIGS / "gemma-3-4b.json"),
                        "--layer_type=sliding_attention")
    assert status == 0 and "rope_theta                        10000\n" in text
    status, text = said(capsys, "describe", "gemma-3-4b", "--json")
    assert status == 0 and [each["config"]["rope_theta"] for each in json.loads(text)] == [1e6, 1e4]


def test_diagnose(capsys, tmp_path):
    q = draw(5, 4, 64)
    files = {"q": q, "same": rotated(q, np.arange(7, 12)), "next": rotated(q, np.arange(8, 13)),
             "positions": np.arange(7, 12)}
    for name, array in files.items():
        np.save(tmp_path / f"{name}.npy", array)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    command = ["diagnose", str(config), f"--before={tmp_path / 'q.npy'}", "--layout=SHD"]
    status, text = said(capsys, *command, f"--after={tmp_path / 'same.npy'}", "--start=7")
    assert status == 0 and "The config explains it." in text
    positions = f"--positions={tmp_path / 'positions.npy'}"
    status, text = said(capsys, *command, f"--after={tmp_path / 'next.npy'}", positions)
    assert status == 1 and "Explained by: positions + 1." in text
    status, text = said(capsys, *command, f"--after={tmp_path / 'next.npy'}", "--json",
                        "--positions=7,8,9,10,11")
    assert status == 1 and json.loads(text)["explanations"][0]["changes"] == ["positions + 1"]


@pytest.mark.parametrize("arguments, status, want", [
    ([], 2, "the following arguments are required: COMMAND"),
    (["lint"], 2, "the following arguments are required: FILE"),
    (["lint", "/does/not/exist"], 1, "/does/not/exist"),
    (["diff", LLAMA_31, LLAMA_31, "--error=abc"], 2, "got abc, want a number above 0"),
    (["describe", LLAMA_31, "--head_dim=64"], 1, "head_dim"),
    (["diagnose", LLAMA_31, "--before=x.npy", "--after=y.npy", "--layout=SHD"], 1, "x.npy"),
    (["diagnose", "--before=x.npy", "--after=y.npy", "--layout=SHD", "--positions=0,b"], 2,
     "got 0,b, want a name that ends in .npy, or integers with commas"),
    (["describe", "missing.gguf"], 1, "No such file"),
    (["diagnose", "--before=x.npy"], 2, "the following arguments are required: --after, --layout"),
])
def test_what_is_refused(capsys, arguments, status, want):
    got = failed(capsys, *arguments)
    assert got[0] == status and want in got[1]


def test_version(capsys):
    assert said(capsys, "--version") == (0, f"ropeserve {rs.__version__}\n")


@pytest.mark.parametrize("package, arguments, extra", [
    ("gguf", ["describe", "model.gguf"], "gguf"),
    ("matplotlib", ["plot", LLAMA_31, "--output=x.svg"], "plot"),
])
def test_a_missing_package_is_named(capsys, monkeypatch, tmp_path, package, arguments, extra):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.delitem(sys.modules, "ropeserve.plot", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    status, text = failed(capsys, *arguments)
    assert (status, text) == (
        1, f"ropeserve: {package} is missing: pip install ropeserve[{extra}]\n")

"""The package ropeserve_vectors (tests/conformance/vectors), and ropeserve by its cases."""
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import types
import zipfile

import numpy as np
import pytest

import ropeserve as rs

TESTS = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = TESTS / "conformance/vectors"
sys.path += [str(PACKAGE), str(TESTS / "peers")]

import ropeserve_vectors as vectors  # noqa: E402
import vectors as peers  # noqa: E402
from ropeserve_vectors import onnx  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::ropeserve.ConfigWarning")


def float32_angles(case):
    if case.must_be_refused or case.positions.ndim > 1:
        raise vectors.Unsupported("one axis of positions, and no config")
    inv_freq = np.array(case.golden["inv_freq_f64"], np.float32)
    angles = np.outer(case.positions.astype(np.float32), inv_freq)
    factor = np.float32(case.golden["attention_factor"])
    return vectors.rotate(case.x, factor * np.cos(angles), factor * np.sin(angles), case.pairing)


def other_pairing(case):
    other = "half" if case.pairing == "interleaved" else "interleaved"
    return vectors.rotate(case.x, case.cos, case.sin, other)


def outcomes(report):
    return {each.case.name: each.outcome for each in report.results}


def test_every_case_has_a_flag_and_a_reason():
    flags = json.loads((PACKAGE / "ropeserve_vectors/flags.json").read_text())
    files = {path.stem for path in (TESTS / "conformance/golden").glob("*.json")}
    assert flags["golden"].keys() == files
    found = list(vectors.cases())
    assert len({case.name for case in found}) == len(found) == sum(
        len(flags[kind]) for kind in ("golden", "wrong", "refuse"))
    assert all(case.flag in vectors.FLAGS and case.reason for case in found)
    counts = collections.Counter(case.flag for case in found)
    assert counts == {"valid": 17, "acceptable": 11, "invalid": 33}
    page = (PACKAGE / "README.md").read_text()
    for flag, count in counts.items():
        assert re.search(rf"^\| {flag} \|.*\| {count} \|$", page, re.MULTILINE)
    assert f"{len(found)} cases" in page


def test_the_page():
    block = re.search(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL)[1]

    def my_rope(x, positions, config, layer_type, seq_len):
        return rs.local(threads=1).rotate(x, positions=positions, config=config, pairing="half",
                                          layer_type=layer_type, seq_lens=[seq_len])

    names = {"my_rope": my_rope}
    exec(block, names)
    assert names["report"].passed and names["report"].skipped


def test_ropeserve_passes_all_with_the_exact_result():
    report = vectors.run(peers.ropeserve)
    assert not report.failed and not report.skipped, report
    assert {each.outcome for each in report.results} == {"exact", "refused", "avoided"}, report
    for each in report.results:
        assert each.outcome != "refused" or "config_json" in each.words, each.words


@pytest.mark.parametrize("name, compat", [
    ("dynamic_beyond_d96", "vllm"),
    ("longrope_attention_factor_r32", "llamacpp"),
    ("longrope_explicit_factor_d32", "vllm"),
    ("longrope_short_d32", "vllm"),
    ("yarn_attention_factor_betas_interleaved_r48", "deepseek"),
    ("yarn_mscale_alone_d64", "deepseek"),
    ("yarn_no_truncate_d96", "llamacpp"),
])
def test_other_readings_are_those_of_engines(name, compat):
    case, = vectors.cases("acceptable", name=name)
    result, = vectors.run(lambda each: peers.ropeserve(each, compat), [case]).results
    assert result.outcome == "reading" and result.words and result.error < 1e-6, result


def test_float32_angles_pass_and_are_told_from_exact_ones():
    report = vectors.run(float32_angles)
    assert not report.failed, report
    assert {each.case.positions.ndim for each in report.skipped if each.case.answers} == {2}
    found = outcomes(report)
    assert found["default_half_d64"] == "exact" and found["ragged_gqa_d32"] == "float32"
    assert {found[name] for name in found if "long_positions" in name or "1e9" in name} == {
        "float32"}


def test_the_other_pairing_fails_by_name():
    report = vectors.run(other_pairing, vectors.cases("valid"))
    assert len(report.failed) == 17, report
    assert {each.words for each in report.failed} == {"the other pairing"}
    found = outcomes(vectors.run(other_pairing, vectors.cases("invalid", name="*_as_*")))
    assert found == {"half_as_interleaved": "wrong", "interleaved_as_half": "wrong"}


def test_wrong_answers_are_known_and_are_not_within_the_tolerance_of_right_ones():
    wrong = {case.name: case for case in vectors.cases("invalid") if case.wrong}
    assert len(wrong) == 8
    report = vectors.run(lambda case: case.wrong.values, wrong.values())
    assert set(outcomes(report).values()) == {"wrong"}, report
    by_file = {case.name: case for case in vectors.cases("valid")}
    for case in wrong.values():
        right = by_file[case.golden["name"]]
        result, = vectors.run(lambda _, case=case: case.wrong.values, [right]).results
        assert result.outcome == "wrong", case.name


def raising(error):
    def function(_):
        raise error
    return function


@pytest.mark.parametrize("function, valid, to_refuse", [
    (lambda case: case.x, "wrong", "accepted"),
    (lambda case: case.x * np.nan, "wrong", "accepted"),
    (lambda case: case.q[:1], "wrong", "accepted"),
    (raising(ValueError("no")), "raised", "refused"),
    (raising(vectors.Unsupported("no")), "skipped", "skipped"),
], ids=["identity", "nan", "shape", "error", "unsupported"])
def test_outcomes(function, valid, to_refuse):
    report = vectors.run(function, [*vectors.cases(name="linear_d80"),
                                    *vectors.cases(name="refuse_theta_zero")])
    assert [each.outcome for each in report.results] == [valid, to_refuse]
    assert len(report.failed) == sum(each in vectors.FAILED for each in (valid, to_refuse))
    assert valid in str(report).splitlines()[-1]


def test_cases_are_chosen_by_what_they_are():
    found = list(vectors.cases(flag="valid", rope_type="yarn", pairing="interleaved"))
    assert [case.name for case in found] == ["yarn_mscale_mla_r64"]
    case, = found
    assert case.q.shape[1] == 2 and case.k.shape[1] == 1
    assert case.expected.shape == case.tolerance.shape == case.x.shape


@pytest.mark.parametrize("pairs, rotary_dim", [(32, 64), (16, 32), ("pairs", 64)])
def test_onnx_graphs_are_fed_by_the_names_of_their_inputs(monkeypatch, pairs, rotary_dim):
    """The session is replaced: the environment of the tests has no ONNX Runtime."""
    shapes = {"x": [1, "heads", "tokens", 64], "position_ids": [1, "tokens"],
              "cos_cache": ["rows", pairs], "sin_cache": ["rows", pairs]}

    def run(_, fed):
        rows = fed["position_ids"][0]
        turned = vectors.rotate(fed["x"][0].transpose(1, 0, 2), fed["cos_cache"][rows],
                                fed["sin_cache"][rows], "half")
        return [turned.transpose(1, 0, 2)[np.newaxis]]

    inputs = [types.SimpleNamespace(name=name, shape=shape) for name, shape in shapes.items()]
    session = types.SimpleNamespace(get_inputs=lambda: inputs, run=run)
    monkeypatch.setitem(sys.modules, "onnxruntime", types.SimpleNamespace(
        InferenceSession=lambda graph, providers: session))
    report = vectors.run(onnx.function("graph.onnx"))
    assert not report.failed, report
    ran = [each.case for each in report.results if each.outcome == "exact"]
    assert {(case.head_dim, case.rotary_dim, case.pairing) for case in ran} == {
        (64, rotary_dim, "half")}
    assert (rotary_dim < 64) != ("mrope_sections_d64" in {case.name for case in ran})
    assert all(each.words for each in report.skipped)
    inputs.append(types.SimpleNamespace(name="seqlens", shape=[1]))
    with pytest.raises(ValueError, match="seqlens"):
        onnx.function("graph.onnx")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The unpacked wheel. Nothing is fetched: the build backend is installed already."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check",
                    "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, PACKAGE],
                   check=True)
    wheel, = folder.glob("*.whl")
    project = (TESTS.parent / "CMakeLists.txt").read_text()
    version = re.search(r"RopeServe VERSION ([\d.]+)", project)[1]
    assert wheel.name == f"ropeserve_vectors-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
    return folder


def test_the_wheel_has_the_golden_files_of_the_tree(installed):
    golden = installed / "ropeserve_vectors/golden"
    for path in (TESTS / "conformance/golden").iterdir():
        assert (golden / path.name).read_bytes() == path.read_bytes()
    assert (installed / "ropeserve_vectors/flags.json").exists()


@pytest.mark.parametrize("function, status", [("right", 0), ("wrong", 1)])
def test_the_wheel_runs_a_function_by_name(installed, function, status):
    (installed / "mine.py").write_text(
        "import ropeserve_vectors as v\n"
        "right = lambda case: v.rotate(case.x, case.cos, case.sin, case.pairing)\n"
        "wrong = lambda case: v.rotate(case.x, case.cos, -case.sin, case.pairing)\n")
    ran = subprocess.run([sys.executable, "-B", "-m", "ropeserve_vectors", f"mine:{function}",
                          "--flag=valid"], cwd=installed, capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": ""})
    assert ran.returncode == status, ran
    assert ("17 exact" if status == 0 else "turned backwards") in ran.stdout

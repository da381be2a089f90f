"""Types: mypy --strict on the package, and on a program that uses it."""
import importlib.util
import pathlib
import shutil
import subprocess
import sys

import pytest

import ropeserve

PROGRAM = """
import numpy as np
import ropeserve as rs

with rs.local(threads=1) as rope:
    rope.rotate(np.ones((1, 2, 64)), model="llama-3.1-8b", start=5)
    rope.prepare(np.ones((1, 2, 64)), model="llama-3.1-8b").rotate_(np.ones((1, 2, 64)), start=5)
    description: rs.Description = rope.describe(config={"head_dim": 64})
    factor: float = description.attention_factor
    findings: list[rs.Finding] = rs.lint("config.json")
"""
# Modules that are left out where a package is not installed.
NEEDS = {"torch": ["torch.py", "integrations/__init__.py", "integrations/transformers.py",
                   "integrations/vllm.py"],
         "kernels": ["integrations/kernels.py"], "matplotlib": ["plot.py"]}
MISTAKES = {
    'rope.rotate(1, model="llama-3.1-8b", strat=5)': "strat",
    'rope.rotate(1, model=5, start=5)': '"model"',
    'rs.local(threads="2")': '"threads"',
    'rs.lint("config.json")[0].weigth': "weigth",
}


def mypy(folder, *arguments):
    return subprocess.run([sys.executable, "-m", "mypy", "--strict", f"--cache-dir={folder}/cache",
                           *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The package, with a stub of its extension module."""
    if importlib.util.find_spec("mypy") is None or importlib.util.find_spec("nanobind") is None:
        pytest.skip("mypy or nanobind is not installed")
    made = tmp_path_factory.mktemp("types")
    shutil.copytree(pathlib.Path(ropeserve.__file__).parent, made / "ropeserve")
    for needed, names in NEEDS.items():
        if importlib.util.find_spec(needed) is None:
            for name in names:
                (made / "ropeserve" / name).unlink()
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "ropeserve._core",
                    "-o", made / "ropeserve" / "_core.pyi"], check=True)
    return made


def test_the_package_is_strictly_typed(folder):
    said = mypy(folder, "ropeserve").stdout.splitlines()
    assert [line for line in said if "error:" in line and "_core.pyi" not in line] == []


def test_a_program_is_checked_against_it(folder):
    (folder / "right.py").write_text(PROGRAM)
    assert "right.py" not in mypy(folder, "right.py").stdout
    for number, line in enumerate(MISTAKES):
        (folder / f"wrong_{number}.py").write_text(f"{PROGRAM}    {line}\n")
    done = mypy(folder, *(f"wrong_{number}.py" for number in range(len(MISTAKES))))
    for number, said in enumerate(MISTAKES.values()):
        assert any(line.startswith(f"wrong_{number}.py") and said in line
                   for line in done.stdout.splitlines()), done.stdout

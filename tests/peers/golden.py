"""Writes one golden file per rotary class, for tests/conformance/golden_test.cc."""

import json
import pathlib

import numpy
import peer
import transformers

FOLDER = pathlib.Path(__file__).resolve().parent / "golden"
KEPT_TOKENS = 2
# Keys that have nothing to do with a rotation and make the files long.
UNRELATED = (
    "id2label",
    "label2id",
    "vocab_size",
    "mlp_layer_types",
    "architectures",
    "transformers_version",
)


def _shortest(values):
    """Numbers with the fewest digits that read back to the same float32."""
    return [float(str(v)) for v in numpy.asarray(values, dtype="float32").ravel()]


def write(rotary, case):
    config = json.loads(case.config_json)
    config = {key: value for key, value in config.items() if key not in UNRELATED}
    kept = slice(0, KEPT_TOKENS)
    document = {
        "format": "rope-peer-1",
        "class": rotary.name,
        "source": f"transformers {transformers.__version__}, {rotary.source}",
        "config": config,
        "layer_type": case.layer_type,
        "seq_len": int(case.positions.max()) + 1,
        "positions": case.positions[..., 0, kept].tolist()
        if case.positions.ndim == 3
        else case.positions[:, kept].tolist(),
        "inv_freq": sorted(_shortest(case.theirs.inv_freq)) if peer.keeps(rotary) else None,
        "q": _shortest(case.inputs[0][0, 0, kept]),
        "q_out": _shortest(case.theirs.q[0, 0, kept]),
    }
    FOLDER.mkdir(exist_ok=True)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items())
    (FOLDER / f"{rotary.name}.json").write_text("{\n" + lines + "\n}\n")

"""Small configs and params.json files whose scale of attention record_scale.py records.

scale_cases.json has them: `configs`; `adapted`, configs as vLLM's adapter makes them of
Mistral's params.json; `families`, of configs with multi-head latent attention without their rope,
each of which gets rope_parameters of `settings`; and `params`, params.json files. `kept` and
`params_kept` are the keys of a config that its row of the record has.
"""

import json

import records

_DATA = json.loads((records.HERE / "scale_cases.json").read_text())
KEPT, PARAMS_KEPT = _DATA["kept"], _DATA["params_kept"]


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


def cases(engine):
    """(name, config) of each case, for hf or vllm."""
    yield from _DATA["configs"].items()
    if engine == "vllm":
        yield from _DATA["adapted"].items()
    yield from _mla_cases(engine)


def params_cases():
    """(name, params.json) of each case."""
    return _DATA["params"].items()

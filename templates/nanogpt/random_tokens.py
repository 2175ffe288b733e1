"""Write a data set of random tokens as nanoGPT reads it: train.bin and val.bin of uint16, meta.pkl
with the vocabulary.

    python random_tokens.py VOCABULARY TOKENS FOLDER

Python 3.8 or newer, standard library only. The same arguments give the same files.
"""

import array
import pickle
import random
import sys
from pathlib import Path

vocabulary, tokens, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
if not 2 <= vocabulary <= 1 << 16:
    raise SystemExit(f"VOCABULARY: expected 2 to 65536, which uint16 holds, got {vocabulary}")
folder.mkdir(parents=True, exist_ok=True)
chance = random.Random(0)
for name in ("train", "val"):
    numbers = array.array("H", chance.choices(range(vocabulary), k=tokens))
    (folder / f"{name}.bin").write_bytes(numbers.tobytes())
(folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": vocabulary}))

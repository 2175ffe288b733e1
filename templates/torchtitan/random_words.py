"""Write a tokenizer of 2,000 words and documents of random words, as torchtitan reads them: one
word is one token.

    python random_words.py TOKENIZER WORDS

TOKENIZER becomes a folder with tokenizer.json in the format of Hugging Face's tokenizers, WORDS one
with a data set of 8,192 documents of 510 words, which with begin and end are 512 tokens. Python 3.8
or newer, standard library only. The same text every time.
"""

import json
import random
import sys
from pathlib import Path

DOCUMENTS, LENGTH = 8192, 510
SPECIAL = ["<unk>", "<s>", "</s>"]
words = [f"w{number}" for number in range(2000)]

tokenizer, data = Path(sys.argv[1]), Path(sys.argv[2])
tokenizer.mkdir(parents=True, exist_ok=True)
data.mkdir(parents=True, exist_ok=True)
vocabulary = {word: number for number, word in enumerate([*SPECIAL, *words])}
content = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
}
(tokenizer / "tokenizer.json").write_text(json.dumps(content))
(tokenizer / "tokenizer_config.json").write_text(
    json.dumps({"bos_token": "<s>", "eos_token": "</s>"})
)
chance = random.Random(0)
with (data / "data.json").open("w") as file:
    for _ in range(DOCUMENTS):
        file.write(json.dumps({"text": " ".join(chance.choices(words, k=LENGTH))}) + "\n")

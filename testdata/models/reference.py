"""Make the stored references of a model directory with PyPI transformers and tokenizers.

Tests only read what this writes; nothing here runs at build or test time.

    pip install torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3 safetensors numpy
    python reference.py logits  DIR [-o FILE]      # DIR/reference.safetensors
    python reference.py vectors DIR [-o FILE]      # DIR/tokenizer_vectors.json (texts, their ids; SHA-256 of
                                                   # the int32 ids of valid.txt); needs tokenizers only
    python reference.py compare DIR                # largest difference between a fresh run and DIR/reference.safetensors

logits: float32 arithmetic on the stored weights, eager attention, one thread. For each prompt i: ids_i
(int32 [T], BOS first), logits_i (float32 [T,V], every position) and greedy_i (int32 [24]); the last i is
one window of 200 tokens from DIR/valid.txt, without greedy_i.
"""

import argparse
import hashlib
import json
import os
import struct

PROMPTS = [
    "In the beginning God created",
    "And Moses said unto the children of Israel,",
    "Blessed are they that mourn: for they shall be",
]
GREEDY = 24
WINDOW = 200

# Texts whose ids a tokenizer has to get right: splitting, white space, bytes that are not in any merge.
TEXTS = PROMPTS + [
    "",
    " ",
    "  ",
    "   leading spaces",
    "trailing spaces   ",
    "two  spaces   three    four",
    "tab\tseparated\t\tvalues",
    "line\nbreak",
    "two\n\nbreaks",
    "three\n\n\nbreaks and \n mixed \t\n white space ",
    "\n",
    "\r\n",
    "carriage\r\nreturn",
    "a\u00a0no-break\u2003em space\u3000ideographic",
    "it's I'll we've they're he'd I'm don't 's 't",
    "IT'S I'LL WE'VE",
    "the end.\u2019s typographic \u201cquotes\u201d \u2014 dash\u2026",
    "Hello, world!",
    "HELLO WORLD",
    "MiXeD cAsE",
    "0",
    "1234567890",
    "3.14159, 2.71828e-10 and 1,000,000",
    "\u0663\u0664\u0665 \u00bd \u00b2 \u2167",
    "a1b2c3 x86_64 utf8",
    "!!!???...---___***",
    "(parentheses) [brackets] {braces} <angles>",
    "e-mail@example.com https://example.com/path?query=1&b=2#fragment",
    "for (int i = 0; i < n; ++i) { a[i] += b[i]; }",
    "def f(x):\n    return x ** 2  # square\n",
    "func main() {\n\tfmt.Println(\"hi\")\n}\n",
    "{\"key\": [1, 2.5, null, true], \"nested\": {\"a\": \"b\"}}",
    "SELECT * FROM t WHERE a = 'b''c';",
    "\\ backslash \\n not a break",
    "caf\u00e9 na\u00efve \u00fcber stra\u00dfe",
    "cafe\u0301 combining",
    "\u0394\u03b5\u03bb\u03c6\u03bf\u03af \u041c\u043e\u0441\u043a\u0432\u0430 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\U0001f600",
    "smile \U0001f600\U0001f603 family \U0001f468\u200d\U0001f469\u200d\U0001f467 flag \U0001f1e9\U0001f1ea",
    "thumbs \U0001f44d\U0001f3fd up",
    "\U00020000\U0001d4d0 outside the first plane",
    "zero\u200bwidth \ufeffmark",
    "control \x00\x01\x02\x1b[31m\x7f end",
    "\x85next\u2028line\u2029separators",
    "\x1c\x1d\x1e\x1f information separators",
    "a" * 50,
    "ab" * 40,
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "Mahershalalhashbaz" * 8,
    "aaa bbbb ccccc  ddddd",
    "eeee ssss llll tttt oooo .... ,,,, ;;;;",
    "hahahahaha nananana sesesese",
    "<s>",
    "</s> begins <s>and</s><pad> ends",
    "<s></s><s></s>",
    "not<s>special? < s > <S> <<s>>",
    "And the LORD spake unto Moses, saying,\nSpeak unto the children of Israel.\n\nNow these are the names",
    "\ufffd replacement",
    "x" + " " * 30 + "y",
    "\n" * 7 + "z",
]


def logits(directory):
    import numpy as np
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
    bos = [model.config.bos_token_id]
    out = {}
    rows = [bos + tokenizer.encode(p, add_special_tokens=False).ids for p in PROMPTS]
    with open(os.path.join(directory, "valid.txt"), encoding="utf-8") as f:
        rows.append((bos + tokenizer.encode(f.read(), add_special_tokens=False).ids)[:WINDOW])
    with torch.no_grad():
        for i, ids in enumerate(rows):
            out[f"ids_{i}"] = np.array(ids, dtype=np.int32)
            out[f"logits_{i}"] = model(torch.tensor([ids])).logits[0].numpy().astype(np.float32)
            if i < len(PROMPTS):
                for _ in range(GREEDY):
                    ids = ids + [int(model(torch.tensor([ids])).logits[0, -1].argmax())]
                out[f"greedy_{i}"] = np.array(ids[-GREEDY:], dtype=np.int32)
    return out


def vectors(directory):
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
    out = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        out.append({
            "text": text,
            "ids": ids,
            "decoded": tokenizer.decode(ids, skip_special_tokens=False),
            "decoded_without_special": tokenizer.decode(ids, skip_special_tokens=True),
        })
    with open(os.path.join(directory, "valid.txt"), encoding="utf-8") as f:
        ids = tokenizer.encode(f.read(), add_special_tokens=False).ids
    digest = hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()
    return {"tokenizers": tokenizers.__version__, "valid.txt": {"ids": len(ids), "sha256": digest}, "vectors": out}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["logits", "vectors", "compare"])
    parser.add_argument("directory")
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    if args.what == "logits":
        from safetensors.numpy import save_file
        save_file(logits(args.directory), args.output or os.path.join(args.directory, "reference.safetensors"))
    elif args.what == "vectors":
        with open(args.output or os.path.join(args.directory, "tokenizer_vectors.json"), "w", encoding="ascii") as f:
            v = vectors(args.directory)
            lines = ",\n".join(json.dumps(x) for x in v["vectors"])
            head = json.dumps({k: v[k] for k in v if k != "vectors"})
            f.write('%s, "vectors": [\n%s\n]}\n' % (head[:-1], lines))
    else:
        import numpy as np
        from safetensors.numpy import load_file
        fresh, stored = logits(args.directory), load_file(os.path.join(args.directory, "reference.safetensors"))
        if sorted(fresh) != sorted(stored):
            raise SystemExit(f"tensors differ: {sorted(fresh)} and {sorted(stored)}")
        for name in sorted(stored):
            if fresh[name].shape != stored[name].shape:
                raise SystemExit(f"{name}: shape {fresh[name].shape}, stored {stored[name].shape}")
            print(f"{name}: largest difference {np.abs(fresh[name].astype(np.float64) - stored[name]).max():.3g}")


if __name__ == "__main__":
    main()

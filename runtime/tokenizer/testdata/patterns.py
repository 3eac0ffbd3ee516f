"""Write patterns.json: how PyPI tokenizers splits texts by patterns, published and random ones.

    pip install tokenizers==0.23.3
    python patterns.py patterns.json

Each entry is [pattern, [[text, lengths], ..]]: the lengths in characters of the pieces of text when matches are
isolated. Random patterns are made of what the package supports, but some can match nothing, which it refuses.
"""

import json
import random
import sys

from tokenizers import Regex, pre_tokenizers

import kinds

PATTERNS = [
    kinds.GPT2, kinds.LLAMA3, kinds.QWEN2, kinds.CL100K, kinds.O200K, kinds.KIMI, kinds.BLOOM,
    r"\p{N}{1,3}+", r"(?>\p{N}{1,3})", r"\s+$", r"\s++$", r"\s+\z", r"(?i:'s|'t)", r"(?i)'s|x", r"[\p{L}&&[^\p{Han}]]+", r"[a-z&&[^b]c-e]+", r"\p{^L}+", r"\P{L}+", r"[^\P{L}]+",
    r"a+?b?", r"a{2,}?", r"[\x41-\x43\u0044\t\/\-]+", r"\x{41}+", r".+", r"[]a]+", r"[a\]]+", r"[a-]+", r"[\w-]+", r"[+--]+", r"a\{", "a{", "a{x}", "{|}", "a{1", "a]", r"\p{Letter}+", r"\p{uppercase letter}",
    r"\d+(?=\s)|\w", r"\h+", r"\H+", r"\D+", r"\W+", r"(a|b)*c", r"(?:ab?){2,3}", r"[^\r\n]+|\r?\n", r"\p{Hiragana}+|\p{Katakana}+", r"\p{Arabic}+", r"[ -~]+", r"(?i:k)", r"(?i:[a-c]x)",
    r" ?\p{Lu}\p{Ll}+| ?\p{Lu}+(?!\p{Ll})|.", r"\s*[\r\n]|\s+(?!\S)|\s|\S+", r"(?-i:a)|(?i:b(?-i:c))",
]
TEXTS = [
    "a \n b  \nc  ", "Hello (x|y) a.b|c, d[e] it's IT'S 'S'ſ", "1234567 12 ٣٤٥½", "aaab abab cac xAX-/ABCD+,-.", "日本語テキスト abc漢字def مرحبا\r\n\r\nÉé K k KK", "a{x} a{1 {a} ]a[b a] HTTPServer2Go",
    "x  \u3000\u00a0\u2003 y\t\t z\u2028\u0085w  ", "Kk'Ss BX bx BC bC fFgG",
]
ATOMS = ["a", "b", "c", "[ab]", "[^a]", r"\s", r"\S", r"\p{L}", ".", r"\n", " ", r"\d", r"\w", "[a-c&&[^b]]", r"[^\s\p{L}]", r"\p{^N}", "é", "[^(b|c)]"]


def repeated(r, x, single):
    if r.random() < 0.45:
        return x
    s = r.choice(["*", "+", "?", "{1,2}", "{2}", "{,2}", "{1,}", "{2,3}"])
    if r.random() < 0.2 and s != "{2}":
        s += "?"
    elif r.random() < 0.2 and single:
        s += "+"
    return x + s


def pattern(r, depth):
    out = []
    for _ in range(r.choice([1, 1, 2, 3])):
        sequence = []
        for _ in range(r.randrange(1, 4)):
            k = r.random()
            if k < 0.15 and depth:
                sequence.append(repeated(r, r.choice(["(?:", "("]) + pattern(r, depth - 1) + ")", False))
            elif k < 0.22:
                sequence.append(r.choice([r"(?!\S)", "(?=a)", "$", r"\z", "(?![ab])", r"(?=\s)", "(?!a|b)"]))
            elif k < 0.27:
                sequence.append(repeated(r, "(?i:" + r.choice(["a", "b", "'s", "k"]) + ")", False))
            elif k < 0.31:
                sequence.append("(?>" + r.choice(ATOMS) + r.choice(["*", "+", "?"]) + ")")
            else:
                sequence.append(repeated(r, r.choice(ATOMS), True))
        out.append("".join(sequence))
    return "|".join(out)


def main(path):
    r = random.Random(7)
    patterns = list(PATTERNS)
    while len(patterns) < 400:
        p = pattern(r, 2)
        try:
            Regex(p)
        except Exception:  # it repeats a condition
            continue
        patterns.append(p)
    out = []
    for p in patterns:
        split = pre_tokenizers.Split(Regex(p), "isolated")
        texts = TEXTS if p in PATTERNS else ["".join(r.choice("aab bc\n1é.AKſ's") for _ in range(r.randrange(1, 16))) for _ in range(6)]
        out.append([p, [[t, [b - a for _, (a, b) in split.pre_tokenize_str(t)]] for t in texts]])
    with open(path, "w", encoding="utf-8") as f:
        f.write("[" + ",\n".join(json.dumps(x, ensure_ascii=True, separators=(",", ":")) for x in out) + "]\n")


if __name__ == "__main__":
    main(sys.argv[1])

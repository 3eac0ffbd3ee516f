"""Write ../unicode.bin: what PyPI tokenizers holds every code point to be, asked code point by code point.
Or write normal.json: random texts and their normalisation forms.

    pip install tokenizers==0.23.3
    python unicode.py tables ../unicode.bin
    python unicode.py texts normal.json

The tables file is a list of tables. Each begins with a byte of length and its name; then, as unsigned varints,
the number of entries and the entries, in order of code points:

  a set              gap to the range from the end of the last one, length of the range - 1
  NFD, NFKD          gap to the code point from the one after the last, bytes of UTF-8, the UTF-8

Sets: the general categories and scripts of the library's regular expressions and their word characters
(word); digits and punctuation of the pre-tokenizers of these names (numeric, punctuation); the word
characters around single_word tokens (boundary); composites that NFC composes (compose); one set for each
combining class (ccc1 .. ccc240). NFD and NFKD are full decompositions without Hangul syllables, NFKD only where it differs.
"""

import json
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
SCRIPTS = (
    "Arabic Armenian Bengali Bopomofo Cyrillic Devanagari Ethiopic Georgian Greek Gujarati Gurmukhi Han Hangul "
    "Hebrew Hiragana Kannada Katakana Khmer Lao Latin Malayalam Mongolian Myanmar Oriya Sinhala Tamil Telugu Thai Tibetan"
).split()
POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
TEXT = "".join(map(chr, POINTS))


def varint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def table(name, entries):
    return bytes([len(name)]) + name.encode() + varint(len(entries)) + b"".join(entries)


def points(name, members):
    members, entries, end, i = sorted(members), [], 0, 0
    while i < len(members):
        j = i
        while j + 1 < len(members) and members[j + 1] == members[j] + 1:
            j += 1
        entries.append(varint(members[i] - end) + varint(j - i))
        end = members[j] + 1
        i = j + 1
    return table(name, entries)


def removed(splitter):
    """Code points that splitter removes from a text of all of them."""
    left = set()
    for _, (a, b) in splitter.pre_tokenize_str(TEXT):
        left.update(range(a, b))
    return [c for i, c in enumerate(POINTS) if i not in left]


def regex(pattern):
    return removed(pre_tokenizers.Split(Regex(pattern), "removed"))


def numeric():
    digits = pre_tokenizers.Digits(individual_digits=True)
    return [c for c in POINTS if len(digits.pre_tokenize_str("a" + chr(c) + "a")) == 3]


def boundary():
    """Code points that keep a single_word token before them from being one."""
    t = Tokenizer(models.BPE({"?": 0}, [], unk_token="?"))
    t.add_tokens([AddedToken("X", single_word=True)])
    out = []
    for i in range(0, len(POINTS), 5000):
        batch = POINTS[i : i + 5000]
        for c, e in zip(batch, t.encode_batch(["X" + chr(c) for c in batch])):
            if 1 not in e.ids and chr(c) != "X":
                out.append(c)
    return sorted(out + [ord("X")])


def classes(nfd):
    """Combining classes that the library orders by; the values are those of unicodedata, which never change."""
    out = {}
    for c in POINTS:
        k = unicodedata.combining(chr(c))
        if k == 0:
            continue
        low, high = ("\u0334", "\u0345") if 1 < k < 240 else ("", "\u0345") if k == 1 else ("\u0334", "")
        if (low and nfd("a" + chr(c) + low) == "a" + low + nfd(chr(c))) or (high and nfd("a" + high + chr(c)) == "a" + nfd(chr(c)) + high):
            out.setdefault(k, []).append(c)
    return out


def decompositions(name, form, than=None):
    entries, end = [], 0
    for c in POINTS:
        d = form(chr(c))
        if 0xAC00 <= c <= 0xD7A3 or d == (than(chr(c)) if than else chr(c)):
            continue
        b = d.encode()
        entries.append(varint(c - end) + varint(len(b)) + b)
        end = c + 1
    return table(name, entries)


def texts(path):
    r = random.Random(3)
    forms = [getattr(normalizers, f)().normalize_str for f in ("NFC", "NFD", "NFKC", "NFKD")]
    # What composes, what orders, Hangul, compatibility; and whatever else decomposes.
    near = "aeoAEy\u0301\u0327\u0328\u0323\u0307\u0345\u0334\u3099\u093c\u05bc\u0f72\u1100\u1161\u1175\u11a8\u11c2\uac00\uac01\ud788\u212b\u1e9b\ufb01\uff76\uff9e\u0344\u0958\ufdfa\u2126\U0001d15e\U00011131\U00011127 "
    all = [chr(c) for c in POINTS if forms[3](chr(c)) != chr(c) or unicodedata.combining(chr(c))]
    out = []
    for i in range(500):
        pick = near if i % 2 else r.sample(all, 12) + list("ae ")
        text = "".join(r.choice(pick) for _ in range(r.randrange(1, 40)))
        out.append([text] + [f(text) for f in forms])
    with open(path, "w") as f:
        f.write("[" + ",\n".join(json.dumps(x, separators=(",", ":")) for x in out) + "]\n")


def tables(path):
    nfc, nfd, nfkd = (getattr(normalizers, f)().normalize_str for f in ("NFC", "NFD", "NFKD"))
    out = [points(c, regex(r"\p{%s}+" % c)) for c in CATEGORIES + SCRIPTS]
    out.append(points("word", regex(r"\w+")))
    out.append(points("numeric", numeric()))
    out.append(points("punctuation", removed(pre_tokenizers.Punctuation("removed"))))
    out.append(points("boundary", boundary()))
    out.append(points("compose", [c for c in POINTS if nfd(chr(c)) != chr(c) and nfc(chr(c)) == chr(c) and not 0xAC00 <= c <= 0xD7A3]))
    for k, members in sorted(classes(nfd).items()):
        out.append(points("ccc%d" % k, members))
    out.append(decompositions("NFD", nfd))
    out.append(decompositions("NFKD", nfkd, nfd))
    with open(path, "wb") as f:
        f.write(b"".join(out))


if __name__ == "__main__":
    {"tables": tables, "texts": texts}[sys.argv[1]](sys.argv[2])

"""Write kinds/*.json: small tokenizers of every kind and what PyPI tokenizers makes of texts with them.

    pip install tokenizers==0.23.3
    python kinds.py kinds

Tests only read what this writes. Each file has the tokenizer.json (tokenizer); for each text of texts.json
its ids (ids) and the text of the ids with and without special tokens (decoded, plain: null where it is the text
itself); the ids of the prompt "Hi there" with what belongs around it (prompt); and random ids with their texts (lists).
"""

import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = """
The river was wide and the bridge was old, so we walked across it one at a time. Nobody said anything until the
last of us had come over; then everybody spoke at once. It's a thing I'll remember. They'd said we couldn't, and we've done it.
She counted 1, 2, 3, 10, 42, 100, 1999, 2024 and 123456789 stones; 3.14159 is not a number of stones. Don't ask why.
WHERE THE SHIP WENT DOWN THERE IS NOTHING NOW. CamelCaseNames and snake_case_names and kebab-case-names, e.g. HTTPServer2.
for (int i = 0; i < 10; i++) { sum += values[i]; }  // add them up
def function(argument, other=None):
    if argument is None:
        return [x ** 2 for x in range(10)]
    return {"key": "value", 'list': [1, 2.5, true, null]}
https://example.org/path/to/page?query=string&other=1#top someone@example.org
Der Fluss war breit und die Brücke alt; größer als früher. Übung macht den Meister. Straße, naïve café, façade, señor.
Река была широкая, а мост старый. Ё и ё. Ο ποταμός ήταν πλατύς. النهر واسع والجسر قديم. הנהר רחב והגשר ישן.
河很宽，桥很旧。我们一个一个地走过去。川は広く、橋は古かった。カタカナとひらがな。강은 넓고 다리는 오래되었다.
नदी चौड़ी थी और पुल पुराना। แม่น้ำกว้างและสะพานเก่า Dòng sông rộng và cây cầu cũ.
😀 😃 👍🏽 👨‍👩‍👧 🇩🇪 ❤️ → ≤ ≥ ∑ √ ∞ ½ ² ³ Ⅷ ٣٤٥ १२३ — “quoted” ‘single’ … • · « » ¿ ¡
the the the and and of of to to in in a a that that is is was was he he for for it it with with as as his his on on
"""

SPECIAL = ["<unk>", "<s>", "</s>"]

# Texts in which something is likely to go wrong.
TEXTS = [
    "", " ", "  ", "   leading", "trailing   ", "two  spaces   three    four     five", "\t", "tab\tseparated\t\tvalues", "\n", "\n\n", "\r\n", "\r",
    "line\nbreak", "two\n\nbreaks", "three\n\n\nbreaks and \n mixed \t\n white space ", "carriage\r\nreturn\r\n\r\nend", " \n \n", "x \n", "x\n x", "a  \n  b", "\n \t\n  ",
    "a\u00a0no-break\u2003em\u3000ideographic\u2028line\u2029paragraph\u0085next", "\u00a0\u00a0x", "x\u200b\u200by\ufeffz", "\u1680ogham\u180emongol",
    "it's I'll we've they're he'd I'm don't 's 't 're", "IT'S I'LL WE'VE THEY'RE HE'D I'M", "It’s we’ll", "'S'T'Ll'vE'\u017f", "''s", "s's's", "o'clock 'tis 'em",
    "Hello, world!", "HELLO WORLD", "MiXeD cAsE wOrDs", "HTTPServer2Go XMLHttpRequest iPhone", "ǅungla ǈ ʰ ª º", "0", "1234567890", "12 345 6789 12345", "3.14159, 2.71828e-10 and 1,000,000",
    "٣٤٥ १२३ ৪৫৬ ½ ² ³ Ⅷ ① 𝟘𝟙 ㊿ 〇 一二三", "a1b2c3 x86_64 utf8 4x4", "007 00 000 0000", "!!!???...---___***", "(parentheses) [brackets] {braces} <angles>", " .,;:!? ", "a.b.c...d!", "$100 €5 £3 ¥7 100%",
    "e-mail@example.com https://example.com/path?query=1&b=2#fragment", "for (int i = 0; i < n; ++i) { a[i] += b[i]; }", "def f(x):\n    return x ** 2  # square\n",
    "func main() {\n\tfmt.Println(\"hi\")\n}\n", '{"key": [1, 2.5, null, true], "nested": {"a": "b"}}', "SELECT * FROM t WHERE a = 'b''c';", "\\ backslash \\n not a break", "#!/bin/sh\nset -e\n", "<|a|><b></b><0x41><0xE4>", "if a&&b||c!=d{e<<=2}",
    "café naïve über straße", "cafe\u0301 nai\u0308ve combining", "a\u0327\u0301 a\u0301\u0327 order", "\u0301alone", "x\u0301\u0302\u0303\u0304\u0305y", "\u1e9b\u0323 \u212b \u2126 \ufb01 \u00e5", "\u0344 \u0958 \ufb1d \U0001d15e",
    "Δελφοί Μόσχα Москва שלום مرحبا", "العربية نصّ بحركاتٍ", "עִבְרִית", "你好，世界。", "日本語のテキスト、カタカナ。", "한국어 문장입니다", "\u1112\u1161\u11ab\u1100\u116e\u11a8 jamo", "नमस्ते दुनिया", "สวัสดีชาวโลก", "ខ្មែរ မြန်မာ བོད་", "中文English混合123文本", "𠀀𠀁 𝓐𝓑 𐐷",
    "😀", "smile 😀😃 family 👨‍👩‍👧 flag 🇩🇪", "thumbs 👍🏽 up ❤️ ❤", "1️⃣ keycap #️⃣", "emoji😀in😀words", "→←↑↓ ≤≥≠ ∑∏√∞", "♥♦♣♠ ☺☻ ©®™",
    "zero\u200dwidth\u200cjoiner\u2060word", "\u202eright to left\u202c", "control \x00\x01\x02\x1b[31m\x7f end", "\x1c\x1d\x1e\x1f separators", "\x0b\x0c vertical", "\ufffd replacement \ufffe\uffff", "\U0010ffff\U000e0001", "\ue000 private \U000f0000",
    "\u0378 unassigned \U0001fbfa", "<unk>", "<s>", "</s>", "a<s>b</s> c", "<s> <s>", " <s> ", "<s", "s>", "<<s>>", "<s>\n</s>", "▁", "▁▁", "a▁b ▁c", " ▁ ", "Ġ Ċ â", "Ġword", "##ing", "@@ \u2581<s>\u2581",
    "The quick brown fox jumps over the lazy dog. " * 3, "word " * 20, "a" * 70, "ab" * 100, " " * 67, "\n" * 33, "=" * 65, "0" * 50, "很" * 40, "é" * 33, "e\u0301" * 33, "😀" * 20,
    "Supercalifragilisticexpialidocious" * 4, "pneumonoultramicroscopicsilicovolcanoconiosis", "aGVsbG8gd29ybGQhIFRoaXMgaXMgYmFzZTY0IHRleHQu" * 3, "ACGTACGTTTGACA" * 6, "the" * 30, "in the river the bridge",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit.", "«guillemets» “quotes” ‘single’ – dash — em … ellipsis", "x²+y³=z½", "H₂O CO₂ m³", "¿Qué? ¡No!", "Ǆ ǅ ǆ ß ẞ ŉ ı İ K Å", "a\u0300\u0315\u0320b", "q\u0307\u0323 \u1e69 s\u0323\u0307",
    "[tok] [tok]s x[tok] [tok]", "  [left]  [right]  x", "a [left] b[right] c [both] d", "word wordy aword word.", "  pad  \n pad\t", "[é] [e\u0301] \u212b[x]", "[tok][tok]", "[tok [tok]] ][tok]", "[long] [longer] [longe]", "    [sp]      [sp]", "\u00a0[left]\u2003[right]\u3000",
    "[left][left] [left]", "[right] [right]  ", "[both] [both]  [both]", "_word word_ 1word word1 word\u0301 word\u200d", "[UPPER] upper", "  three   spaces",
]


def byte_level(corpus_pre, size=620, normalizer=None, pre=None, specials=SPECIAL, decoder=None, **model):
    t = Tokenizer(models.BPE(**model))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre or corpus_pre
    t.decoder = decoder or decoders.ByteLevel()
    t.train_from_iterator(
        CORPUS.split("\n") + [CORPUS],
        trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    return t


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def bytes_after(*steps):
    return pre_tokenizers.Sequence(list(steps) + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_CODER = [
    split(r"[\r\n]"),
    split(r"\s?\p{L}+"),
    split(r"\s?\p{P}+"),
    split(r"[一-龥ࠀ-一가-퟿]+"),
    pre_tokenizers.Digits(individual_digits=True),
]
DEEPSEEK_LLM = [
    split(r"[\r\n]"),
    split(r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ϿḀ-ỿ]+"),
    split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
    split(r"\s+$"),
    split(r"[一-龥ࠀ-一가-퟿]+"),
    pre_tokenizers.Digits(individual_digits=True),
]
DEEPSEEK_V3 = [
    split(r"\p{N}{1,3}"),
    split(r"[一-龥぀-ゟ゠-ヿ]+"),
    split(
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    ),
]
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def template(t, single, *tokens):
    return processors.TemplateProcessing(single=single, pair=single + " $B:1", special_tokens=[(x, t.token_to_id(x)) for x in tokens])


def odd_tokens(normalized):
    return [
        AddedToken("[tok]", normalized=normalized), AddedToken("[left]", lstrip=True, normalized=normalized), AddedToken("[right]", rstrip=True, normalized=normalized),
        AddedToken("[both]", lstrip=True, rstrip=True, normalized=normalized), AddedToken("word", single_word=True, normalized=normalized), AddedToken("[é]", normalized=normalized),
        AddedToken("[long]", normalized=normalized), AddedToken("[longe", normalized=normalized), AddedToken("[longer]", normalized=normalized), AddedToken("   ", normalized=normalized),
        AddedToken("[sp]", lstrip=True, special=True, normalized=normalized), AddedToken("pad", single_word=True, lstrip=True, rstrip=True, normalized=normalized), AddedToken("\n\n", normalized=normalized),
    ]


def sentence_piece(size=500, fallback=True, extra=(), drop=(), **kind):
    """Pairs are learned on words that begin with a metaspace; the vocabulary is special tokens, bytes, pairs, characters."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator(CORPUS.replace("\n", " ").split("  "), trainers.BpeTrainer(vocab_size=size, limit_alphabet=90, special_tokens=[], show_progress=False))
    learned = json.loads(t.to_str())["model"]
    vocab = {}
    for token in SPECIAL + (["<0x%02X>" % b for b in range(256) if b not in drop] if fallback else []):
        vocab[token] = len(vocab)
    merges = [tuple(m) for m in learned["merges"]] + list(extra)
    for token in sorted(learned["vocab"], key=learned["vocab"].get):
        vocab[token] = len(vocab)
    for a, b in extra:
        for token in (a, b, a + b):
            vocab.setdefault(token, len(vocab))
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=kind.get("unk", "<unk>"), fuse_unk=kind.get("fuse", True), byte_fallback=fallback))
    t.normalizer = kind.get("normalizer")
    t.pre_tokenizer = kind.get("pre")
    t.decoder = kind.get("decoder") or llama_decoder(1)
    t.add_special_tokens([AddedToken(s, normalized=False) for s in SPECIAL])
    return t


RUNS = [("▁", "▁"), ("▁▁", "▁▁"), ("▁▁▁▁", "▁▁▁▁"), ("▁▁▁", "▁")]


def llama_decoder(strip):
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", strip, 0)] if strip else []))


def kinds():
    N, P, D = normalizers, pre_tokenizers, decoders
    plain = P.ByteLevel(add_prefix_space=False)
    yield "gpt2", byte_level(plain)
    yield "gpt2-prefix", byte_level(P.ByteLevel(add_prefix_space=True))
    yield "gpt2-split", byte_level(bytes_after(split(GPT2)))
    t = byte_level(bytes_after(split(LLAMA3)), ignore_merges=True)
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template(t, "<s> $A", "<s>")])
    yield "llama3", t
    t = byte_level(bytes_after(split(QWEN2)), normalizer=N.NFC())
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    yield "qwen2", t
    yield "cl100k", byte_level(bytes_after(split(CL100K)))
    yield "cl100k-removed", byte_level(bytes_after(split(LLAMA3, "removed", True)))
    t = byte_level(bytes_after(split(O200K)))
    t.post_processor = template(t, "<s> $A </s>", "<s>", "</s>")
    yield "o200k", t
    yield "kimi", byte_level(bytes_after(split(KIMI)))
    yield "deepseek-coder", byte_level(bytes_after(*DEEPSEEK_CODER), normalizer=N.Sequence([]))
    yield "deepseek-llm", byte_level(bytes_after(*DEEPSEEK_LLM))
    yield "deepseek-v3", byte_level(bytes_after(*DEEPSEEK_V3))
    yield "starcoder", byte_level(P.Sequence([P.Digits(individual_digits=True), plain]))
    yield "falcon", byte_level(P.Sequence([P.Punctuation("contiguous"), plain, P.Digits(individual_digits=False), split("[0-9][0-9][0-9]")]))
    yield "bloom", byte_level(bytes_after(split(BLOOM)))
    t = byte_level(plain, normalizer=N.NFC())
    t.add_tokens([AddedToken(" " * n, normalized=True) for n in (24, 12, 6, 4, 3, 2)])
    yield "neox", t
    t = byte_level(plain, normalizer=N.NFC(), size=560)
    t.add_tokens(odd_tokens(True))
    yield "odd-normalized", t
    t = byte_level(bytes_after(split(LLAMA3)), normalizer=N.NFKC(), size=560)
    t.add_tokens(odd_tokens(False))
    yield "odd-plain", t
    yield "nfd", byte_level(plain, normalizer=N.Sequence([N.NFD(), N.Replace(Regex(r"\p{Mn}{2,}"), "\u0301")]))
    yield "nfkd", byte_level(plain, normalizer=N.NFKD())
    # Several bytes have no token.
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = plain, D.ByteLevel()
    t.train_from_iterator(["the river and the bridge, the the"], trainers.BpeTrainer(vocab_size=60, special_tokens=SPECIAL, show_progress=False))
    yield "few-bytes", t

    yield "llama2-legacy", sentence_piece(extra=RUNS, normalizer=N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]))
    t = sentence_piece(extra=RUNS, pre=P.Metaspace(prepend_scheme="first", split=False))
    t.post_processor = template(t, "<s> $A", "<s>")
    yield "llama2", t
    t = sentence_piece(extra=RUNS, normalizer=N.Replace(" ", "▁"), pre=P.Split(" ", "merged_with_previous"), decoder=llama_decoder(0))
    t.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(1, 4)])
    yield "gemma", t
    # Pairs that join across the beginning of a word.
    yield "phrases", sentence_piece(extra=RUNS + [("e", "▁"), ("e▁", "t")], normalizer=N.Replace(" ", "▁"))
    t = sentence_piece(fallback=False, fuse=False, pre=P.Metaspace(prepend_scheme="always"), decoder=D.Metaspace(prepend_scheme="always"))
    yield "metaspace", t
    yield "metaspace-fused", sentence_piece(fallback=False, pre=P.Metaspace(prepend_scheme="never", split=True), decoder=D.Metaspace(prepend_scheme="never"))
    yield "metaspace-no-unk", sentence_piece(fallback=False, unk=None, extra=RUNS, pre=P.Metaspace(prepend_scheme="first", split=False), decoder=D.Metaspace(prepend_scheme="first"))
    yield "some-bytes", sentence_piece(extra=RUNS, drop=range(0x90, 0x9C), fuse=False, normalizer=N.Sequence([N.NFKC(), N.Prepend("▁"), N.Replace(" ", "▁")]))
    t = sentence_piece(extra=RUNS, normalizer=N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]))
    t.add_tokens(odd_tokens(True))
    yield "odd-llama2", t
    t = sentence_piece(extra=RUNS, pre=P.Metaspace(prepend_scheme="first", split=True))
    t.add_tokens(odd_tokens(False))
    yield "odd-metaspace", t

    t = sentence_piece(fallback=False, pre=P.Sequence([P.WhitespaceSplit(), P.Punctuation("merged_with_previous"), P.Digits()]), decoder=D.Fuse())
    yield "white-space-split", t
    t = sentence_piece(fallback=False, pre=P.Sequence([P.Whitespace(), P.Split("e", "merged_with_next"), P.Split("a", "contiguous")]), decoder=D.Fuse())
    yield "white-space", t


def seeded_lists(t, seed, count=24):
    r = random.Random(seed)
    size = t.get_vocab_size()
    tokens = [t.id_to_token(i) for i in range(size)]
    short = [i for i, x in enumerate(tokens) if x is not None and (len(x) == 1 or x.startswith("<0x"))] or list(range(size))
    return [[r.choice(short) if r.random() < 0.7 else r.randrange(size) for _ in range(r.randrange(1, 12))] for _ in range(count)]


def main(out):
    os.makedirs(out, exist_ok=True)
    dump = lambda name, v: open(os.path.join(out, name), "w", encoding="utf-8").write(json.dumps(v, ensure_ascii=False, separators=(",", ":")) + "\n")
    dump("texts.json", TEXTS)
    for name, t in kinds():
        encoded = [t.encode(x, add_special_tokens=False).ids for x in TEXTS]
        same = lambda got, text: None if got == text else got
        decode = lambda ids, skip: t.decode(ids, skip_special_tokens=skip)
        dump(
            name + ".json",
            {
                "tokenizer": json.loads(t.to_str()),
                "ids": encoded,
                "decoded": [same(decode(i, False), x) for i, x in zip(encoded, TEXTS)],
                "plain": [same(decode(i, True), x) for i, x in zip(encoded, TEXTS)],
                "prompt": t.encode("Hi there", add_special_tokens=True).ids,
                "lists": [{"ids": i, "decoded": decode(i, False), "plain": decode(i, True)} for i in seeded_lists(t, name)],
            },
        )


if __name__ == "__main__":
    main(sys.argv[1])

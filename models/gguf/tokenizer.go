package gguf

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/diag"
)

// Bounds of a vocabulary.
const (
	maxTokens       = 1 << 20
	maxTokenBytes   = 1 << 12
	maxMerges       = 1 << 20
	maxMergeWork    = 1 << 31  // bytes looked at while merges are derived
	maxQuotedBytes  = 48 << 20 // of tokens and merges in a tokenizer.json
	maxSpecialBytes = 256      // of a token that is recognised in text
)

// Token types of tokenizer.ggml.token_type.
const (
	tokenNormal  = 1
	tokenUnknown = 2
	tokenControl = 3
	tokenUser    = 4 // recognised in text, but visible
	tokenUnused  = 5
	tokenByte    = 6
)

// space stands for a blank in SentencePiece vocabularies.
const space = "▁"

// splitting describes how a byte-level BPE cuts text before it merges.
type splitting struct {
	names        []string // values of tokenizer.ggml.pre; the first one is written
	pattern      string   // regular expression of the pieces; "": the byte-level step splits as GPT-2 does
	nfc          bool     // text is normalised to NFC first
	digits       bool     // digits are cut off one by one first
	ignoreMerges bool     // a piece that is a token is taken whole
	addBOS       bool     // texts begin with the begin token unless the file says otherwise
}

// The regular expressions of the tokenizers, as their tokenizer.json files have them.
const (
	patternGPT2   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternTekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// splittings are the ways of splitting text that have a name in GGUF.
var splittings = []splitting{
	{names: []string{"gpt-2", "phi-2"}},
	{names: []string{"olmo", "mpt"}, nfc: true},
	{names: []string{"smollm", "starcoder", "refact", "command-r"}, digits: true},
	{names: []string{"llama-bpe", "llama3", "llama-v3"}, pattern: patternLlama3, ignoreMerges: true, addBOS: true},
	{names: []string{"smaug-bpe", "dbrx"}, pattern: patternLlama3},
	{names: []string{"qwen2", "deepseek-r1-qwen", "megrez"}, pattern: patternQwen2, nfc: true},
	{names: []string{"stablelm2", "grok-2"}, pattern: patternQwen2},
	{names: []string{"tekken"}, pattern: patternTekken, ignoreMerges: true, addBOS: true},
}

// splittingNames lists the ways to split text that have a name.
func splittingNames() string {
	var out []string
	for _, way := range splittings {
		out = append(out, way.names...)
	}
	return strings.Join(out, ", ")
}

// vocab is a tokenizer as the file's metadata describe it.
type vocab struct {
	tokens []string       // by id
	ids    map[string]int // by token
	types  []int          // tokenNormal, ..., by id
	scores []float32      // of SentencePiece, by id; nil: none
	merges [][2]string    // best first

	bos, eos, unk, pad int   // -1: none
	addBOS, addEOS     *bool // nil: the file does not say

	prefix bool       // a blank is put before the text
	split  *splitting // nil: SentencePiece
}

// isSentencePiece reports whether the tokenizer merges by scores on text with visible blanks.
func (f *File) isSentencePiece() bool {
	kind, _ := f.Value("tokenizer.ggml.model")
	return kind == "llama"
}

// Tokenizer translates the tokenizer to a tokenizer.json and a tokenizer_config.json with the chat template; both are
// nil if the file has no tokenizer. A kind of tokenizer without such a form is an error of class ClassInput.
func (f *File) Tokenizer() (tokenizer, config []byte, err error) {
	vocab, err := f.vocab()
	if err != nil {
		return nil, nil, fmt.Errorf("read gguf tokenizer: %w", err)
	}
	if vocab == nil {
		return nil, nil, nil
	}
	doc, err := vocab.document()
	if err != nil {
		return nil, nil, fmt.Errorf("read gguf tokenizer: %w", err)
	}
	templates, err := f.chatTemplates()
	if err != nil {
		return nil, nil, fmt.Errorf("read gguf tokenizer: %w", err)
	}

	tokenizer, err = marshal(doc)
	if err != nil {
		return nil, nil, err
	}
	config, err = marshal(vocab.settings(templates))
	if err != nil {
		return nil, nil, err
	}
	return tokenizer, config, nil
}

// settings returns the tokenizer_config.json, with the special tokens for readers that take them from there.
func (v *vocab) settings(templates any) object {
	settings := object{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}
	for key, id := range map[string]int{
		"bos_token": v.bos, "eos_token": v.eos, "unk_token": v.unk, "pad_token": v.pad,
	} {
		if id >= 0 {
			settings[key] = v.tokens[id]
		}
	}

	if v.addBOS != nil {
		settings["add_bos_token"] = *v.addBOS && v.bos >= 0
	}
	if v.addEOS != nil {
		settings["add_eos_token"] = *v.addEOS && v.eos >= 0
	}
	if templates != nil {
		settings["chat_template"] = templates
	}
	return settings
}

// chatTemplates returns a string, or the list that Hugging Face has for several named templates.
func (f *File) chatTemplates() (any, error) {
	const key = "tokenizer.chat_template"
	text := func(key string) (string, bool, error) {
		stored, ok := f.Value(key)
		if !ok {
			return "", false, nil
		}
		template, isText := stored.(string)
		if !isText || !utf8.ValidString(template) {
			return "", false, diag.New(diag.ClassInput, "metadata key %q: want a text", key)
		}
		return template, true, nil
	}
	plain, has, err := text(key)
	if err != nil {
		return nil, err
	}

	var named []any
	for _, full := range f.Keys() {
		name, ok := strings.CutPrefix(full, key+".")
		if !ok {
			continue
		}
		template, _, err := text(full)
		if err != nil {
			return nil, err
		}
		named = append(named, object{"name": name, "template": template})
	}

	switch {
	case len(named) > 0 && has:
		return append([]any{object{"name": "default", "template": plain}}, named...), nil
	case len(named) > 0:
		return named, nil
	case has:
		return plain, nil
	}

	return nil, nil
}

// tokenizerKey is the beginning of the tokenizer's metadata keys.
const tokenizerKey = "tokenizer.ggml."

// badTokenizer refuses a key of the tokenizer.
func badTokenizer(key, format string, args ...any) *diag.Diagnostic {
	return badKey(tokenizerKey+key, format, args...)
}

// vocab reads the metadata of the tokenizer; nil when there is none.
func (f *File) vocab() (*vocab, error) {
	kind, ok := f.Value(tokenizerKey + "model")
	if !ok || kind == "no_vocab" || kind == "none" {
		return nil, nil
	}
	if kind != "gpt2" && kind != "llama" {
		what := map[any]string{"t5": " (Unigram)", "bert": " (WordPiece)", "rwkv": " (RWKV)"}[kind]
		return nil, badTokenizer("model",
			"%s%s is not supported; supported: gpt2 (byte-level BPE), llama (SentencePiece BPE)", brief(kind), what).
			WithHint("a model without a supported tokenizer runs on token ids")
	}

	v := &vocab{prefix: kind == "llama", addBOS: f.flag("add_bos_token"), addEOS: f.flag("add_eos_token")}
	untyped, err := v.readTokens(f)
	if err != nil {
		return nil, err
	}

	if prefix := f.flag("add_space_prefix"); prefix != nil {
		v.prefix = *prefix
	}
	hasMerges, err := v.readMerges(f)
	if err != nil {
		return nil, err
	}

	v.pad = v.special(f, "padding_token_id", -1)
	if kind == "llama" {
		err = v.sentencePiece(f, untyped, hasMerges)
	} else {
		err = v.byteLevel(f, hasMerges)
	}

	return v, err
}

// flag returns a bool of the tokenizer, nil where the file does not say.
func (f *File) flag(key string) *bool {
	stored, _ := f.Value(tokenizerKey + key)
	if on, isBool := stored.(bool); isBool {
		return &on
	}
	return nil
}

// special returns the id of a special token, def where the file does not say; -1 for none.
func (v *vocab) special(f *File, key string, def int) int {
	if id, ok := f.integer(tokenizerKey + key); ok {
		def = id
	}
	if def < 0 || def >= len(v.tokens) {
		return -1
	}
	return def
}

// readTokens reads the tokens and their types; untyped reports that the file has no types, and all are normal.
func (v *vocab) readTokens(f *File) (untyped bool, err error) {
	stored, _ := f.Value(tokenizerKey + "tokens")
	tokens, ok := stored.([]string)
	if !ok || len(tokens) == 0 || len(tokens) > maxTokens {
		return false, badTokenizer("tokens", "got %s, want a list of 1 to %d strings", brief(stored), maxTokens)
	}

	v.tokens = tokens
	v.types, err = f.integers(tokenizerKey+"token_type", len(tokens))
	if err != nil {
		return false, err
	}

	untyped = v.types == nil
	if untyped {
		v.types = slices.Repeat([]int{tokenNormal}, len(tokens))
	}

	v.ids = make(map[string]int, len(tokens))
	for i, token := range tokens {
		// An empty token never matches. It gets a name so that all names are different.
		if token == "" {
			token = fmt.Sprintf("[EMPTY_%d]", i)
			tokens[i], v.types[i] = token, tokenUnused
		}
		if !utf8.ValidString(token) || len(token) > maxTokenBytes {
			return false, badTokenizer("tokens", "token %d: %d bytes, want valid UTF-8 of at most %d",
				i, len(token), maxTokenBytes)
		}

		if v.types[i] < tokenNormal || v.types[i] > tokenByte {
			v.types[i] = tokenNormal
		}
		if first, dup := v.ids[token]; dup {
			return false, badTokenizer("tokens", "tokens %d and %d are both %s", first, i, brief(token))
		}
		v.ids[token] = i
	}

	return untyped, nil
}

// readMerges reads the merges; ok is false where the file has none. A merge is two tokens with a blank between. Both
// parts and the whole must be tokens, or the merge could never happen.
func (v *vocab) readMerges(f *File) (ok bool, err error) {
	stored, ok := f.Value(tokenizerKey + "merges")
	if !ok {
		return false, nil
	}
	list, isList := stored.([]string)
	if !isList || len(list) > maxMerges {
		return false, badTokenizer("merges", "got %s, want a list of at most %d strings", brief(stored), maxMerges)
	}

	v.merges = make([][2]string, 0, len(list))
	var whole []byte
	for i, merge := range list {
		at := -1
		if len(merge) > 1 {
			at = strings.IndexByte(merge[1:], ' ') + 1 // the left token may begin with a blank
		}
		if at < 1 || at+1 == len(merge) {
			return false, badTokenizer("merges", "merge %d is %s, want two tokens with a blank between",
				i, brief(merge))
		}

		pair := [2]string{merge[:at], merge[at+1:]}
		whole = append(append(whole[:0], pair[0]...), pair[1]...)
		_, left := v.ids[pair[0]]
		_, right := v.ids[pair[1]]
		if _, both := v.ids[string(whole)]; !left || !right || !both {
			return false, badTokenizer("merges", "merge %d: %s, %s or both together are no token",
				i, brief(pair[0]), brief(pair[1]))
		}
		v.merges = append(v.merges, pair)
	}

	return true, nil
}

// byteLevel completes the vocabulary of a byte-level BPE: its special tokens, and how it splits text.
func (v *vocab) byteLevel(f *File, hasMerges bool) error {
	v.bos, v.eos = v.special(f, "bos_token_id", -1), v.special(f, "eos_token_id", -1)
	v.unk = v.special(f, "unknown_token_id", -1)
	if !hasMerges {
		return badTokenizer("merges", "missing, want the merges of the byte-level BPE")
	}

	// Text must be cut exactly as in training, or other tokens result. So there is no default.
	pre, ok := f.Value(tokenizerKey + "pre")
	if !ok || pre == "default" {
		return badTokenizer("pre", "missing, so the file does not say how text is split").
			WithHint("convert the model again with a current converter, or set the key: " +
				"gguf_new_metadata --pre-tokenizer NAME IN.gguf OUT.gguf")
	}

	name, _ := pre.(string)
	for i := range splittings {
		if slices.Contains(splittings[i].names, name) {
			v.split = &splittings[i]
		}
	}

	if v.split == nil {
		return badTokenizer("pre", "%s is not supported; supported: %s", brief(pre), splittingNames())
	}
	if v.addBOS == nil && v.split.addBOS {
		v.addBOS = new(true)
	}
	return nil
}

// integers reads a list of count integers, nil when there is none.
func (f *File) integers(key string, count int) ([]int, error) {
	stored, ok := f.Value(key)
	if !ok {
		return nil, nil
	}

	out := make([]int, 0, count)
	switch list := stored.(type) {
	case []int32:
		for _, element := range list {
			out = append(out, int(element))
		}
	case []uint32:
		for _, element := range list {
			out = append(out, int(element))
		}
	}

	if len(out) != count {
		return nil, badKey(key, "got %d integers, want %d", len(out), count)
	}
	return out, nil
}

// sentencePiece completes a SentencePiece vocabulary: special tokens, types where the file has none, scores, and
// merges where they follow from the scores.
func (v *vocab) sentencePiece(f *File, untyped, hasMerges bool) error {
	v.bos, v.eos = v.special(f, "bos_token_id", 1), v.special(f, "eos_token_id", 2)
	v.unk = v.special(f, "unknown_token_id", 0)
	if v.addBOS == nil {
		v.addBOS = new(true)
	}
	if untyped {
		v.guessTypes()
	}

	for i, token := range v.tokens {
		if _, ok := byteOf(token); !ok && v.types[i] == tokenByte {
			return badTokenizer("token_type", "token %d is a byte, but named %s", i, brief(token))
		}
	}

	if err := v.readScores(f); err != nil {
		return err
	}
	if hasMerges {
		return nil
	}

	var err error
	v.merges, err = derivedMerges(v.tokens, v.types, v.scores)
	return err
}

// guessTypes gives bytes and special tokens their types.
func (v *vocab) guessTypes() {
	for i, token := range v.tokens {
		if _, ok := byteOf(token); ok {
			v.types[i] = tokenByte
		}
	}
	for id, kind := range map[int]int{v.bos: tokenControl, v.eos: tokenControl, v.unk: tokenUnknown} {
		if id >= 0 {
			v.types[id] = kind
		}
	}
}

// readScores reads the scores of all tokens, if the file has them.
func (v *vocab) readScores(f *File) error {
	stored, ok := f.Value(tokenizerKey + "scores")
	switch list := stored.(type) {
	case []float32:
		v.scores = list
	case []int32:
		for _, score := range list {
			v.scores = append(v.scores, float32(score))
		}
	default:
		if ok {
			return badTokenizer("scores", "got %s, want a list of numbers", brief(stored))
		}
	}

	if v.scores != nil && len(v.scores) != len(v.tokens) {
		return badTokenizer("scores", "got %d scores, want %d", len(v.scores), len(v.tokens))
	}

	for i, score := range v.scores {
		if math.IsNaN(float64(score)) {
			return badTokenizer("scores", "score %d is not a number", i)
		}
	}

	return nil
}

// byteOf returns the byte that a token "<0x0A>" stands for.
func byteOf(token string) (byte, bool) {
	var b byte
	if len(token) != 6 {
		return 0, false
	}
	if parsed, err := fmt.Sscanf(token, "<0x%02X>", &b); parsed != 1 || err != nil {
		return 0, false
	}
	return b, token == fmt.Sprintf("<0x%02X>", b)
}

// derivedMerges lists every pair of tokens that together are a token, best first.
//
// SentencePiece merges the pair with the best score of the result, and a list of merges in that order reproduces it.
// Ties go to longer left parts, then to longer right parts. If all scores are equal, the order of the ids counts, with
// shorter parts first. Only normal tokens and bytes take part, since text cannot be merged to others.
//
// Each token is split at every character, and both halves are looked up. The work is the sum of the squared lengths,
// which maxMergeWork bounds. Sorting is stable, so that equal scores keep the order of the ids.
func derivedMerges(tokens []string, types []int, scores []float32) ([][2]string, error) {
	ids := map[string]int{}
	var order []int
	alike := true // all scores are equal
	work := 0     // bytes to look at
	for i, token := range tokens {
		if types[i] != tokenNormal && types[i] != tokenByte {
			continue
		}
		ids[token] = i
		order = append(order, i)
		work += len(token) * len(token)
		if work > maxMergeWork {
			return nil, badTokenizer("tokens", "the tokens are too long to derive merges from")
		}
		alike = alike && (scores == nil || scores[i] == scores[order[0]] || types[i] == tokenByte)
	}

	type merge struct {
		pair        [2]string
		whole       int
		left, right int // runes
	}
	var out []merge
	for _, i := range order {
		token := tokens[i]
		from := len(out)
		runes := utf8.RuneCountInString(token)
		left := -1
		for at := range token {
			left++
			_, hasLeft := ids[token[:at]]
			_, hasRight := ids[token[at:]]
			if at == 0 || !hasLeft || !hasRight {
				continue
			}
			if len(out) == maxMerges {
				return nil, badTokenizer("tokens", "more than %d pairs of tokens make a token", maxMerges)
			}
			out = append(out, merge{[2]string{token[:at], token[at:]}, i, left, runes - left})
		}

		slices.SortStableFunc(out[from:], func(a, b merge) int {
			return cmp.Or(cmp.Compare(ids[a.pair[0]], ids[b.pair[0]]), cmp.Compare(ids[a.pair[1]], ids[b.pair[1]]))
		})
	}
	// Best first; ties keep the order of the ids.
	slices.SortStableFunc(out, func(a, b merge) int {
		if alike {
			return cmp.Or(cmp.Compare(a.whole, b.whole), cmp.Compare(a.left, b.left), cmp.Compare(a.right, b.right))
		}
		return cmp.Or(cmp.Compare(scores[b.whole], scores[a.whole]), cmp.Compare(b.left, a.left),
			cmp.Compare(b.right, a.right))
	})
	pairs := make([][2]string, len(out))
	for i := range out {
		pairs[i] = out[i].pair
	}
	return pairs, nil
}

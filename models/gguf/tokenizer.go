package gguf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
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

// space is what stands for a blank in SentencePiece vocabularies.
const space = "▁"

// splitting is how a byte-level BPE cuts text before it merges; names are its values of
// tokenizer.ggml.pre, the first of which is written.
type splitting struct {
	names        []string
	pattern      string // regular expression of the pieces; "" where the byte-level step splits as GPT-2 does
	nfc          bool   // text is normalised to NFC before
	digits       bool   // digits are cut off one by one before
	ignoreMerges bool   // a piece that is a token is taken whole
	addBOS       bool   // texts begin with the begin token unless the file says otherwise
}

// The regular expressions of the tokenizers, as their tokenizer.json files have them.
const (
	patternGPT2   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternTekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// splittings are the ways of text splitting that have a name in GGUF, the first name of each being written.
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

// tokenizerJSON is a tokenizer.json as it is written.
type tokenizerJSON struct {
	Version string `json:"version"`
	// always null: a text is neither cut nor filled up
	Truncation  any          `json:"truncation"`
	Padding     any          `json:"padding"`
	AddedTokens []addedToken `json:"added_tokens"`
	// steps in the order in which a text takes them; null for none
	Normalizer    any       `json:"normalizer"`
	PreTokenizer  any       `json:"pre_tokenizer"`
	PostProcessor any       `json:"post_processor"`
	Decoder       any       `json:"decoder"`
	Model         modelJSON `json:"model"`
}

// addedToken is a token that is recognised in text before anything else. Special ones are not shown.
type addedToken struct {
	ID         int    `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// modelJSON is the BPE of a tokenizer.json.
type modelJSON struct {
	Type string `json:"type"`
	// always null, as merges are never left out
	Dropout  any     `json:"dropout"`
	UnkToken *string `json:"unk_token"`
	// always null: no marks within or behind words
	Prefix       any        `json:"continuing_subword_prefix"`
	Suffix       any        `json:"end_of_word_suffix"`
	FuseUnk      bool       `json:"fuse_unk"`
	ByteFallback bool       `json:"byte_fallback"`
	IgnoreMerges bool       `json:"ignore_merges"`
	Vocab        vocabulary `json:"vocab"`
	Merges       mergeList  `json:"merges"`
}

// vocabulary is the tokens by id; JSON has their ids by token.
type vocabulary []string

// MarshalJSON writes the tokens in the order of their ids.
func (v vocabulary) MarshalJSON() ([]byte, error) {
	buf := []byte{'{'}
	for id, token := range v {
		if id > 0 {
			buf = append(buf, ',')
		}
		buf = strconv.AppendInt(append(appendQuoted(buf, token), ':'), int64(id), 10)
	}
	return append(buf, '}'), nil
}

// mergeList is the merges, best first.
type mergeList [][2]string

// MarshalJSON writes each as a list of two.
func (l mergeList) MarshalJSON() ([]byte, error) {
	buf := []byte{'['}
	for i, merge := range l {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = append(appendQuoted(append(appendQuoted(append(buf, '['), merge[0]), ','), merge[1]), ']')
	}
	return append(buf, ']'), nil
}

// quotedBytes bounds what appendQuoted appends.
func quotedBytes(s string) int {
	size := len(s) + 16
	for i := range len(s) {
		if s[i] < ' ' || s[i] == '"' || s[i] == '\\' {
			size += 5
		}
	}
	return size
}

// appendQuoted appends valid UTF-8 as a JSON string; the general encoder is several times slower.
func appendQuoted(buf []byte, s string) []byte {
	buf = append(buf, '"')
	for i := range len(s) {
		switch char := s[i]; {
		case char == '"' || char == '\\':
			buf = append(buf, '\\', char)
		case char < ' ':
			buf = fmt.Appendf(buf, `\u%04x`, char)
		default:
			buf = append(buf, char)
		}
	}
	return append(buf, '"')
}

// object is a JSON object of a tokenizer's part.
type object = map[string]any

// vocab is a tokenizer as the file's metadata describe it.
type vocab struct {
	tokens         []string       // by id
	ids            map[string]int // by token
	types          []int          // tokenNormal, ..., by id
	scores         []float32      // SentencePiece, by id; nil without
	merges         [][2]string    // best first
	bos, eos, unk  int            // -1 for none
	pad            int            // -1 for none
	addBOS, addEOS *bool          // nil: the file does not say
	prefix         bool           // a blank is put before the text
	split          *splitting     // nil: SentencePiece
}

// isSentencePiece reports whether the tokenizer merges by scores on text with visible blanks.
func (f *File) isSentencePiece() bool {
	kind, _ := f.Value("tokenizer.ggml.model")
	return kind == "llama"
}

// Tokenizer translates the tokenizer to a tokenizer.json and the tokenizer_config.json beside it, with
// the chat template; nil when the file has none. Kinds of tokenizers that have no such form here are
// refused by their name.
func (f *File) Tokenizer() (tokenizer, config []byte, err error) {
	vocab, err := f.vocab()
	if vocab == nil || err != nil {
		if err != nil {
			err = fmt.Errorf("read gguf tokenizer: %w", err)
		}
		return nil, nil, err
	}
	doc, err := vocab.document()
	if err != nil {
		return nil, nil, fmt.Errorf("read gguf tokenizer: %w", err)
	}
	if tokenizer, err = marshal(doc); err != nil {
		return nil, nil, err
	}
	settings := object{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}
	// Settings for readers that take special tokens from beside the tokenizer. Absent ones are left out.
	for key, id := range map[string]int{
		"bos_token": vocab.bos, "eos_token": vocab.eos, "unk_token": vocab.unk, "pad_token": vocab.pad,
	} {
		if id >= 0 {
			settings[key] = vocab.tokens[id]
		}
	}
	if vocab.addBOS != nil {
		settings["add_bos_token"] = *vocab.addBOS && vocab.bos >= 0
	}
	if vocab.addEOS != nil {
		settings["add_eos_token"] = *vocab.addEOS && vocab.eos >= 0
	}
	if templates, err := f.chatTemplates(); err != nil {
		return nil, nil, fmt.Errorf("read gguf tokenizer: %w", err)
	} else if templates != nil {
		settings["chat_template"] = templates
	}
	if config, err = marshal(settings); err != nil {
		return nil, nil, err
	}
	return tokenizer, config, nil
}

// marshal writes JSON without escapes for HTML.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, diag.New(diag.ClassInternal, "write tokenizer: %w", err)
	}
	return b.Bytes(), nil
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
		if name, ok := strings.CutPrefix(full, key+"."); ok {
			template, _, err := text(full)
			if err != nil {
				return nil, err
			}
			named = append(named, object{"name": name, "template": template})
		}
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
	if v.types, err = f.integers(tokenizerKey+"token_type", len(tokens)); err != nil {
		return false, err
	}
	if untyped = v.types == nil; untyped {
		v.types = slices.Repeat([]int{tokenNormal}, len(tokens))
	}
	v.ids = make(map[string]int, len(tokens))
	for i, token := range tokens {
		// An empty token can never match; it gets a name so that all names are different.
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

// readMerges reads the merges, of which both parts and the whole must be tokens; ok is false where the file has none.
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
	// A merge is two tokens with a blank between. Both parts and the whole must be tokens, or the merge could never
	// happen.
	for i, merge := range list {
		at := -1
		if len(merge) > 1 {
			at = strings.IndexByte(merge[1:], ' ') + 1 // a token may begin with a blank
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
	// Text must be cut exactly as in training, or other tokens result; a guess is refused.
	pre, ok := f.Value(tokenizerKey + "pre")
	if !ok || pre == "default" {
		return badTokenizer("pre", "missing, so the file does not say how text is split").
			WithHint("convert the model again with a current converter, or set the key: " +
				"gguf_new_metadata --pre-tokenizer NAME IN.gguf OUT.gguf")
	}
	for i := range splittings {
		if name, isText := pre.(string); isText && slices.Contains(splittings[i].names, name) {
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
	switch stored, ok := f.Value(tokenizerKey + "scores"); list := stored.(type) {
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
	if i := slices.IndexFunc(v.scores, func(score float32) bool { return score != score }); i >= 0 {
		return badTokenizer("scores", "score %d is not a number", i)
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

// derivedMerges lists every pair of tokens whose concatenation is a token, best first: by the score of
// the result, then longer left parts, then longer right parts. Where all scores are alike they say
// nothing, and the order of the ids counts with shorter parts first. Tokens that text cannot be merged
// to take no part.
//
// SentencePiece merges the pair with the best score of what results, which a list of merges in that
// order reproduces. Each token is split at every character, and both halves are looked up: the work is
// the sum of the squared lengths, which maxMergeWork bounds. Sorting is stable, so that equal scores
// keep the order of the ids.
func derivedMerges(tokens []string, types []int, scores []float32) ([][2]string, error) {
	ids := map[string]int{}
	var order []int
	// Which tokens take part, how long deriving takes, and whether the scores distinguish anything.
	alike, work := true, 0
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
	// Every split of every token into two tokens.
	var out []merge
	for _, i := range order {
		token := tokens[i]
		from := len(out)
		runes := utf8.RuneCountInString(token)
		left := 0
		for at := range token {
			if at > 0 {
				_, hasLeft := ids[token[:at]]
				_, hasRight := ids[token[at:]]
				if hasLeft && hasRight {
					if len(out) == maxMerges {
						return nil, badTokenizer("tokens", "more than %d pairs of tokens make a token", maxMerges)
					}
					out = append(out, merge{[2]string{token[:at], token[at:]}, i, left, runes - left})
				}
			}
			left++
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

// document makes the tokenizer.json. Its size is bounded before it is written: tokens are quoted, and a hostile file
// may consist of characters that need six bytes each.
func (v *vocab) document() (*tokenizerJSON, error) {
	doc := &tokenizerJSON{Version: "1.0", AddedTokens: []addedToken{}, Model: modelJSON{Type: "BPE", Merges: v.merges}}
	// Bound the output before it is built.
	quoted := 0
	for _, token := range v.tokens {
		quoted += quotedBytes(token)
	}
	for _, merge := range v.merges {
		quoted += quotedBytes(merge[0]) + quotedBytes(merge[1])
	}
	if quoted > maxQuotedBytes {
		return nil, badTokenizer("tokens", "tokens and merges have %d bytes in a tokenizer.json, want at most %d",
			quoted, maxQuotedBytes)
	}
	// Tokens that are matched in the text as it stands, before any splitting.
	recognised := func(i int) bool {
		return v.types[i] == tokenControl || v.types[i] == tokenUser || v.types[i] == tokenUnknown
	}
	// Padding of the vocabulary is no tokens; tokens added behind it are listed once.
	count := len(v.tokens)
	for count > 0 && v.types[count-1] == tokenUnused {
		count--
	}
	base := count
	for base > 0 && recognised(base-1) {
		base--
	}
	doc.Model.Vocab = v.tokens[:base]
	for i := range count {
		if !recognised(i) {
			continue
		}
		token := v.tokens[i]
		if len(token) > maxSpecialBytes {
			return nil, diag.New(diag.ClassInput,
				"metadata key %q: token %d is recognised in text and has %d bytes, want at most %d",
				tokenizerKey+"tokens", i, len(token), maxSpecialBytes)
		}
		doc.AddedTokens = append(doc.AddedTokens, addedToken{ID: i, Content: token, Special: v.types[i] != tokenUser})
	}
	if v.split != nil {
		v.byteLevelParts(doc)
	} else {
		v.sentencePieceParts(doc)
	}
	return doc, nil
}

// byteLevel returns the step of a tokenizer.json that turns bytes into visible characters, or back.
func byteLevel(prefixSpace, trim, regex bool) object {
	return object{"type": "ByteLevel", "add_prefix_space": prefixSpace, "trim_offsets": trim, "use_regex": regex}
}

// sequence is several steps, one after the other.
func sequence(key string, parts ...any) object { return object{"type": "Sequence", key: parts} }

// byteLevelParts fills in how a byte-level BPE normalises, splits and decodes text.
func (v *vocab) byteLevelParts(doc *tokenizerJSON) {
	doc.Model.IgnoreMerges = v.split.ignoreMerges
	if v.split.nfc {
		doc.Normalizer = object{"type": "NFC"}
	}
	switch {
	case v.split.pattern != "":
		doc.PreTokenizer = sequence("pretokenizers",
			object{"type": "Split", "pattern": object{"Regex": v.split.pattern}, "behavior": "Isolated",
				"invert": false},
			byteLevel(v.prefix, true, false))
	case v.split.digits:
		doc.PreTokenizer = sequence("pretokenizers", object{"type": "Digits", "individual_digits": true},
			byteLevel(v.prefix, true, true))
	default:
		doc.PreTokenizer = byteLevel(v.prefix, true, true)
	}
	doc.Decoder = byteLevel(true, true, true)
	doc.PostProcessor = byteLevel(true, false, true)
	if template := v.template(); template != nil {
		doc.PostProcessor = sequence("processors", byteLevel(true, false, true), template)
	}
}

// sentencePieceParts fills in that blanks become visible, and how text is decoded.
func (v *vocab) sentencePieceParts(doc *tokenizerJSON) {
	// Encoding replaces blanks by a visible character; decoding turns them back, then bytes into text.
	replace := object{"type": "Replace", "pattern": object{"String": " "}, "content": space}
	back := []any{object{"type": "Replace", "pattern": object{"String": space}, "content": " "},
		object{"type": "ByteFallback"}, object{"type": "Fuse"}}
	doc.Normalizer = replace
	if v.prefix {
		doc.Normalizer = sequence("normalizers", object{"type": "Prepend", "prepend": space}, replace)
		back = append(back, object{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	doc.Decoder = sequence("decoders", back...)
	if v.unk >= 0 {
		doc.Model.UnkToken = &v.tokens[v.unk]
	}
	doc.Model.FuseUnk = true
	doc.Model.ByteFallback = slices.Contains(v.types, tokenByte)
	if template := v.template(); template != nil {
		doc.PostProcessor = template
	}
}

// template puts the begin token before texts and the end token behind, as far as the file asks for it.
func (v *vocab) template() object {
	bos := v.addBOS != nil && *v.addBOS && v.bos >= 0
	eos := v.addEOS != nil && *v.addEOS && v.eos >= 0
	if !bos && !eos {
		return nil
	}
	specials := object{}
	// One sequence with its special tokens; a pair of texts has the same around each.
	text := func(id string, kind int) []any {
		var out []any
		special := func(id int) {
			token := v.tokens[id]
			specials[token] = object{"id": token, "ids": []int{id}, "tokens": []string{token}}
			out = append(out, object{"SpecialToken": object{"id": token, "type_id": kind}})
		}
		if bos {
			special(v.bos)
		}
		out = append(out, object{"Sequence": object{"id": id, "type_id": kind}})
		if eos {
			special(v.eos)
		}
		return out
	}
	first, second := text("A", 0), text("B", 1)
	return object{"type": "TemplateProcessing", "single": first, "pair": slices.Concat(first, second),
		"special_tokens": specials}
}

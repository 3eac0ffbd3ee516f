package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/diag"
)

// Bounds of a tokenizer.json; the largest published ones have 20 MB and 260,000 entries.
const (
	maxFileBytes  = 64 << 20
	maxVocab      = 1 << 20
	maxAdded      = 1 << 16
	maxAddedBytes = 256
	maxTokenBytes = 1 << 12
)

// file is what is read of a tokenizer.json. Parts that can have many forms stay raw.
type file struct {
	Version       string          `json:"version"`
	Truncation    json.RawMessage `json:"truncation"`
	Padding       json.RawMessage `json:"padding"`
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         *bpeModel       `json:"model"`
}

type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type bpeModel struct {
	Type         string          `json:"type"`
	Dropout      json.RawMessage `json:"dropout"`
	UnkToken     *string         `json:"unk_token"` // unused: every byte has a token
	Prefix       string          `json:"continuing_subword_prefix"`
	Suffix       string          `json:"end_of_word_suffix"`
	FuseUnk      bool            `json:"fuse_unk"`
	ByteFallback bool            `json:"byte_fallback"`
	IgnoreMerges bool            `json:"ignore_merges"`
	Vocab        vocabulary      `json:"vocab"`
	Merges       []mergePair     `json:"merges"`
}

// byteLevel is a pre-tokenizer, post-processor or decoder of type ByteLevel.
type byteLevel struct {
	Type           string `json:"type"`
	AddPrefixSpace bool   `json:"add_prefix_space"`
	TrimOffsets    bool   `json:"trim_offsets"`
	UseRegex       *bool  `json:"use_regex"`
}

// vocabulary maps tokens to ids; a token twice is an error.
type vocabulary map[string]int32

func (v *vocabulary) UnmarshalJSON(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("vocab: want an object of tokens and ids")
	}
	*v = vocabulary{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return err
		}
		token, ok := t.(string)
		var id int32
		if err := dec.Decode(&id); err != nil || !ok {
			return fmt.Errorf("vocab: token %q: want a whole number", t)
		}
		if _, dup := (*v)[token]; dup {
			return fmt.Errorf("vocab: token %q twice", token)
		}
		if len(*v) == maxVocab {
			return fmt.Errorf("vocab: more than %d tokens", maxVocab)
		}
		(*v)[token] = id
	}
	return nil
}

// mergePair is written "a b" or ["a","b"].
type mergePair [2]string

func (p *mergePair) UnmarshalJSON(b []byte) error {
	var list []string
	if err := json.Unmarshal(b, &list); err != nil {
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return fmt.Errorf("merges: want \"a b\" or [\"a\",\"b\"]")
		}
		for part := range bytes.SplitSeq([]byte(s), []byte(" ")) {
			list = append(list, string(part))
		}
	}
	if len(list) != 2 || list[0] == "" || list[1] == "" {
		return fmt.Errorf("merges: got %d parts, want 2 that are not empty", len(list))
	}
	*p = mergePair{list[0], list[1]}
	return nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// typeOf is the "type" of a part, "nothing" for null.
func typeOf(raw json.RawMessage) string {
	var t struct {
		Type string `json:"type"`
	}
	if isNull(raw) {
		return "nothing"
	}
	if err := json.Unmarshal(raw, &t); err != nil || t.Type == "" {
		return "something without a type"
	}
	return t.Type
}

// New reads the bytes of a tokenizer.json. config is the tokenizer_config.json beside it, nil when
// there is none; bos is the id that begins a text according to the model, -1 for none.
//
// Which tokens Prompt puts in front follows the first of these that says something: add_bos_token of
// config; the template of the post-processor; bos. So a model with a begin token gets it unless its
// tokenizer says otherwise.
//
// Errors are of class ClassInput and name the part that is malformed or not supported.
func New(tokenizer, config []byte, bos int) (Tokenizer, error) {
	t, err := load(tokenizer, config, bos)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "read tokenizer: %w", err).WithHint("a model without a supported tokenizer runs on token ids (--tokens)")
	}
	return t, nil
}

func load(data, config []byte, bos int) (*bpe, error) {
	if len(data) > maxFileBytes || len(config) > maxFileBytes {
		return nil, fmt.Errorf("%d bytes, want at most %d", max(len(data), len(config)), maxFileBytes)
	}
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("tokenizer.json: not valid UTF-8")
	}
	var f file
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	if dec.More() {
		return nil, fmt.Errorf("tokenizer.json: data after the document")
	}
	split, err := f.splitting()
	if err != nil {
		return nil, err
	}
	t, err := newBPE(f.Model)
	if err != nil {
		return nil, err
	}
	t.prefixSpace = split.AddPrefixSpace
	if err := t.add(f.AddedTokens); err != nil {
		return nil, err
	}
	front, err := front(f.PostProcessor)
	if err != nil {
		return nil, err
	}
	want, err := addsBOS(config)
	if err != nil {
		return nil, err
	}
	switch {
	case want != nil && !*want:
		front = nil
	case want != nil && *want && bos < 0 && len(front) == 0:
		return nil, fmt.Errorf("tokenizer_config.json: add_bos_token is true, but the model has no bos_token_id")
	case len(front) == 0 && bos >= 0:
		front = []int32{int32(bos)}
	}
	for _, id := range front {
		if id < 0 || int(id) >= t.VocabSize() {
			return nil, fmt.Errorf("token %d begins a text, but the vocabulary ends at %d", id, t.VocabSize()-1)
		}
	}
	t.front = front
	return t, nil
}

// splitting checks everything around the model and returns how text is split.
func (f *file) splitting() (*byteLevel, error) {
	unsupported := func(part string, raw json.RawMessage, supported string) error {
		return fmt.Errorf("tokenizer.json: %s: %s is not supported; supported: %s", part, typeOf(raw), supported)
	}
	switch {
	case f.Model == nil || f.Model.Type != "BPE":
		return nil, fmt.Errorf("tokenizer.json: model: only byte-level BPE is supported")
	case !isNull(f.Normalizer):
		return nil, unsupported("normalizer", f.Normalizer, "nothing")
	case !isNull(f.Truncation):
		return nil, unsupported("truncation", f.Truncation, "nothing")
	case !isNull(f.Padding):
		return nil, unsupported("padding", f.Padding, "nothing")
	case typeOf(f.PreTokenizer) != "ByteLevel":
		return nil, unsupported("pre_tokenizer", f.PreTokenizer, "ByteLevel")
	case typeOf(f.Decoder) != "ByteLevel":
		return nil, unsupported("decoder", f.Decoder, "ByteLevel")
	case !isNull(f.Model.Dropout):
		return nil, fmt.Errorf("tokenizer.json: model: dropout is not supported")
	case f.Model.Prefix != "" || f.Model.Suffix != "":
		return nil, fmt.Errorf("tokenizer.json: model: continuing_subword_prefix and end_of_word_suffix are not supported")
	case f.Model.ByteFallback:
		return nil, fmt.Errorf("tokenizer.json: model: byte_fallback is not supported")
	}
	var b byteLevel
	if err := json.Unmarshal(f.PreTokenizer, &b); err != nil {
		return nil, fmt.Errorf("tokenizer.json: pre_tokenizer: %w", err)
	}
	if b.UseRegex != nil && !*b.UseRegex {
		return nil, fmt.Errorf("tokenizer.json: pre_tokenizer: ByteLevel without use_regex is not supported")
	}
	return &b, nil
}

// front returns the ids a post-processor puts before a text.
func front(raw json.RawMessage) ([]int32, error) {
	switch t := typeOf(raw); t {
	case "nothing", "ByteLevel":
		return nil, nil
	case "TemplateProcessing":
	case "Sequence":
		var s struct {
			Processors []json.RawMessage `json:"processors"`
		}
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, fmt.Errorf("tokenizer.json: post_processor: %w", err)
		}
		var out []int32
		for _, p := range s.Processors {
			if typeOf(p) == "Sequence" {
				return nil, fmt.Errorf("tokenizer.json: post_processor: a Sequence in a Sequence is not supported")
			}
			ids, err := front(p)
			if err != nil {
				return nil, err
			}
			out = append(ids, out...) // a later processor adds outside
		}
		return out, nil
	default:
		return nil, fmt.Errorf("tokenizer.json: post_processor: %s is not supported; supported: nothing, ByteLevel, TemplateProcessing, Sequence", t)
	}
	var p struct {
		Single []struct {
			Sequence *struct {
				ID string `json:"id"`
			} `json:"Sequence"`
			SpecialToken *struct {
				ID string `json:"id"`
			} `json:"SpecialToken"`
		} `json:"single"`
		SpecialTokens map[string]struct {
			IDs []int32 `json:"ids"`
		} `json:"special_tokens"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, fmt.Errorf("tokenizer.json: post_processor: %w", err)
	}
	var out []int32
	for i, part := range p.Single {
		if part.Sequence != nil {
			if i != len(p.Single)-1 {
				return nil, fmt.Errorf("tokenizer.json: post_processor: tokens after the text are not supported")
			}
			return out, nil
		}
		if part.SpecialToken == nil {
			break
		}
		tok, ok := p.SpecialTokens[part.SpecialToken.ID]
		if !ok || len(tok.IDs) == 0 || len(tok.IDs) > 16 || len(out) > 16 {
			return nil, fmt.Errorf("tokenizer.json: post_processor: special token %q has no ids", part.SpecialToken.ID)
		}
		out = append(out, tok.IDs...)
	}
	return nil, fmt.Errorf("tokenizer.json: post_processor: template without the text")
}

// addsBOS is add_bos_token of a tokenizer_config.json, nil when it does not say.
func addsBOS(config []byte) (*bool, error) {
	if config == nil {
		return nil, nil
	}
	var c struct {
		AddBOS *bool `json:"add_bos_token"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	return c.AddBOS, nil
}

// add registers the tokens that are recognised in text before it is split.
func (t *bpe) add(tokens []addedToken) error {
	if len(tokens) > maxAdded {
		return fmt.Errorf("tokenizer.json: %d added tokens, want at most %d", len(tokens), maxAdded)
	}
	lengths := map[byte]map[int]bool{}
	for _, a := range tokens {
		fail := func(format string, args ...any) error {
			return fmt.Errorf("tokenizer.json: added token %q: %s", a.Content, fmt.Sprintf(format, args...))
		}
		if a.Content == "" || len(a.Content) > maxAddedBytes {
			return fail("%d bytes, want 1 to %d", len(a.Content), maxAddedBytes)
		}
		if a.SingleWord || a.LStrip || a.RStrip {
			return fail("single_word, lstrip and rstrip are not supported")
		}
		if a.ID < 0 || a.ID >= maxVocab {
			return fail("id %d, want 0 to %d", a.ID, maxVocab-1)
		}
		if _, dup := t.added[a.Content]; dup {
			return fail("twice")
		}
		if id, ok := t.vocab[a.Content]; ok && id != a.ID {
			return fail("id %d, but %d in the vocabulary", a.ID, id)
		}
		if int(a.ID) < len(t.text) && t.text[a.ID] != nil && t.vocab[a.Content] != a.ID {
			return fail("id %d belongs to another token", a.ID)
		}
		for int(a.ID) >= len(t.text) {
			t.text = append(t.text, nil)
		}
		t.text[a.ID] = []byte(a.Content)
		t.added[a.Content] = a.ID
		if a.Special {
			t.special = append(t.special, a.ID)
		}
		first := a.Content[0]
		if lengths[first] == nil {
			lengths[first] = map[int]bool{}
		}
		if !lengths[first][len(a.Content)] {
			lengths[first][len(a.Content)] = true
			t.addedLengths[first] = append(t.addedLengths[first], len(a.Content))
		}
	}
	slices.Sort(t.special)
	for i := range t.addedLengths {
		slices.SortFunc(t.addedLengths[i], func(a, b int) int { return b - a })
	}
	return nil
}

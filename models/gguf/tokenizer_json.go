package gguf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/hetc/hetc/internal/diag"
)

// tokenizerJSON is the document of a tokenizer.json.
type tokenizerJSON struct {
	Version     string       `json:"version"`
	Truncation  any          `json:"truncation"` // always null, as texts are not cut
	Padding     any          `json:"padding"`    // always null, as texts are not filled up
	AddedTokens []addedToken `json:"added_tokens"`

	// Steps in the order in which a text takes them; null: none.
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
	Type         string     `json:"type"`
	Dropout      any        `json:"dropout"` // always null, as merges are never left out
	UnkToken     *string    `json:"unk_token"`
	Prefix       any        `json:"continuing_subword_prefix"` // always null, as words have no marks inside
	Suffix       any        `json:"end_of_word_suffix"`        // always null, as words have no marks at their end
	FuseUnk      bool       `json:"fuse_unk"`
	ByteFallback bool       `json:"byte_fallback"`
	IgnoreMerges bool       `json:"ignore_merges"`
	Vocab        vocabulary `json:"vocab"`
	Merges       mergeList  `json:"merges"`
}

// vocabulary lists the tokens by id; JSON has their ids by token.
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

// mergeList lists the merges, best first.
type mergeList [][2]string

// MarshalJSON writes each merge as a list of two tokens.
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

// quotedBytes returns an upper bound of the number of bytes that appendQuoted appends.
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

// object is a JSON object in a tokenizer.json.
type object = map[string]any

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

// document makes the tokenizer.json. Its size is bounded before it is written: tokens are quoted, and a hostile file
// may consist of characters that need six bytes each.
func (v *vocab) document() (*tokenizerJSON, error) {
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

	doc := &tokenizerJSON{Version: "1.0", AddedTokens: []addedToken{}, Model: modelJSON{Type: "BPE", Merges: v.merges}}

	// Unused tokens at the end only pad the vocabulary. Added tokens before them are listed only as such.
	count := len(v.tokens)
	for count > 0 && v.types[count-1] == tokenUnused {
		count--
	}
	base := count
	for base > 0 && v.recognised(base-1) {
		base--
	}
	doc.Model.Vocab = v.tokens[:base]
	for i := range count {
		if !v.recognised(i) {
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

// sequence returns several steps, one after the other.
func sequence(key string, parts ...any) object { return object{"type": "Sequence", key: parts} }

// recognised reports whether a token is matched in the text before any splitting.
func (v *vocab) recognised(id int) bool {
	return v.types[id] == tokenControl || v.types[id] == tokenUser || v.types[id] == tokenUnknown
}

// byteLevelParts fills in the steps by which a byte-level BPE normalises, splits and decodes text.
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

// sentencePieceParts fills in the steps that make blanks visible and decode text.
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

// template returns the step that puts the begin token before texts and the end token behind them; nil if the file wants
// neither.
func (v *vocab) template() object {
	bos := v.addBOS != nil && *v.addBOS && v.bos >= 0
	eos := v.addEOS != nil && *v.addEOS && v.eos >= 0
	if !bos && !eos {
		return nil
	}

	specials := object{}

	// Each text of a pair gets the same tokens around it as a single one.
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

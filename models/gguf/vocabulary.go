package gguf

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
)

// readTokenizer is a tokenizer.json as it is read; parts that can have many forms stay raw.
type readTokenizer struct {
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Model         struct {
		Type         string         `json:"type"`
		Dropout      *float64       `json:"dropout"`
		UnkToken     *string        `json:"unk_token"`
		Prefix       string         `json:"continuing_subword_prefix"`
		Suffix       string         `json:"end_of_word_suffix"`
		ByteFallback bool           `json:"byte_fallback"`
		IgnoreMerges bool           `json:"ignore_merges"`
		Vocab        map[string]int `json:"vocab"`
		Merges       []mergePair    `json:"merges"`
	} `json:"model"`
}

// mergePair is written "a b" or ["a","b"].
type mergePair [2]string

func (p *mergePair) UnmarshalJSON(b []byte) error {
	var list []string
	var s string
	if json.Unmarshal(b, &s) == nil {
		list = strings.Split(s, " ")
	} else if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	if len(list) != 2 || list[0] == "" || list[1] == "" {
		return fmt.Errorf("merges: got %d parts, want 2", len(list))
	}
	*p = mergePair(list)
	return nil
}

// part is a normalizer, pre-tokenizer or post-processor.
type part struct {
	Type             string          `json:"type"`
	Normalizers      []part          `json:"normalizers"`
	PreTokenizers    []part          `json:"pretokenizers"`
	Processors       []part          `json:"processors"`
	Pattern          map[string]any  `json:"pattern"`
	Content          string          `json:"content"`
	Prepend          string          `json:"prepend"`
	Behavior         string          `json:"behavior"`
	Invert           bool            `json:"invert"`
	AddPrefixSpace   *bool           `json:"add_prefix_space"`
	UseRegex         *bool           `json:"use_regex"`
	IndividualDigits bool            `json:"individual_digits"`
	Replacement      string          `json:"replacement"`
	PrependScheme    string          `json:"prepend_scheme"`
	Split            *bool           `json:"split"`
	Single           []templatePiece `json:"single"`
}

type templatePiece struct {
	Sequence     *struct{}            `json:"Sequence"`
	SpecialToken *struct{ ID string } `json:"SpecialToken"`
}

// steps parses a part and flattens a Sequence; nothing gives none.
func steps(raw json.RawMessage, inner func(part) []part) ([]part, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var p part
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, err
	}
	if p.Type == "Sequence" {
		return inner(p), nil
	}
	return []part{p}, nil
}

// exportVocab reads a tokenizer.json with its tokenizer_config.json (nil without). size is the number
// of rows of the embedding: the vocabulary is padded to it.
func exportVocab(tokenizer, config []byte, size int) (*vocab, error) {
	refuse := func(what, format string, args ...any) error {
		return diag.New(diag.ClassInput, "tokenizer.json: %s: %s", what, fmt.Sprintf(format, args...)).WithHint("GGUF has no form for this tokenizer; export the weights without it")
	}
	var t readTokenizer
	if err := json.Unmarshal(tokenizer, &t); err != nil {
		return nil, diag.New(diag.ClassInput, "tokenizer.json: %w", err)
	}
	switch m := t.Model; {
	case m.Type != "BPE":
		return nil, refuse("model", "%q is not supported; supported: BPE", m.Type)
	case m.Dropout != nil || m.Prefix != "" || m.Suffix != "":
		return nil, refuse("model", "dropout, prefixes and suffixes are not supported")
	}
	v := &vocab{bos: -1, eos: -1, unk: -1, pad: -1, tokens: make([]string, size), types: slices.Repeat([]int{tokenUnused}, size)}
	set := func(id int, token string, kind int) error {
		if id < 0 || id >= size {
			return refuse("vocab", "token %d, but the model has %d", id, size)
		}
		if v.tokens[id] != "" && v.tokens[id] != token {
			return refuse("vocab", "token %d is both %q and %q", id, v.tokens[id], token)
		}
		v.tokens[id], v.types[id] = token, kind
		return nil
	}
	for token, id := range t.Model.Vocab {
		if err := set(id, token, tokenNormal); err != nil {
			return nil, err
		}
	}
	for _, a := range t.AddedTokens {
		if a.SingleWord || a.LStrip || a.RStrip {
			return nil, refuse("added_tokens", "token %q: single_word, lstrip and rstrip are not supported", a.Content)
		}
		kind := tokenUser
		if a.Special {
			kind = tokenControl
		}
		if err := set(a.ID, a.Content, kind); err != nil {
			return nil, err
		}
	}
	ids := map[string]int{}
	for i, token := range v.tokens {
		if token == "" {
			v.tokens[i] = fmt.Sprintf("[PAD%d]", i)
		}
		if first, dup := ids[v.tokens[i]]; dup {
			return nil, refuse("vocab", "tokens %d and %d are both %q", first, i, v.tokens[i])
		}
		ids[v.tokens[i]] = i
	}
	for _, m := range t.Model.Merges {
		if strings.Contains(m[0], " ") || strings.Contains(m[1], " ") {
			return nil, refuse("merges", "%q contains a blank", m)
		}
		v.merges = append(v.merges, m)
	}
	if err := v.splittingOf(&t, refuse); err != nil {
		return nil, err
	}
	if v.split == nil {
		v.scoreTokens(&t, ids)
	}
	return v, v.specials(&t, config, ids, refuse)
}

// splittingOf finds out which kind of tokenizer it is and how it cuts text.
func (v *vocab) splittingOf(t *readTokenizer, refuse func(what, format string, args ...any) error) error {
	norm, err := steps(t.Normalizer, func(p part) []part { return p.Normalizers })
	if err != nil {
		return refuse("normalizer", "%v", err)
	}
	pre, err := steps(t.PreTokenizer, func(p part) []part { return p.PreTokenizers })
	if err != nil {
		return refuse("pre_tokenizer", "%v", err)
	}
	if len(pre) > 0 && pre[len(pre)-1].Type == "ByteLevel" {
		var s splitting
		last := pre[len(pre)-1]
		v.prefix = last.AddPrefixSpace != nil && *last.AddPrefixSpace
		ownRegex := last.UseRegex == nil || *last.UseRegex
		switch first := pre[0]; {
		case len(pre) == 1 && ownRegex:
		case len(pre) == 2 && ownRegex && first.Type == "Digits" && first.IndividualDigits:
			s.digits = true
		case len(pre) == 2 && !ownRegex && first.Type == "Split" && first.Behavior == "Isolated" && !first.Invert:
			s.pattern, _ = first.Pattern["Regex"].(string)
			if s.pattern == patternGPT2 {
				s.pattern = ""
			} else if s.pattern == "" {
				return refuse("pre_tokenizer", "a Split without a regular expression is not supported")
			}
		default:
			return refuse("pre_tokenizer", "this sequence of %d steps is not supported", len(pre))
		}
		switch {
		case len(norm) == 0:
		case len(norm) == 1 && norm[0].Type == "NFC":
			s.nfc = true
		default:
			return refuse("normalizer", "%s is not supported; supported: nothing, NFC", norm[0].Type)
		}
		for i := range splittings {
			k := &splittings[i]
			if k.pattern == s.pattern && k.nfc == s.nfc && k.digits == s.digits && k.ignoreMerges == t.Model.IgnoreMerges {
				v.split = k
				return nil
			}
		}
		return refuse("pre_tokenizer", "this way to split text has no name in GGUF; those that have: %s", splittingNames())
	}
	// SentencePiece: blanks become visible, in the normalizer or before the merges.
	for _, n := range norm {
		switch blank, _ := n.Pattern["String"].(string); {
		case n.Type == "Prepend" && n.Prepend == space:
			v.prefix = true
		case n.Type == "Replace" && blank == " " && n.Content == space:
		default:
			return refuse("normalizer", "%s is not supported; supported: what SentencePiece does with blanks", n.Type)
		}
	}
	for _, p := range pre {
		switch blank, _ := p.Pattern["String"].(string); {
		case p.Type == "Metaspace" && p.Replacement == space && p.Split != nil && !*p.Split:
			v.prefix = v.prefix || p.PrependScheme != "never"
		case p.Type == "Split" && blank == " " && len(norm) > 0: // there are none left
		default:
			return refuse("pre_tokenizer", "%s is not supported; supported: ByteLevel, Metaspace without split", p.Type)
		}
	}
	if len(norm)+len(pre) == 0 || !t.Model.ByteFallback {
		return refuse("model", "this BPE is neither byte-level nor SentencePiece with byte_fallback, which is not supported")
	}
	return nil
}

// scoreTokens gives a SentencePiece vocabulary its types and the scores that order its merges: the
// negative number of the first merge that makes a token. The merges themselves are kept only where
// they do not follow from the scores.
func (v *vocab) scoreTokens(t *readTokenizer, ids map[string]int) {
	v.scores = make([]float32, len(v.tokens))
	for i, token := range v.tokens {
		switch _, isByte := byteOf(token); {
		case isByte && v.types[i] == tokenNormal:
			v.types[i] = tokenByte
		case v.types[i] == tokenNormal:
			v.scores[i] = -float32(len(v.merges))
		case v.types[i] == tokenUser: // readers look for them in text as it is written
			v.tokens[i] = strings.ReplaceAll(token, space, " ")
		}
	}
	if u := t.Model.UnkToken; u != nil {
		if id, ok := ids[*u]; ok {
			v.unk, v.types[id] = id, tokenUnknown
		}
	}
	for i := len(v.merges) - 1; i >= 0; i-- {
		if id, ok := ids[v.merges[i][0]+v.merges[i][1]]; ok && v.types[id] == tokenNormal {
			v.scores[id] = -float32(i)
		}
	}
	if derived, err := derivedMerges(v.tokens, v.types, v.scores); err == nil && slices.Equal(derived, v.merges) {
		v.merges = nil
	}
}

// specials reads which tokens begin and end a text.
func (v *vocab) specials(t *readTokenizer, config []byte, ids map[string]int, refuse func(what, format string, args ...any) error) error {
	var c map[string]any
	if config != nil {
		if err := json.Unmarshal(config, &c); err != nil {
			return diag.New(diag.ClassInput, "tokenizer_config.json: %w", err)
		}
	}
	named := func(key string) int {
		text, ok := c[key].(string)
		if o, isObject := c[key].(map[string]any); isObject {
			text, ok = o["content"].(string)
		}
		if id, known := ids[text]; ok && known {
			return id
		}
		return -1
	}
	flag := func(key string) *bool {
		if b, ok := c[key].(bool); ok {
			return &b
		}
		return nil
	}
	v.bos, v.eos, v.pad = named("bos_token"), named("eos_token"), named("pad_token")
	if v.unk < 0 {
		v.unk = named("unk_token")
	}
	v.addBOS, v.addEOS = flag("add_bos_token"), flag("add_eos_token")
	post, err := steps(t.PostProcessor, func(p part) []part { return p.Processors })
	if err != nil {
		return refuse("post_processor", "%v", err)
	}
	yes := true
	for _, p := range post {
		switch p.Type {
		case "ByteLevel":
			continue
		case "TemplateProcessing":
		default:
			return refuse("post_processor", "%s is not supported; supported: ByteLevel, TemplateProcessing", p.Type)
		}
		behind := false
		for _, piece := range p.Single {
			if piece.Sequence != nil {
				behind = true
				continue
			}
			id, ok := -1, false
			if piece.SpecialToken != nil {
				id, ok = ids[piece.SpecialToken.ID]
			}
			switch {
			case ok && !behind && (v.bos < 0 || v.bos == id):
				v.bos = id
				if v.addBOS == nil {
					v.addBOS = &yes
				}
			case ok && behind && (v.eos < 0 || v.eos == id):
				v.eos = id
				if v.addEOS == nil {
					v.addEOS = &yes
				}
			default:
				return refuse("post_processor", "a template with other tokens than the begin and the end token is not supported")
			}
		}
	}
	return nil
}

// metadata is the tokenizer as GGUF keys.
func (v *vocab) metadata() []KV {
	const p = "tokenizer.ggml."
	types := make([]int32, len(v.types))
	for i, t := range v.types {
		types[i] = int32(t)
	}
	kind, pre := "llama", "default"
	if v.split != nil {
		kind, pre = "gpt2", v.split.names[0]
	}
	out := []KV{{p + "model", kind}, {p + "pre", pre}, {p + "tokens", v.tokens}}
	if v.scores != nil {
		out = append(out, KV{p + "scores", v.scores})
	}
	out = append(out, KV{p + "token_type", types})
	if len(v.merges) > 0 || v.split != nil {
		merges := make([]string, len(v.merges))
		for i, m := range v.merges {
			merges[i] = m[0] + " " + m[1]
		}
		out = append(out, KV{p + "merges", merges})
	}
	for _, s := range []struct {
		key string
		id  int
	}{{"unknown_token_id", v.unk}, {"padding_token_id", v.pad}} {
		if s.id >= 0 {
			out = append(out, KV{p + s.key, uint32(s.id)})
		}
	}
	for _, s := range []struct {
		key string
		on  *bool
	}{{"add_bos_token", v.addBOS}, {"add_eos_token", v.addEOS}} {
		if s.on != nil {
			out = append(out, KV{p + s.key, *s.on})
		}
	}
	if v.prefix != (v.split == nil) {
		out = append(out, KV{p + "add_space_prefix", v.prefix})
	}
	return out
}

// exportTemplates writes the chat templates: the file beside the tokenizer, or those in its configuration.
func exportTemplates(d *Directory) ([]KV, error) {
	const key = "tokenizer.chat_template"
	if d.ChatTemplate != "" {
		return []KV{{key, d.ChatTemplate}}, nil
	}
	var c struct {
		ChatTemplate json.RawMessage `json:"chat_template"`
	}
	if d.TokenizerConfig == nil {
		return nil, nil
	}
	if err := json.Unmarshal(d.TokenizerConfig, &c); err != nil {
		return nil, diag.New(diag.ClassInput, "tokenizer_config.json: %w", err)
	}
	if len(c.ChatTemplate) == 0 || string(c.ChatTemplate) == "null" {
		return nil, nil
	}
	var plain string
	if json.Unmarshal(c.ChatTemplate, &plain) == nil {
		return []KV{{key, plain}}, nil
	}
	var named []struct{ Name, Template string }
	if err := json.Unmarshal(c.ChatTemplate, &named); err != nil {
		return nil, diag.New(diag.ClassInput, "tokenizer_config.json: key %q: want a text or a list of named texts", "chat_template")
	}
	var out []KV
	var names []string
	for _, t := range named {
		if t.Name == "default" {
			out = append(out, KV{key, t.Template})
			continue
		}
		names = append(names, t.Name)
		out = append(out, KV{key + "." + t.Name, t.Template})
	}
	if names != nil {
		out = append(out, KV{"tokenizer.chat_templates", names})
	}
	return out, nil
}

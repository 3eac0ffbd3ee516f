package gguf

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
)

// Export of tokenizers is the inverse of tokenizer.go and tokenizer_json.go. A tokenizer.json may contain any pipeline
// of steps; GGUF has names for a few of them. Steps without a name are refused, because a reader would tokenise
// differently.

// readTokenizer is a tokenizer.json as it is read; parts that can have many forms stay raw.
type readTokenizer struct {
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Model         struct {
		Type string `json:"type"`
		// must be unset, like prefix and suffix: GGUF has no name for them
		Dropout  *float64 `json:"dropout"`
		UnkToken *string  `json:"unk_token"`
		Prefix   string   `json:"continuing_subword_prefix"`
		Suffix   string   `json:"end_of_word_suffix"`
		// bytes of no token are written like <0x0A>
		ByteFallback bool `json:"byte_fallback"`
		// a word that is a token stays one, whatever the merges say
		IgnoreMerges bool `json:"ignore_merges"`
		// ids by token
		Vocab map[string]int `json:"vocab"`
		// pairs of tokens in the order in which they are joined
		Merges []mergePair `json:"merges"`
	} `json:"model"`
}

// mergePair is written "a b" or ["a","b"].
type mergePair [2]string

// UnmarshalJSON reads either spelling.
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
	Type string `json:"type"`
	// steps of a Sequence of each sort
	Normalizers   []part `json:"normalizers"`
	PreTokenizers []part `json:"pretokenizers"`
	Processors    []part `json:"processors"`
	// of Split and Replace: {"String": text} or {"Regex": text}
	Pattern map[string]any `json:"pattern"`
	Content string         `json:"content"`
	// of Prepend
	Prepend string `json:"prepend"`
	// of Split
	Behavior string `json:"behavior"`
	Invert   bool   `json:"invert"`
	// of ByteLevel; nil where the file does not say
	AddPrefixSpace   *bool `json:"add_prefix_space"`
	UseRegex         *bool `json:"use_regex"`
	IndividualDigits bool  `json:"individual_digits"`
	// of Metaspace
	Replacement   string `json:"replacement"`
	PrependScheme string `json:"prepend_scheme"`
	Split         *bool  `json:"split"`
	// of TemplateProcessing: what stands around a text
	Single []templatePiece `json:"single"`
}

// templatePiece is the text, or a special token beside it.
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

// noForm refuses what a tokenizer.json says and GGUF cannot.
func noForm(what, format string, args ...any) error {
	return diag.New(diag.ClassInput, "tokenizer.json: %s: %s", what, fmt.Sprintf(format, args...)).
		WithHint("GGUF has no form for this tokenizer; export the weights without it")
}

// exportVocab reads a tokenizer.json with its tokenizer_config.json (nil without). size is the number of rows of the
// embedding: the vocabulary is padded to it with unused tokens, so that every row has a token.
func exportVocab(tokenizer, config []byte, size int) (*vocab, error) {
	var parsed readTokenizer
	if err := json.Unmarshal(tokenizer, &parsed); err != nil {
		return nil, diag.New(diag.ClassInput, "tokenizer.json: %w", err)
	}
	switch model := parsed.Model; {
	case model.Type != "BPE":
		return nil, noForm("model", "%q is not supported; supported: BPE", model.Type)
	case model.Dropout != nil || model.Prefix != "" || model.Suffix != "":
		return nil, noForm("model", "dropout, prefixes and suffixes are not supported")
	}
	v := &vocab{bos: -1, eos: -1, unk: -1, pad: -1, tokens: make([]string, size),
		types: slices.Repeat([]int{tokenUnused}, size)}
	if err := v.exportTokens(&parsed); err != nil {
		return nil, err
	}
	// GGUF separates the two parts of a merge by a blank, so that neither part may contain one.
	for _, merge := range parsed.Model.Merges {
		if strings.Contains(merge[0], " ") || strings.Contains(merge[1], " ") {
			return nil, noForm("merges", "%q contains a blank", merge)
		}
		v.merges = append(v.merges, merge)
	}
	if err := v.splittingOf(&parsed); err != nil {
		return nil, err
	}
	if v.split == nil {
		v.scoreTokens(&parsed)
	}
	return v, v.specials(&parsed, config)
}

// exportTokens takes the tokens of the model and those added to it; ids that neither has are padding.
func (v *vocab) exportTokens(parsed *readTokenizer) error {
	for token, id := range parsed.Model.Vocab {
		if err := v.set(id, token, tokenNormal); err != nil {
			return err
		}
	}
	for _, added := range parsed.AddedTokens {
		if added.SingleWord || added.LStrip || added.RStrip {
			return noForm("added_tokens", "token %q: single_word, lstrip and rstrip are not supported", added.Content)
		}
		kind := tokenUser
		if added.Special {
			kind = tokenControl
		}
		if err := v.set(added.ID, added.Content, kind); err != nil {
			return err
		}
	}
	// Padding gets names, since GGUF wants every token named and all names different.
	v.ids = map[string]int{}
	for i, token := range v.tokens {
		if token == "" {
			v.tokens[i] = fmt.Sprintf("[PAD%d]", i)
		}
		if first, dup := v.ids[v.tokens[i]]; dup {
			return noForm("vocab", "tokens %d and %d are both %q", first, i, v.tokens[i])
		}
		v.ids[v.tokens[i]] = i
	}
	return nil
}

// set gives an id its token. Two tokens of one id are refused.
func (v *vocab) set(id int, token string, kind int) error {
	if id < 0 || id >= len(v.tokens) {
		return noForm("vocab", "token %d, but the model has %d", id, len(v.tokens))
	}
	if v.tokens[id] != "" && v.tokens[id] != token {
		return noForm("vocab", "token %d is both %q and %q", id, v.tokens[id], token)
	}
	v.tokens[id], v.types[id] = token, kind
	return nil
}

// splittingOf finds out which kind of tokenizer it is and how it cuts text.
func (v *vocab) splittingOf(parsed *readTokenizer) error {
	normalizers, err := steps(parsed.Normalizer, func(p part) []part { return p.Normalizers })
	if err != nil {
		return noForm("normalizer", "%v", err)
	}
	splitters, err := steps(parsed.PreTokenizer, func(p part) []part { return p.PreTokenizers })
	if err != nil {
		return noForm("pre_tokenizer", "%v", err)
	}
	// Only the byte-level step makes bytes visible, and it always comes last.
	if len(splitters) > 0 && splitters[len(splitters)-1].Type == "ByteLevel" {
		return v.byteLevelSplitting(parsed, normalizers, splitters)
	}
	return v.blankSplitting(parsed, normalizers, splitters)
}

// byteLevelSplitting finds the name that GGUF has for the way in which a byte-level BPE splits text: the combination of
// its splitters, its normalizer, and whether it ignores merges.
func (v *vocab) byteLevelSplitting(parsed *readTokenizer, normalizers, splitters []part) error {
	last := splitters[len(splitters)-1]
	v.prefix = last.AddPrefixSpace != nil && *last.AddPrefixSpace
	found, err := cutting(splitters)
	if err != nil {
		return err
	}
	found.ignoreMerges = parsed.Model.IgnoreMerges
	switch {
	case len(normalizers) == 0:
	case len(normalizers) == 1 && normalizers[0].Type == "NFC":
		found.nfc = true
	default:
		return noForm("normalizer", "%s is not supported; supported: nothing, NFC", normalizers[0].Type)
	}
	at := slices.IndexFunc(splittings, func(known splitting) bool {
		return known.pattern == found.pattern && known.nfc == found.nfc && known.digits == found.digits &&
			known.ignoreMerges == found.ignoreMerges
	})
	if at < 0 {
		return noForm("pre_tokenizer", "this way to split text has no name in GGUF; those that have: %s",
			splittingNames())
	}
	v.split = &splittings[at]
	return nil
}

// cutting returns how the steps of a byte-level BPE cut text: by its own pattern, by that and into single digits, or by
// the pattern of a step before it.
func cutting(splitters []part) (found splitting, err error) {
	first, last := splitters[0], splitters[len(splitters)-1]
	ownRegex := last.UseRegex == nil || *last.UseRegex
	switch {
	case len(splitters) == 1 && ownRegex:
	case len(splitters) == 2 && ownRegex && first.Type == "Digits" && first.IndividualDigits:
		found.digits = true
	case len(splitters) == 2 && !ownRegex && first.Type == "Split" && first.Behavior == "Isolated" && !first.Invert:
		found.pattern, _ = first.Pattern["Regex"].(string)
		if found.pattern == "" {
			return found, noForm("pre_tokenizer", "a Split without a regular expression is not supported")
		}
		// GPT-2's pattern is the byte-level step's own, so both spellings have one name.
		if found.pattern == patternGPT2 {
			found.pattern = ""
		}
	default:
		return found, noForm("pre_tokenizer", "this sequence of %d steps is not supported", len(splitters))
	}
	return found, nil
}

// blankSplitting accepts SentencePiece: blanks become visible, in the normalizer or before the merges.
func (v *vocab) blankSplitting(parsed *readTokenizer, normalizers, splitters []part) error {
	// Older files make blanks visible in the normalizer, newer ones in the pre-tokenizer.
	for _, step := range normalizers {
		switch blank, _ := step.Pattern["String"].(string); {
		case step.Type == "Prepend" && step.Prepend == space && !v.prefix:
			v.prefix = true
		case step.Type == "Replace" && blank == " " && step.Content == space:
		default:
			return noForm("normalizer", "%s is not supported; supported: what SentencePiece does with blanks",
				step.Type)
		}
	}
	for _, step := range splitters {
		switch blank, _ := step.Pattern["String"].(string); {
		case step.Type == "Metaspace" && step.Replacement == space && step.Split != nil && !*step.Split:
			// Readers of GGUF put a blank in front of all text between special tokens, also where it has one.
			if !v.prefix && step.PrependScheme != "never" {
				return noForm("pre_tokenizer", "Metaspace with prepend_scheme %q is not supported, since it puts no "+
					"second blank in front of text; supported: never, or behind a Prepend", step.PrependScheme)
			}
		case step.Type == "Split" && blank == " " && len(normalizers) > 0: // there are none left
		default:
			return noForm("pre_tokenizer", "%s is not supported; supported: ByteLevel, Metaspace without split",
				step.Type)
		}
	}
	if len(normalizers)+len(splitters) == 0 || !parsed.Model.ByteFallback {
		return noForm("model",
			"this BPE is neither byte-level nor SentencePiece with byte_fallback, which is not supported")
	}
	if parsed.Model.IgnoreMerges {
		return noForm("model", "ignore_merges is not supported of SentencePiece")
	}
	return nil
}

// scoreTokens gives a SentencePiece vocabulary its types and the scores that order its merges: the
// negative number of the first merge that makes a token. The merges themselves are kept only where
// they do not follow from the scores.
func (v *vocab) scoreTokens(parsed *readTokenizer) {
	v.scores = make([]float32, len(v.tokens))
	for i, token := range v.tokens {
		switch _, isByte := byteOf(token); {
		case isByte && v.types[i] == tokenNormal:
			v.types[i] = tokenByte
		case v.types[i] == tokenNormal:
			// Tokens that no merge makes come after all that one makes.
			v.scores[i] = -float32(len(v.merges))
		case v.types[i] == tokenUser: // readers look for them in text as it is written
			v.tokens[i] = strings.ReplaceAll(token, space, " ")
		}
	}
	if token := parsed.Model.UnkToken; token != nil {
		if id, ok := v.ids[*token]; ok {
			v.unk, v.types[id] = id, tokenUnknown
		}
	}
	// Backwards, so that the first merge that makes a token gives it its score.
	for i, merge := range slices.Backward(v.merges) {
		if id, ok := v.ids[merge[0]+merge[1]]; ok && v.types[id] == tokenNormal {
			v.scores[id] = -float32(i)
		}
	}
	if derived, err := derivedMerges(v.tokens, v.types, v.scores); err == nil && slices.Equal(derived, v.merges) {
		v.merges = nil
	}
}

// specials reads which tokens begin and end a text.
func (v *vocab) specials(parsed *readTokenizer, config []byte) error {
	var settings map[string]any
	if config != nil {
		if err := json.Unmarshal(config, &settings); err != nil {
			return diag.New(diag.ClassInput, "tokenizer_config.json: %w", err)
		}
	}
	// A special token is given as its text, or as an object with its text; -1 where the vocabulary lacks it.
	named := func(key string) int {
		text, ok := settings[key].(string)
		if object, isObject := settings[key].(map[string]any); isObject {
			text, ok = object["content"].(string)
		}
		if id, known := v.ids[text]; ok && known {
			return id
		}
		return -1
	}
	flag := func(key string) *bool {
		if on, ok := settings[key].(bool); ok {
			return &on
		}
		return nil
	}
	// The settings come first; special tokens of the template must agree with them.
	v.bos, v.eos, v.pad = named("bos_token"), named("eos_token"), named("pad_token")
	if v.unk < 0 {
		v.unk = named("unk_token")
	}
	v.addBOS, v.addEOS = flag("add_bos_token"), flag("add_eos_token")
	// A template names the tokens around a text too; it decides where the settings are silent.
	post, err := steps(parsed.PostProcessor, func(p part) []part { return p.Processors })
	if err != nil {
		return noForm("post_processor", "%v", err)
	}
	for _, step := range post {
		if step.Type != "ByteLevel" && step.Type != "TemplateProcessing" {
			return noForm("post_processor", "%s is not supported; supported: ByteLevel, TemplateProcessing", step.Type)
		}
		if err := v.readTemplate(step.Single); err != nil {
			return err
		}
	}
	return nil
}

// readTemplate takes the begin token from in front of the text and the end token from behind it.
func (v *vocab) readTemplate(pieces []templatePiece) error {
	behind := false
	for _, piece := range pieces {
		if piece.Sequence != nil {
			behind = true
			continue
		}
		id, ok := -1, false
		if piece.SpecialToken != nil {
			id, ok = v.ids[piece.SpecialToken.ID]
		}
		// Before the text only the begin token has a key, behind it only the end token.
		token, add := &v.bos, &v.addBOS
		if behind {
			token, add = &v.eos, &v.addEOS
		}
		if !ok || *token >= 0 && *token != id {
			return noForm("post_processor",
				"a template with other tokens than the begin and the end token is not supported")
		}
		*token = id
		if *add == nil {
			*add = new(true)
		}
	}
	return nil
}

// metadata returns the tokenizer as GGUF keys.
func (v *vocab) metadata() []keyValue {
	const p = tokenizerKey
	types := make([]int32, len(v.types))
	for i, kind := range v.types {
		types[i] = int32(kind)
	}
	kind, pre := "llama", "default"
	if v.split != nil {
		kind, pre = "gpt2", v.split.names[0]
	}
	out := []keyValue{{p + "model", kind}, {p + "pre", pre}, {p + "tokens", v.tokens}}
	if v.scores != nil {
		out = append(out, keyValue{p + "scores", v.scores})
	}
	out = append(out, keyValue{p + "token_type", types})
	// A SentencePiece vocabulary leaves out merges that follow from its scores.
	if len(v.merges) > 0 || v.split != nil {
		merges := make([]string, len(v.merges))
		for i, merge := range v.merges {
			merges[i] = merge[0] + " " + merge[1]
		}
		out = append(out, keyValue{p + "merges", merges})
	}
	for _, key := range []struct {
		key string
		id  int
	}{{"unknown_token_id", v.unk}, {"padding_token_id", v.pad}} {
		if key.id >= 0 {
			out = append(out, keyValue{p + key.key, uint32(key.id)})
		}
	}
	for _, key := range []struct {
		key string
		on  *bool
	}{{"add_bos_token", v.addBOS}, {"add_eos_token", v.addEOS}} {
		if key.on != nil {
			out = append(out, keyValue{p + key.key, *key.on})
		}
	}
	// Readers assume a blank before the text for SentencePiece, and none for a byte-level BPE.
	if v.prefix != (v.split == nil) {
		out = append(out, keyValue{p + "add_space_prefix", v.prefix})
	}
	return out
}

// exportTemplates writes the chat templates: the file beside the tokenizer, or those in its configuration.
func exportTemplates(directory *Directory) ([]keyValue, error) {
	const key = "tokenizer.chat_template"
	if directory.ChatTemplate != "" {
		return []keyValue{{key, directory.ChatTemplate}}, nil
	}
	var config struct {
		ChatTemplate json.RawMessage `json:"chat_template"`
	}
	if directory.TokenizerConfig == nil {
		return nil, nil
	}
	if err := json.Unmarshal(directory.TokenizerConfig, &config); err != nil {
		return nil, diag.New(diag.ClassInput, "tokenizer_config.json: %w", err)
	}
	if len(config.ChatTemplate) == 0 || string(config.ChatTemplate) == "null" {
		return nil, nil
	}
	var plain string
	if json.Unmarshal(config.ChatTemplate, &plain) == nil {
		return []keyValue{{key, plain}}, nil
	}
	var named []struct{ Name, Template string }
	if err := json.Unmarshal(config.ChatTemplate, &named); err != nil {
		return nil, diag.New(diag.ClassInput, "tokenizer_config.json: key %q: want a text or a list of named texts",
			"chat_template")
	}
	var out []keyValue
	var names []string
	for _, template := range named {
		if template.Name == "default" {
			out = append(out, keyValue{key, template.Template})
			continue
		}
		names = append(names, template.Name)
		out = append(out, keyValue{key + "." + template.Name, template.Template})
	}
	if names != nil {
		out = append(out, keyValue{"tokenizer.chat_templates", names})
	}
	return out, nil
}

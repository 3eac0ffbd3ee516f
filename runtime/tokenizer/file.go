package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/diag"
)

// Bounds of the files; the largest published tokenizer.json has 34 MB.
const (
	maxFileBytes   = 64 << 20
	maxConfigBytes = 8 << 20
)

// Option adds to what New is given.
type Option func(*options)

type options struct{ chatTemplate *string }

// WithChatTemplate gives the bytes of the chat_template.jinja beside tokenizer.json. It counts before the
// chat_template of tokenizer_config.json.
func WithChatTemplate(jinja []byte) Option {
	return func(o *options) { text := string(jinja); o.chatTemplate = &text }
}

// New reads the bytes of a tokenizer.json. config is the tokenizer_config.json beside it, nil when
// there is none; bos is the id that begins a text according to the model, -1 for none.
//
// Which tokens Prompt adds is said by the post-processor's template, and by add_bos_token and add_eos_token of
// config, which count more. The token itself is bos_token or eos_token of config, or bos. Where neither says
// anything, a text begins with bos if config has it as bos_token under a name that means the begin of a
// text ("<s>"), and not as eos_token too. Under other names, as "<|im_start|>", it begins something else.
//
// Truncation and padding in the file are ignored: they are settings of a call.
//
// Errors are of class ClassInput and name the part that is malformed or not supported. A chat template that
// is malformed is no error until Chat is called.
func New(tokenizer, config []byte, bos int, opts ...Option) (Tokenizer, error) {
	unbound, err := Read(tokenizer, config, opts...)
	if err != nil {
		return nil, err
	}
	return unbound.Begin(bos)
}

// Unbound is a tokenizer that has not been told yet which token begins a text.
type Unbound struct {
	t      *pipeline
	after  edges
	config *config
	chat   *string // instead of config's template
}

// Read is New up to the point where bos counts: most of it.
func Read(tokenizer, config []byte, opts ...Option) (*Unbound, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	unbound := &Unbound{chat: o.chatTemplate}
	return unbound, refused(unbound.read(tokenizer, config))
}

// Begin is the rest of New. It may be called once.
func (u *Unbound) Begin(bos int) (Tokenizer, error) {
	if err := refused(u.bind(bos)); err != nil {
		return nil, err
	}
	return u.t, nil
}

func refused(err error) error {
	if err == nil {
		return nil
	}
	return diag.New(diag.ClassInput, "read tokenizer: %w", err).WithHint("a model without a supported tokenizer runs on token ids (--tokens)")
}

// beginNames are names of tokens that begin texts and nothing else.
var beginNames = []string{"<s>", "<bos>", "<BOS>", "[BOS]", "<|begin_of_text|>"}

func (u *Unbound) read(data, configData []byte) (err error) {
	if len(data) > maxFileBytes {
		return fmt.Errorf("tokenizer.json: %d bytes, want at most %d", len(data), maxFileBytes)
	}
	if !utf8.Valid(data) || !json.Valid(data) {
		return errors.New("tokenizer.json: not valid JSON in UTF-8")
	}
	if u.t, u.after, err = readFile(trim(data)); err != nil {
		return fmt.Errorf("tokenizer.json: %w", err)
	}
	if u.config, err = readConfig(configData); err != nil {
		return fmt.Errorf("tokenizer_config.json: %w", err)
	}
	return nil
}

func (u *Unbound) bind(bos int) (err error) {
	pipe, config, after := u.t, u.config, u.after
	if pipe.front, err = config.edge(pipe, after.front, config.AddBOS, config.BOS, "bos_token", bos); err != nil {
		return fmt.Errorf("tokenizer_config.json: %w", err)
	}
	if id, ok := pipe.id(string(config.BOS)); ok && config.AddBOS == nil && len(after.front)+len(after.back) == 0 &&
		slices.Contains(beginNames, string(config.BOS)) && config.BOS != config.EOS && int(id) == bos {
		pipe.front = []int32{id}
	}
	if pipe.back, err = config.edge(pipe, after.back, config.AddEOS, config.EOS, "eos_token", -1); err != nil {
		return fmt.Errorf("tokenizer_config.json: %w", err)
	}
	for _, id := range slices.Concat(pipe.front, pipe.back) {
		if id < 0 || int(id) >= pipe.VocabSize() {
			return fmt.Errorf("token %d begins or ends a text, but the vocabulary ends at %d", id, pipe.VocabSize()-1)
		}
	}
	pipe.chat = config.chat(u.chat)
	return nil
}

// readFile reads a tokenizer.json that is valid JSON.
func readFile(data []byte) (*pipeline, edges, error) {
	var parts struct{ added, model, normalizer, pre, post, decoder []byte }
	fields := map[string]*[]byte{
		"added_tokens": &parts.added, "model": &parts.model, "normalizer": &parts.normalizer,
		"pre_tokenizer": &parts.pre, "post_processor": &parts.post, "decoder": &parts.decoder,
		"version": new([]byte), "truncation": new([]byte), "padding": new([]byte),
	}
	fail := func(err error) (*pipeline, edges, error) { return nil, edges{}, err }
	if err := members(data, func(key string, value []byte) error {
		if fields[key] == nil {
			return fmt.Errorf("unknown field %q", clip(key))
		}
		if key != "added_tokens" && key != "model" && len(value) > maxPart {
			return fmt.Errorf("%s: %d bytes, want at most %d", key, len(value), maxPart)
		}
		*fields[key] = value
		return nil
	}); err != nil {
		return fail(err)
	}
	if part(parts.model).isNull() {
		return fail(errors.New("no model"))
	}
	pipe := &pipeline{}
	var err error
	if pipe.model, err = readBPE(parts.model); err != nil {
		return fail(fmt.Errorf("model: %w", err))
	}
	if pipe.normalizers, err = newNormalizers(parts.normalizer, 0); err != nil {
		return fail(fmt.Errorf("normalizer: %w", err))
	}
	if pipe.splitters, pipe.model.raw, err = newSplitters(parts.pre); err != nil {
		return fail(fmt.Errorf("pre_tokenizer: %w", err))
	}
	pipe.model.cuts = pipe.model.cuts && !pipe.model.raw
	if pipe.decoder, err = newDecoder(parts.decoder); err != nil {
		return fail(fmt.Errorf("decoder: %w", err))
	}
	added, err := readAdded(parts.added)
	if err == nil {
		err = pipe.model.addTokens(added)
	}
	if err == nil {
		err = pipe.addFinders(added)
	}
	if err != nil {
		return fail(err)
	}
	after, err := readPostProcessor(parts.post, 0)
	if err != nil {
		return fail(fmt.Errorf("post_processor: %w", err))
	}
	return pipe, after, nil
}

// addFinders says where added tokens are looked for: normalized ones, normalised themselves, after
// normalisation, the others before. Special tokens count first. Decoding gives the text that was looked
// for, and the reference knows special tokens by their text.
func (t *pipeline) addFinders(added []addedToken) error {
	var tokens [2][]addedToken
	var texts [2][]string
	special := map[string]bool{}
	for _, token := range added {
		special[token.Content] = special[token.Content] || token.Special
	}
	total := 0
	for _, first := range []bool{true, false} {
		for _, token := range added {
			if token.Special != first {
				continue
			}
			text, phase := token.Content, 0
			if token.Normalized {
				phase = 1
				for _, normalize := range t.normalizers {
					var err error
					if text, err = normalize(text); err != nil {
						return fmt.Errorf("added token %q: %w", token.Content, err)
					}
				}
				if text == "" {
					return fmt.Errorf("added token %q: nothing is left of it after normalisation", token.Content)
				}
			}
			if total += len(text); total > 4*maxAddedTotal {
				return errors.New("added tokens are too long after normalisation")
			}
			tokens[phase] = append(tokens[phase], token)
			texts[phase] = append(texts[phase], text)
			t.model.tokens[token.ID] = text
			if special[text] {
				t.model.special = append(t.model.special, token.ID)
			}
		}
	}
	slices.Sort(t.model.special)
	t.before, t.after = newFinder(tokens[0], texts[0]), newFinder(tokens[1], texts[1])
	return nil
}

// edges are ids around a text.
type edges struct{ front, back []int32 }

const (
	knownProcessors = "ByteLevel, Sequence, TemplateProcessing"
	maxEdge         = 64
)

// readPostProcessor returns the ids a post-processor puts around a text.
func readPostProcessor(raw part, depth int) (edges, error) {
	if raw.isNull() {
		return edges{}, nil
	}
	type piece struct {
		Sequence, SpecialToken *struct {
			ID     string `json:"id"`
			TypeID int    `json:"type_id"`
		}
	}
	var fields struct {
		Type           string  `json:"type"`
		Processors     []part  `json:"processors"`
		AddPrefixSpace bool    `json:"add_prefix_space"`
		TrimOffsets    bool    `json:"trim_offsets"`
		UseRegex       bool    `json:"use_regex"`
		Single         []piece `json:"single"`
		Pair           []piece `json:"pair"`
		SpecialTokens  map[string]struct {
			ID     string   `json:"id"`
			IDs    []int32  `json:"ids"`
			Tokens []string `json:"tokens"`
		} `json:"special_tokens"`
	}
	switch raw.kind() {
	case "ByteLevel", "Sequence", "TemplateProcessing":
	default:
		return edges{}, raw.unsupported(knownProcessors)
	}
	if err := raw.strict(&fields); err != nil {
		return edges{}, err
	}
	var out edges
	if fields.Type == "Sequence" {
		all, err := flatten(fields.Processors, depth, func(raw part, depth int) ([]edges, error) {
			inner, err := readPostProcessor(raw, depth)
			return []edges{inner}, err
		})
		for _, inner := range all { // a later one adds outside
			out.front = append(inner.front, out.front...)
			out.back = append(out.back, inner.back...)
		}
		return out, err
	}
	if fields.Type == "ByteLevel" {
		return out, nil
	}
	text := false
	for _, part := range fields.Single {
		switch {
		case part.SpecialToken != nil && part.Sequence == nil:
			tok, ok := fields.SpecialTokens[part.SpecialToken.ID]
			if !ok || len(tok.IDs) == 0 || len(tok.IDs) > maxEdge || len(out.front)+len(out.back) > maxEdge {
				return out, fmt.Errorf("special token %q has no ids, or too many", clip(part.SpecialToken.ID))
			}
			if text {
				out.back = append(out.back, tok.IDs...)
			} else {
				out.front = append(out.front, tok.IDs...)
			}
		case part.Sequence != nil && part.SpecialToken == nil && part.Sequence.ID == "A" && !text:
			text = true
		default:
			return out, errors.New("a template that is not special tokens around one text is not supported")
		}
	}
	if !text {
		return out, errors.New("template without the text")
	}
	return out, nil
}

// config is what is read of a tokenizer_config.json.
type config struct {
	AddBOS       *bool           `json:"add_bos_token"`
	AddEOS       *bool           `json:"add_eos_token"`
	BOS          namedToken      `json:"bos_token"`
	EOS          namedToken      `json:"eos_token"`
	UNK          namedToken      `json:"unk_token"`
	SEP          namedToken      `json:"sep_token"`
	PAD          namedToken      `json:"pad_token"`
	CLS          namedToken      `json:"cls_token"`
	MASK         namedToken      `json:"mask_token"`
	ChatTemplate json.RawMessage `json:"chat_template"`
}

// namedToken is written "text" or {"content":"text", ..}; "" for null or none.
type namedToken string

func (n *namedToken) UnmarshalJSON(data []byte) error {
	var token struct {
		Content string `json:"content"`
	}
	if len(data) > 0 && data[0] == '{' {
		err := json.Unmarshal(data, &token)
		*n = namedToken(token.Content)
		return err
	}
	if string(data) == "null" || string(data) == "false" {
		return nil
	}
	return json.Unmarshal(data, (*string)(n))
}

func readConfig(data []byte) (*config, error) {
	c := &config{}
	if data == nil {
		return c, nil
	}
	if len(data) > maxConfigBytes {
		return nil, fmt.Errorf("%d bytes, want at most %d", len(data), maxConfigBytes)
	}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, errors.New(clip(err.Error()))
	}
	return c, nil
}

// edge returns the ids before or after a text: those of the post-processor, unless config says
// whether there are any.
func (c *config) edge(pipe *pipeline, processor []int32, add *bool, token namedToken, name string, id int) ([]int32, error) {
	switch {
	case add == nil:
		return processor, nil
	case !*add:
		return nil, nil
	case len(processor) > 0:
		return processor, nil
	}
	if token != "" {
		known, ok := pipe.id(string(token))
		if !ok {
			return nil, fmt.Errorf("%s %q is not in the vocabulary", name, clip(string(token)))
		}
		return []int32{known}, nil
	}
	if id < 0 {
		return nil, fmt.Errorf("add_%s is true, but there is no %s", name, name)
	}
	return []int32{int32(id)}, nil
}

// id is the id of a token by its text.
func (t *pipeline) id(token string) (int32, bool) {
	for _, f := range []*finder{t.before, t.after} {
		for i := range f.tokens {
			if f.tokens[i].Content == token {
				return f.tokens[i].ID, true
			}
		}
	}
	id, ok := t.model.vocab[token]
	return id, ok
}

func trim(data []byte) []byte {
	for len(data) > 0 && (data[0] == ' ' || data[0] == '\t' || data[0] == '\r' || data[0] == '\n') {
		data = data[1:]
	}
	return data
}

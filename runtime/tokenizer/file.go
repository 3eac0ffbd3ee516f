package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
)

// Bounds of the files; the largest published tokenizer.json has 34 MB.
const (
	maxFileBytes   = 64 << 20
	maxConfigBytes = 8 << 20
)

// New reads the bytes of a tokenizer.json. config is the tokenizer_config.json beside it, nil when
// there is none; bos is the id that begins a text according to the model, -1 for none.
//
// Which tokens Prompt adds is said by the post-processor's template, and by add_bos_token and add_eos_token of config,
// which count more. The token itself is bos_token or eos_token of config, or bos. Where neither says anything, a text
// begins with bos if config has it as bos_token under a name that means the begin of a text ("<s>"), and not as
// eos_token too. Under other names, as "<|im_start|>", it begins something else.
// RATIONALE: When does a prompt begin with the model's begin token, if the tokenizer does not say?
//
// Truncation and padding in the file are ignored: they are settings of a call.
//
// Errors are of class ClassInput and name the part that is malformed or not supported. A chat template that
// is malformed is no error until Chat is called.
func New(tokenizer, config []byte, bos int) (Tokenizer, error) {
	unbound, err := Read(tokenizer, config)
	if err != nil {
		return nil, err
	}
	return unbound.Begin(bos)
}

// Unbound is a tokenizer that has not been told yet which token begins a text.
type Unbound struct {
	pipeline *pipeline
	around   edges // by the post-processor
	config   *config
}

// Read is New up to the point where bos counts: most of it.
func Read(tokenizer, config []byte) (*Unbound, error) {
	unbound := &Unbound{}
	return unbound, refused(unbound.read(tokenizer, config))
}

// Begin does the rest of New. It may be called once.
func (u *Unbound) Begin(bos int) (Tokenizer, error) {
	if err := refused(u.bind(bos)); err != nil {
		return nil, err
	}
	return u.pipeline, nil
}

// refused says what to do without the tokenizer.
func refused(err error) error {
	if err == nil {
		return nil
	}
	return diag.New(diag.ClassInput, "read tokenizer: %w", err).
		WithHint("a model without a supported tokenizer runs on token ids (--tokens)")
}

// beginNames are names of tokens that begin texts and nothing else.
var beginNames = []string{"<s>", "<bos>", "<BOS>", "[BOS]", "<|begin_of_text|>"}

// read reads both files; what depends on bos is left to bind.
func (u *Unbound) read(data, configData []byte) (err error) {
	if len(data) > maxFileBytes {
		return fmt.Errorf("tokenizer.json: %d bytes, want at most %d", len(data), maxFileBytes)
	}
	if u.config, err = readConfig(configData); err != nil {
		return fmt.Errorf("tokenizer_config.json: %w", err)
	}
	var parts fileParts
	if err = document(data, parts.read); err == nil {
		u.pipeline, u.around, err = parts.assemble(u.config)
	}
	if err != nil {
		return fmt.Errorf("tokenizer.json: %w", err)
	}
	return nil
}

// bind decides which tokens begin and end a text; see New.
func (u *Unbound) bind(bos int) (err error) {
	pipe, config := u.pipeline, u.config
	pipe.front, err = config.edge(pipe, u.around.front, config.AddBOS, config.BOS.Content, "bos_token", bos)
	if err != nil {
		return fmt.Errorf("tokenizer_config.json: %w", err)
	}
	// Old files do not say whether a text begins with bos. It does where the model's configuration names the same
	// token.
	unsaid := config.AddBOS == nil && len(u.around.front)+len(u.around.back) == 0
	if unsaid && slices.Contains(beginNames, config.BOS.Content) && config.BOS.Content != config.EOS.Content {
		if id, ok := pipe.id(config.BOS.Content); ok && int(id) == bos {
			pipe.front = []int32{id}
		}
	}
	pipe.back, err = config.edge(pipe, u.around.back, config.AddEOS, config.EOS.Content, "eos_token", -1)
	if err != nil {
		return fmt.Errorf("tokenizer_config.json: %w", err)
	}
	for _, id := range slices.Concat(pipe.front, pipe.back) {
		if id < 0 || int(id) >= pipe.VocabSize() {
			return fmt.Errorf("token %d begins or ends a text, but the vocabulary ends at %d", id, pipe.VocabSize()-1)
		}
	}
	pipe.chat = config.chat()
	return nil
}

// fileParts are the parts of a tokenizer.json. The small ones are still JSON.
type fileParts struct {
	model                          *bpe
	added                          []addedToken
	normalizer, pre, post, decoder part
}

// read reads the parts in one pass.
func (p *fileParts) read(s *scanner) error {
	var unused part
	parts := map[string]*part{
		"normalizer": &p.normalizer, "pre_tokenizer": &p.pre, "post_processor": &p.post, "decoder": &p.decoder,
		"version": &unused, "truncation": &unused, "padding": &unused,
		"model": &unused, "added_tokens": &unused, // where they are null
	}
	err := s.members(func(field []byte) (err error) {
		key, null := string(field), s.next() == 'n'
		switch {
		case key == "model" && !null:
			if p.model, err = readModel(s); err != nil {
				return fmt.Errorf("model: %w", err)
			}
			return nil
		case key == "added_tokens" && !null:
			p.added, err = readAdded(s)
			return err
		case parts[key] == nil:
			return fmt.Errorf("unknown field %q", clip(key))
		}
		value, err := s.raw()
		if err == nil && len(value) > maxPart {
			return fmt.Errorf("%s: %d bytes, want at most %d", key, len(value), maxPart)
		}
		*parts[key] = value
		return err
	})
	if err == nil && p.model == nil {
		err = errors.New("no model")
	}
	return err
}

// assemble makes a tokenizer of the parts. settings may name further added tokens.
func (p *fileParts) assemble(settings *config) (*pipeline, edges, error) {
	fail := func(part string, err error) (*pipeline, edges, error) {
		return nil, edges{}, fmt.Errorf("%s: %w", part, err)
	}
	pipe := &pipeline{model: p.model, added: map[int32][]byte{}, size: len(p.model.ranges)}
	var err error
	if pipe.normalizers, err = newNormalizers(p.normalizer, 0); err != nil {
		return fail("normalizer", err)
	}
	if pipe.splitters, pipe.model.raw, err = newSplitters(p.pre, pipe.normalizers); err != nil {
		return fail("pre_tokenizer", err)
	}
	// bytes have no metaspace to cut at
	pipe.model.cuts = pipe.model.cuts && !pipe.model.raw
	if pipe.decoder, err = newDecoder(p.decoder); err != nil {
		return fail("decoder", err)
	}
	if err := pipe.declare(p.added, settings); err != nil {
		return nil, edges{}, err
	}
	around, err := readPostProcessor(p.post, 0)
	if err != nil {
		return fail("post_processor", err)
	}
	return pipe, around, nil
}

// declare gives the added tokens, of the configuration too, their ids, and says where they are looked for.
func (t *pipeline) declare(added []addedToken, settings *config) error {
	if err := t.addTokens(added); err != nil {
		return err
	}
	all, special, err := settings.declare(slices.Clone(added), &t.model.vocabulary)
	if err != nil {
		return err
	}
	t.own = t.VocabSize()
	if err := t.extend(all[len(added):]); err != nil {
		return err
	}
	return t.addFinders(all, special)
}

// addFinders says where added tokens are looked for. Those that are Normalized are normalised themselves and looked for
// in normalised text, the others before normalisation. Decoding gives the text that was looked for, and the reference
// knows special tokens by their text.
//
// Of tokens that normalisation makes equal, the first special one counts, or the first. The reference finds one of them
// too, but another in each process.
func (t *pipeline) addFinders(added []addedToken, special map[string]bool) error {
	var tokens [2][]addedToken // before and after normalisation
	var texts [2][]string
	// special tokens come first, so that of equal texts they win
	rank := func(token addedToken) int {
		if token.Special {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(added, func(left, right addedToken) int { return rank(left) - rank(right) })
	total := 0
	for _, token := range added {
		text, phase := token.Content, 0
		if token.Normalized {
			var err error
			if text, err = t.normalize(text); err != nil {
				return fmt.Errorf("added token %q: %w", token.Content, err)
			}
			phase = 1
		}
		if text == "" {
			return fmt.Errorf("added token %q: nothing is left of it after normalisation", token.Content)
		}
		if total += len(text); total > 4*maxAddedTotal {
			return errors.New("added tokens are too long after normalisation")
		}
		tokens[phase] = append(tokens[phase], token)
		texts[phase] = append(texts[phase], text)
		t.addText(token.ID, text)
		if special[text] {
			t.special = append(t.special, token.ID)
		}
	}
	slices.Sort(t.special)
	t.before, t.after = newFinder(tokens[0], texts[0]), newFinder(tokens[1], texts[1])
	return nil
}

// edges are ids around a text.
type edges struct{ front, back []int32 }

const (
	knownProcessors = "ByteLevel, Sequence, TemplateProcessing"
	maxEdge         = 64
)

// processorFields are those of all kinds of post-processors.
type processorFields struct {
	Type string `json:"type"`
	// of a Sequence
	Processors []part `json:"processors"`
	// of ByteLevel, where offsets into the text are not needed
	AddPrefixSpace bool `json:"add_prefix_space"`
	TrimOffsets    bool `json:"trim_offsets"`
	UseRegex       bool `json:"use_regex"`
	// of TemplateProcessing; texts in pairs are not encoded, so pair is read only to be known
	Single []templatePart `json:"single"`
	Pair   []templatePart `json:"pair"`
	// the ids of the special tokens in a template
	SpecialTokens map[string]struct {
		ID     string   `json:"id"`
		IDs    []int32  `json:"ids"`
		Tokens []string `json:"tokens"`
	} `json:"special_tokens"`
}

// A templatePart is the text, which has the id A, or a special token.
type templatePart struct {
	Sequence, SpecialToken *struct {
		ID     string `json:"id"`
		TypeID int    `json:"type_id"`
	}
}

// readPostProcessor returns the ids that a post-processor puts around a text.
func readPostProcessor(raw part, depth int) (out edges, err error) {
	if raw.isNull() {
		return edges{}, nil
	}
	kind := raw.kind()
	if !slices.Contains(strings.Split(knownProcessors, ", "), kind) {
		return edges{}, raw.unsupported(knownProcessors)
	}
	var fields processorFields
	if err := raw.strict(&fields); err != nil {
		return edges{}, err
	}
	switch fields.Type {
	case "Sequence":
		all, err := flatten(fields.Processors, depth, func(raw part, depth int) ([]edges, error) {
			inner, err := readPostProcessor(raw, depth)
			return []edges{inner}, err
		})
		for _, inner := range all {
			if len(inner.front)+len(inner.back) == 0 {
				continue
			}
			// The reference loses the text or stops at the second one.
			if err == nil && len(out.front)+len(out.back) > 0 {
				return edges{}, errors.New("a Sequence of several templates is not supported")
			}
			out = inner
		}
		return out, err
	case "TemplateProcessing":
		return fields.template()
	}
	return out, nil
}

// template returns the ids of the special tokens before and after the text.
func (f *processorFields) template() (out edges, err error) {
	// special tokens before A are in front, those after it behind
	text := false
	for _, part := range f.Single {
		switch {
		case part.SpecialToken != nil && part.Sequence == nil:
			ids := f.SpecialTokens[part.SpecialToken.ID].IDs
			if len(ids) == 0 || len(ids) > maxEdge || len(out.front)+len(out.back) > maxEdge {
				return out, fmt.Errorf("special token %q has no ids, or too many", clip(part.SpecialToken.ID))
			}
			if text {
				out.back = append(out.back, ids...)
			} else {
				out.front = append(out.front, ids...)
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

// config holds the fields of a tokenizer_config.json that are used.
type config struct {
	// nil where the file does not say
	AddBOS *bool `json:"add_bos_token"`
	AddEOS *bool `json:"add_eos_token"`
	// tokens by the part they play; "" where the file has none
	BOS  declaredToken `json:"bos_token"`
	EOS  declaredToken `json:"eos_token"`
	UNK  declaredToken `json:"unk_token"`
	SEP  declaredToken `json:"sep_token"`
	PAD  declaredToken `json:"pad_token"`
	CLS  declaredToken `json:"cls_token"`
	MASK declaredToken `json:"mask_token"`
	// special tokens written in a text are text
	SplitSpecial any `json:"split_special_tokens"`
	// a text, or a list of named ones
	ChatTemplate json.RawMessage `json:"chat_template"`
	declared
}

// readConfig reads a tokenizer_config.json. Fields that are not used are ignored.
func readConfig(data []byte) (*config, error) {
	read := &config{}
	if data == nil {
		return read, nil
	}
	if len(data) > maxConfigBytes {
		return nil, fmt.Errorf("%d bytes, want at most %d", len(data), maxConfigBytes)
	}
	if err := json.Unmarshal(data, read); err != nil {
		return nil, errors.New(clip(err.Error()))
	}
	if read.SplitSpecial == true {
		return nil, errors.New("split_special_tokens is true, which is not supported; supported: false")
	}
	return read, nil
}

// edge returns the ids before or after a text. They are those of the post-processor, unless config says whether there
// are any. If config asks for one and the post-processor has none, it is config's token or, without one, id.
func (c *config) edge(
	pipe *pipeline, processor []int32, add *bool, token, name string, id int,
) ([]int32, error) {
	switch {
	case add == nil:
		return processor, nil
	case !*add:
		return nil, nil
	case len(processor) > 0:
		return processor, nil
	}
	if token != "" {
		// A token that only the configuration has would have no row in the model's embedding.
		known, ok := pipe.id(token)
		if !ok || int(known) >= pipe.own {
			return nil, fmt.Errorf("%s %q is not in the vocabulary", name, clip(token))
		}
		return []int32{known}, nil
	}
	if id < 0 {
		return nil, fmt.Errorf("add_%s is true, but there is no %s", name, name)
	}
	return []int32{int32(id)}, nil
}

// id returns the id of a token by its text.
func (t *pipeline) id(token string) (int32, bool) {
	for _, f := range []*finder{t.before, t.after} {
		for i := range f.tokens {
			if f.tokens[i].Content == token {
				return f.tokens[i].ID, true
			}
		}
	}
	id := t.model.id([]byte(token))
	return id, id >= 0
}

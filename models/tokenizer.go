package models

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
)

// Files of a tokenizer in a Hugging Face directory.
const (
	tokenizerName       = "tokenizer.json"
	tokenizerConfigName = "tokenizer_config.json"
	templateName        = "chat_template.jinja"
	templateKey         = "chat_template"

	maxTokenizerBytes = 64 << 20
)

// TokenizerFiles returns the model's tokenizer as the bytes of Hugging Face files, by role: "tokenizer" is
// tokenizer.json, "config" is tokenizer_config.json. The chat template is in the latter, even if it was a file of its
// own. What the model does not have is missing. A GGUF file's tokenizer is translated.
func (m *Model) TokenizerFiles() (map[string][]byte, error) {
	out := map[string][]byte{}
	fail := func(err error) (map[string][]byte, error) {
		return nil, fmt.Errorf("tokenizer of model %q: %w", m.Dir, err)
	}
	switch {
	case m.gguf != nil:
		tokenizer, config, err := m.gguf.Tokenizer()
		if err != nil {
			return fail(err)
		}
		if tokenizer != nil {
			out["tokenizer"], out["config"] = tokenizer, config
		}
		return out, nil
	case m.Dir == "":
		return out, nil
	}
	var template []byte
	for _, file := range []struct {
		name string
		put  func([]byte)
	}{
		{tokenizerName, func(b []byte) { out["tokenizer"] = b }},
		{tokenizerConfigName, func(b []byte) { out["config"] = b }},
		{templateName, func(b []byte) { template = b }},
	} {
		data, err := wholefile.Read(filepath.Join(m.Dir, file.name), maxTokenizerBytes)
		if err == nil {
			file.put(data)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fail(err)
		}
	}
	// Newer models keep the chat template in a file of its own. It is put into the configuration, where all others have
	// it and the runtime looks for it.
	if template != nil && out["tokenizer"] != nil {
		config, err := withTemplate(out["config"], template)
		if err != nil {
			return fail(err)
		}
		out["config"] = config
	}
	return out, nil
}

// withTemplate puts the text of a chat template into a tokenizer_config.json (nil: an empty one), in place of
// another. All other keys keep their text.
func withTemplate(config, template []byte) ([]byte, error) {
	keys := map[string]json.RawMessage{}
	if config != nil {
		if err := json.Unmarshal(config, &keys); err != nil {
			return nil, diag.New(diag.ClassInput, "parse %s: %w", tokenizerConfigName, err)
		}
		if keys == nil { // null
			return nil, diag.New(diag.ClassInput, "parse %s: got null, want an object", tokenizerConfigName)
		}
	}
	text, err := json.Marshal(string(template))
	if err != nil {
		return nil, diag.New(diag.ClassInternal, "%s: %w", templateName, err)
	}
	keys[templateKey] = text
	return json.Marshal(keys)
}

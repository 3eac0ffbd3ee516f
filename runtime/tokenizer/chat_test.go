package tokenizer

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
)

// clock is the time testdata/chat.py gave the reference.
var clock = time.Date(2024, 7, 5, 9, 8, 7, 0, time.UTC)

type chatFile struct {
	Tokens        map[string]string
	Conversations []struct {
		Messages, Tools, Variables json.RawMessage
	}
	Templates map[string]struct {
		Template string
		Texts    []*string // for each conversation, without and with a generation prompt
	}
}

func chats(t testing.TB) *chatFile {
	t.Helper()
	data, err := os.ReadFile("testdata/chat.json")
	if err != nil {
		t.Fatal(err)
	}
	var f chatFile
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	return &f
}

// withConfig is the demo tokenizer with a tokenizer_config.json.
func withConfig(t testing.TB, config any, opts ...Option) Tokenizer {
	t.Helper()
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := New(read(t, "tokenizer.json"), b, 1, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestChatTemplates(t *testing.T) {
	f := chats(t)
	if len(f.Templates) < 15 || len(f.Conversations) < 15 {
		t.Fatalf("%d templates, %d conversations", len(f.Templates), len(f.Conversations))
	}
	for name, template := range f.Templates {
		config := map[string]any{"chat_template": template.Template}
		for k, v := range f.Tokens {
			config[k] = v
		}
		inConfig := withConfig(t, config)
		config["chat_template"] = "not this one"
		inFile := withConfig(t, config, WithChatTemplate([]byte(template.Template)))
		texts := 0
		for i, c := range f.Conversations {
			// A message without a role is nothing ParseMessages takes.
			var raw []json.RawMessage
			if err := json.Unmarshal(c.Messages, &raw); err != nil {
				t.Fatal(err)
			}
			messages := make([]Message, len(raw))
			for j := range raw {
				messages[j].JSON = raw[j]
			}
			for j, prompt := range []bool{false, true} {
				want := template.Texts[2*i+j]
				for _, tok := range []Tokenizer{inConfig, inFile} {
					got, err := tok.Chat(messages, ChatOptions{AddGenerationPrompt: prompt, Tools: c.Tools, Variables: c.Variables, Now: clock})
					switch {
					case want == nil && err == nil:
						t.Errorf("%s, conversation %d: got %q, want an error", name, i, got)
					case want == nil && (diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) == 0):
						t.Errorf("%s, conversation %d: error %v of class %d without a hint", name, i, err, diag.ClassOf(err))
					case want != nil && err != nil:
						t.Errorf("%s, conversation %d: %v", name, i, err)
					case want != nil && got != *want:
						t.Errorf("%s, conversation %d:\n got %q\nwant %q", name, i, got, *want)
					}
				}
				if want != nil {
					texts++
				}
			}
		}
		if texts == 0 {
			t.Errorf("%s: no text", name)
		}
	}
}

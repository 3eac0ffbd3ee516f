package tokenizer

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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
func withConfig(t testing.TB, config any) Tokenizer {
	t.Helper()
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := New(read(t, "tokenizer.json"), b, 1)
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
		tok := withConfig(t, config)
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
				got, err := tok.Chat(t.Context(), messages, ChatOptions{AddGenerationPrompt: prompt, Tools: c.Tools, Variables: c.Variables, Now: clock})
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

func TestWhichChatTemplate(t *testing.T) {
	named := []any{map[string]any{"name": "default", "template": "D"}, map[string]any{"name": "tool_use", "template": "T"}, map[string]any{"name": "rag", "template": "R"}}
	for name, c := range map[string]struct {
		template any
		tools    string
		want     string // "!" and part of the error
	}{
		"text":             {"X{{ bos_token }}", "", "X<s>"},
		"default of list":  {named, "", "D"},
		"for tools":        {named, "[]", "T"},
		"none for tools":   {named[:1], "[]", "D"},
		"no default":       {named[1:], "", "!no default chat template, only rag, tool_use"},
		"none":             {nil, "", "!the model has no chat template"},
		"a number":         {5, "", "!neither a text nor a list"},
		"malformed":        {"{% if %}", "", "!line 1: unexpected %}, want an expression"},
		"tools no list":    {"{{ tools }}", "{", "!tools: "},
		"hostile":          {"{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}", "", "!more than"},
		"refuses":          {"{{ raise_exception('not today') }}", "", "!not today"},
		"no clock":         {"{{ strftime_now('%Y') }}", "", "!no clock"},
		"what there is of": {"{{ tools }}{{ documents }}{{ pad_token }}|{{ eos_token }}{{ add_generation_prompt }}", "", "NoneNone|</s>False"},
	} {
		tok := withConfig(t, map[string]any{"chat_template": c.template, "bos_token": map[string]any{"content": "<s>"}, "eos_token": "</s>", "pad_token": nil})
		var o ChatOptions
		if c.tools != "" {
			o.Tools = []byte(c.tools)
		}
		got, err := tok.Chat(t.Context(), nil, o)
		if want, isError := strings.CutPrefix(c.want, "!"); isError {
			if err == nil || !strings.Contains(err.Error(), want) || diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) == 0 {
				t.Errorf("%s: got %q, %v, want error %q", name, got, err, want)
			}
		} else if err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
}

func TestMessages(t *testing.T) {
	m, err := ParseMessages([]byte(` [ {"role":"user","content":"a\u00e9"}, {"role":"assistant","content":[{"type":"text"}],"n":1} ] `))
	if err != nil || len(m) != 2 || m[0].Role != "user" || m[0].Content != "aé" || m[1].Content != "" || string(m[1].JSON) != `{"role":"assistant","content":[{"type":"text"}],"n":1}` {
		t.Errorf("got %+v, %v", m, err)
	}
	for in, want := range map[string]string{
		"": "not valid JSON", "{}": "want a list", "[1]": "message 1: ", `[{"role":"user"},{"content":"x"}]`: "message 2: role is missing", `[{"role":5}]`: "message 1: ",
		`[{"role":"user","content":"a"},{"role":"user","content":"b","role":"system"}]`: `message 2: key "role" twice`,
		`[{"role":"user","content":"a","Content":"b"}]`:                                 `message 1: key "Content" twice`,
		strings.Repeat(" ", maxText+1):                                                  "want at most", "[" + strings.Repeat(`{"role":"u"},`, maxMessages) + `{"role":"u"}]`: "more than 65536",
	} {
		if _, err := ParseMessages([]byte(in)); err == nil || !strings.Contains(err.Error(), want) || diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) == 0 {
			t.Errorf("%.40q: got %v, want %q", in, err, want)
		}
	}
	tok := withConfig(t, map[string]any{"chat_template": "{{ messages }}"})
	got, err := tok.Chat(t.Context(), []Message{{Role: "user", Content: "a\xffb"}, {JSON: []byte(`{"role":"x","y":[1.5,null]}`)}}, ChatOptions{Variables: []byte(`{"z":1}`)})
	if want := "[{'role': 'user', 'content': 'a\ufffdb'}, {'role': 'x', 'y': [1.5, None]}]"; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for name, c := range map[string]struct {
		messages []Message
		o        ChatOptions
	}{
		"a message that is no object": {[]Message{{JSON: []byte(`[]`)}}, ChatOptions{}},
		"a message that is no JSON":   {[]Message{{JSON: []byte(`{`)}}, ChatOptions{}},
		"variables that are a list":   {nil, ChatOptions{Variables: []byte(`[]`)}},
		"too much text":               {[]Message{{Content: strings.Repeat("x", maxText+1)}}, ChatOptions{}},
		"too many messages":           {make([]Message, maxMessages+1), ChatOptions{}},
	} {
		if got, err := tok.Chat(t.Context(), c.messages, c.o); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

func FuzzChatTemplate(f *testing.F) {
	file := chats(f)
	for _, template := range file.Templates {
		for i, c := range file.Conversations {
			if i%5 == 1 {
				f.Add(template.Template, []byte(c.Messages), []byte(c.Tools), true)
			}
		}
	}
	f.Add("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", []byte(`[]`), []byte(nil), false)
	f.Add("{% for a in range(99999) recursive %}{{ loop([a]) }}{% endfor %}{{ '%5s' % 'x' }}", []byte(`[{"role":"user","content":null}]`), []byte(`{}`), false)
	f.Fuzz(func(t *testing.T, template string, messages, tools []byte, prompt bool) {
		templates := map[string]string{"default": template}
		tok := &pipeline{chat: chat{templates: templates, tokens: map[string]string{"bos_token": "<s>"}}}
		m, err := ParseMessages(messages)
		if err != nil {
			m = []Message{{Role: "user", Content: string(messages)}}
		}
		text, err := tok.Chat(t.Context(), m, ChatOptions{AddGenerationPrompt: prompt, Tools: tools, Now: clock})
		if err != nil {
			if diag.ClassOf(err) != diag.ClassInput {
				t.Error(err)
			}
			return
		}
		if !utf8.ValidString(text) {
			t.Errorf("%q is not UTF-8", text)
		}
	})
}

package tokenizer

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/diag"
)

// clock is the time testdata/chat.py gave the reference.
var clock = time.Date(2024, 7, 5, 9, 8, 7, 0, time.UTC)

// chatFile is testdata/chat.json: what the reference makes of conversations with the templates of models.
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

// chats reads it.
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

// The templates of models give the texts that the reference gives, and refuse what it refuses.
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
			for j, prompt := range []bool{false, true} {
				got, err := tok.Chat(t.Context(), rawMessages(t, c.Messages), ChatOptions{
					AddGenerationPrompt: prompt, Tools: c.Tools, Variables: c.Variables, Now: clock,
				})

				what := fmt.Sprintf("%s, conversation %d", name, i)
				want := template.Texts[2*i+j]
				switch {
				case want == nil && err == nil:
					t.Errorf("%s: got %q, want an error", what, got)
				case want == nil:
					checkRefusal(t, what, err, "")
				case err != nil:
					t.Errorf("%s: %v", what, err)
				case got != *want:
					t.Errorf("%s:\n got %q\nwant %q", what, got, *want)
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

// rawMessages are messages as they are: ParseMessages would refuse one without a role.
func rawMessages(t *testing.T, list json.RawMessage) []Message {
	t.Helper()
	var raw []json.RawMessage
	if err := json.Unmarshal(list, &raw); err != nil {
		t.Fatal(err)
	}
	messages := make([]Message, len(raw))
	for i := range raw {
		messages[i].JSON = raw[i]
	}
	return messages
}

// Of several templates that for tools is taken where there are tools, else the default one.
func TestWhichChatTemplate(t *testing.T) {
	named := []any{
		map[string]any{"name": "default", "template": "D"},
		map[string]any{"name": "tool_use", "template": "T"},
		map[string]any{"name": "rag", "template": "R"},
	}
	everything := "{{ tools }}{{ documents }}{{ pad_token }}|{{ eos_token }}{{ add_generation_prompt }}"
	for _, c := range []struct {
		name     string
		template any
		tools    string
		want     string
	}{
		{name: "text", template: "X{{ bos_token }}", want: "X<s>"},
		{name: "default of list", template: named, want: "D"},
		{name: "for tools", template: named, tools: "[]", want: "T"},
		{name: "none for tools", template: named[:1], tools: "[]", want: "D"},
		{name: "what there is of", template: everything, want: "NoneNone|</s>False"},
	} {
		got, err := chatWith(t, c.template, c.tools)
		if err != nil || got != c.want {
			t.Errorf("%s: got %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

// A template that is missing, malformed, hostile, or that refuses, is an input error with a hint.
func TestRefusedChatTemplates(t *testing.T) {
	loops := "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}"
	others := []any{
		map[string]any{"name": "tool_use", "template": "T"},
		map[string]any{"name": "rag", "template": "R"},
	}
	for _, c := range []struct {
		name     string
		template any
		tools    string
		want     string
	}{
		{name: "no default", template: others, want: "no default chat template, only rag, tool_use"},
		{name: "none", want: "the model has no chat template"},
		{name: "a number", template: 5, want: "neither a text nor a list"},
		{name: "malformed", template: "{% if %}", want: "line 1: unexpected %}, want an expression"},
		{name: "tools no list", template: "{{ tools }}", tools: "{", want: "tools: "},
		{name: "hostile", template: loops, want: "more than"},
		{name: "refuses", template: "{{ raise_exception('not today') }}", want: "not today"},
		{name: "no clock", template: "{{ strftime_now('%Y') }}", want: "no clock"},
	} {
		_, err := chatWith(t, c.template, c.tools)
		checkRefusal(t, c.name, err, c.want)
	}
}

// chatWith renders no messages with a template and tools.
func chatWith(t *testing.T, template any, tools string) (string, error) {
	t.Helper()
	tok := withConfig(t, map[string]any{
		"chat_template": template,
		"bos_token":     map[string]any{"content": "<s>"},
		"eos_token":     "</s>",
		"pad_token":     nil,
	})
	var options ChatOptions
	if tools != "" {
		options.Tools = []byte(tools)
	}
	return tok.Chat(t.Context(), nil, options)
}

// Messages are parsed with their roles, and with their contents where these are texts.
func TestParseMessages(t *testing.T) {
	const second = `{"role":"assistant","content":[{"type":"text"}],"n":1}`

	m, err := ParseMessages([]byte(` [ {"role":"user","content":"a\u00e9"}, ` + second + ` ] `))
	if err != nil || len(m) != 2 {
		t.Fatalf("got %+v, %v, want two messages", m, err)
	}

	if m[0].Role != "user" || m[0].Content != "aé" {
		t.Errorf("got %+v, want the user's text", m[0])
	}
	if m[1].Content != "" || string(m[1].JSON) != second {
		t.Errorf("got %+v, want no text but the JSON", m[1])
	}
}

// Messages that are no list of objects with roles, or too many, are refused with what is wrong.
func TestRefusedMessages(t *testing.T) {
	many := "[" + strings.Repeat(`{"role":"u"},`, maxMessages) + `{"role":"u"}]`
	for _, c := range []struct{ text, want string }{
		{"", "not valid JSON"},
		{"{}", "want a list"},
		{"[1]", "message 1: "},
		{`[{"role":"user"},{"content":"x"}]`, "message 2: role is missing"},
		{`[{"role":5}]`, "message 1: "},
		{
			`[{"role":"user","content":"a"},{"role":"user","content":"b","role":"system"}]`,
			`message 2: key "role" twice`,
		},
		{`[{"role":"user","content":"a","Content":"b"}]`, `message 1: key "Content" twice`},
		{strings.Repeat(" ", maxText+1), "want at most"},
		{many, "more than 65536"},
	} {
		_, err := ParseMessages([]byte(c.text))
		checkRefusal(t, fmt.Sprintf("%.40q", c.text), err, c.want)
	}
}

// A template sees a message as its JSON, or as its role and content in UTF-8.
func TestMessagesOfTemplates(t *testing.T) {
	tok := withConfig(t, map[string]any{"chat_template": "{{ messages }}"})
	messages := []Message{
		{Role: "user", Content: "a\xffb"},
		{JSON: []byte(`{"role":"x","y":[1.5,null]}`)},
	}

	got, err := tok.Chat(t.Context(), messages, ChatOptions{Variables: []byte(`{"z":1}`)})

	want := "[{'role': 'user', 'content': 'a\ufffdb'}, {'role': 'x', 'y': [1.5, None]}]"
	if err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// A conversation that cannot be rendered is an input error.
func TestRefusedConversations(t *testing.T) {
	tok := withConfig(t, map[string]any{"chat_template": "{{ messages }}"})
	for _, c := range []struct {
		name     string
		messages []Message
		options  ChatOptions
	}{
		{name: "a message that is no object", messages: []Message{{JSON: []byte(`[]`)}}},
		{name: "a message that is no JSON", messages: []Message{{JSON: []byte(`{`)}}},
		{name: "variables that are a list", options: ChatOptions{Variables: []byte(`[]`)}},
		{name: "too much text", messages: []Message{{Content: strings.Repeat("x", maxText+1)}}},
		{name: "too many messages", messages: make([]Message, maxMessages+1)},
	} {
		got, err := tok.Chat(t.Context(), c.messages, c.options)
		if diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %q, %v, want an input error", c.name, got, err)
		}
	}
}

// A template gives text in UTF-8 or an input error, whatever the messages and tools.
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
	f.Add("{% for a in range(99999) recursive %}{{ loop([a]) }}{% endfor %}{{ '%5s' % 'x' }}",
		[]byte(`[{"role":"user","content":null}]`), []byte(`{}`), false)
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

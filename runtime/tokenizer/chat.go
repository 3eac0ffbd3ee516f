package tokenizer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/strictjson"
	"github.com/hetc/hetc/runtime/tokenizer/jinja"
)

// maxMessages bounds a conversation.
const maxMessages = 1 << 16

// Message is one message of a conversation.
type Message struct {
	Role    string // "system", "user", "assistant", "tool", or what else the template knows
	Content string
	// JSON, unless nil, is the whole message as a JSON object, with fields such as tool_calls; Role and
	// Content are ignored then.
	JSON []byte
}

// ErrNoTemplate is in the error of Chat where the model has no chat template.
var ErrNoTemplate = errors.New("the model has no chat template")

// ParseMessages reads a JSON list of messages: objects with at least a role. The error is of class ClassInput.
func ParseMessages(data []byte) ([]Message, error) {
	fail := func(format string, args ...any) ([]Message, error) {
		return nil, diag.New(diag.ClassInput, "read messages: "+format, args...).
			WithHint(`write [{"role":"user","content":"Hello"}]`)
	}
	if len(data) > maxText {
		return fail("%d bytes, want at most %d", len(data), maxText)
	}
	// As everywhere, bytes that are not UTF-8 are read as U+FFFD.
	if !utf8.Valid(data) {
		data = []byte(string([]rune(string(data))))
	}
	var out []Message
	err := document(data, func(s *scanner) error {
		return s.list(func() error {
			if len(out) == maxMessages {
				return fmt.Errorf("more than %d messages", maxMessages)
			}
			value, err := s.raw()
			if err != nil {
				return err
			}
			message, err := readMessage(value)
			if err != nil {
				return fmt.Errorf("message %d: %w", len(out)+1, err)
			}
			out = append(out, message)
			return nil
		})
	})
	if err != nil {
		return fail("%w", err)
	}
	return out, nil
}

// readMessage reads one message.
func readMessage(value []byte) (Message, error) {
	var fields struct {
		Role    string `json:"role"`
		Content any    `json:"content"`
	}
	if err := json.Unmarshal(value, &fields); err != nil {
		return Message{}, errors.New(clip(err.Error()))
	}
	if err := strictjson.OnceEach(value); err != nil {
		return Message{}, errors.New(clip(err.Error()))
	}
	if fields.Role == "" {
		return Message{}, errors.New("role is missing or empty")
	}
	// Contents that are not a text stay in the JSON, which templates read.
	content, _ := fields.Content.(string)
	return Message{fields.Role, content, slices.Clone(value)}, nil
}

// ChatOptions are what a chat template is given beside the messages.
type ChatOptions struct {
	AddGenerationPrompt bool      // end with what begins the model's answer
	Tools               []byte    // JSON list of the tools the model may call, nil for none
	Variables           []byte    // JSON object of further variables ({"enable_thinking":false}), nil for none
	Now                 time.Time // the date, for templates that write it; zero makes those fail
}

// chat is how conversations are written: templates by name, and the texts of tokens that every one is given.
type chat struct {
	templates map[string]string
	err       error // why there are none
	tokens    map[string]string
}

// chat reads chat_template: a template, or a list of them with names.
func (c *config) chat() chat {
	out := chat{templates: map[string]string{}, tokens: map[string]string{}}
	for name, token := range map[string]declaredToken{
		"bos_token": c.BOS, "eos_token": c.EOS, "unk_token": c.UNK, "sep_token": c.SEP, "pad_token": c.PAD,
		"cls_token": c.CLS, "mask_token": c.MASK,
	} {
		if token.Content != "" {
			out.tokens[name] = token.Content
		}
	}
	// either form, told apart by trying
	var one string
	var several []struct{ Name, Template string }
	switch raw := part(c.ChatTemplate); {
	case raw.isNull():
	case json.Unmarshal(raw, &one) == nil:
		out.templates["default"] = one
	case json.Unmarshal(raw, &several) == nil:
		for _, template := range several {
			out.templates[template.Name] = template.Template
		}
	default:
		out.err = errors.New("chat_template of tokenizer_config.json is neither a text nor " +
			"a list of templates with names")
	}
	return out
}

// pick is the template for a conversation.
func (c *chat) pick(tools bool) (string, error) {
	if template, ok := c.templates["tool_use"]; ok && tools {
		return template, nil
	}
	if template, ok := c.templates["default"]; ok {
		return template, nil
	}
	if c.err != nil {
		return "", c.err
	}
	if len(c.templates) == 0 {
		return "", ErrNoTemplate
	}
	known := slices.Sorted(maps.Keys(c.templates))
	return "", fmt.Errorf("the model has no default chat template, only %s", clip(strings.Join(known, ", ")))
}

// Chat tells an error of the context, such as an interruption, from one of the template.
func (t *pipeline) Chat(ctx context.Context, messages []Message, options ChatOptions) (string, error) {
	text, err := t.chat.write(ctx, messages, options)
	if err != nil && ctx.Err() != nil {
		return "", fmt.Errorf("apply chat template: %w", err)
	}
	if err != nil {
		return "", diag.New(diag.ClassInput, "apply chat template: %w", err).
			WithHint("a prompt that is written as the model expects it needs no template (--prompt)")
	}
	return text, nil
}

// write applies the template that fits. The variables of a call count more than those of the model, messages and tools
// more than both.
func (c *chat) write(ctx context.Context, messages []Message, options ChatOptions) (string, error) {
	source, err := c.pick(options.Tools != nil)
	if err != nil {
		return "", err
	}
	template, err := jinja.Parse(source)
	if err != nil {
		return "", err
	}
	// later ones replace earlier ones: defaults, tokens, the caller's, tools, messages
	variables := map[string]jinja.Value{
		"tools": nil, "documents": nil, "add_generation_prompt": options.AddGenerationPrompt,
	}
	for name, token := range c.tokens {
		variables[name] = token
	}
	if options.Variables != nil {
		dict, err := readObject("variables", options.Variables)
		if err != nil {
			return "", err
		}
		maps.Insert(variables, dict.All())
	}
	if options.Tools != nil {
		if variables["tools"], err = readJSON("tools", options.Tools); err != nil {
			return "", err
		}
	}
	if variables["messages"], err = messageList(messages); err != nil {
		return "", err
	}
	return template.Execute(ctx, variables, jinja.Options{Now: options.Now})
}

// readJSON reads a JSON value for a template; what names it in errors.
func readJSON(what string, data []byte) (jinja.Value, error) {
	if len(data) > maxText {
		return nil, fmt.Errorf("%s: %d bytes, want at most %d", what, len(data), maxText)
	}
	value, err := jinja.FromJSON(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return value, nil
}

// readObject is readJSON for objects.
func readObject(what string, data []byte) (*jinja.Dict, error) {
	value, err := readJSON(what, data)
	if err != nil {
		return nil, err
	}
	dict, ok := value.(*jinja.Dict)
	if !ok {
		return nil, fmt.Errorf("%s: want a JSON object", what)
	}
	return dict, nil
}

// messageList makes the variable messages.
func messageList(messages []Message) (*jinja.List, error) {
	if len(messages) > maxMessages {
		return nil, fmt.Errorf("%d messages, want at most %d", len(messages), maxMessages)
	}
	total := 0
	out := &jinja.List{Items: make([]jinja.Value, 0, len(messages))}
	for i, message := range messages {
		if total += len(message.Role) + len(message.Content) + len(message.JSON); total > maxText {
			return nil, fmt.Errorf("the messages have more than %d bytes", maxText)
		}
		dict := &jinja.Dict{}
		if message.JSON == nil {
			dict.Set("role", strings.ToValidUTF8(message.Role, "\ufffd"))
			dict.Set("content", strings.ToValidUTF8(message.Content, "\ufffd"))
		} else {
			var err error
			if dict, err = readObject(fmt.Sprintf("message %d", i+1), message.JSON); err != nil {
				return nil, err
			}
		}
		out.Items = append(out.Items, withReasoning(dict))
	}
	return out, nil
}

// withReasoning adds the names under which templates look for what a model thought, wherever the message keeps it.
func withReasoning(message *jinja.Dict) *jinja.Dict {
	for _, name := range []string{"reasoning_content", "thinking", "reasoning"} {
		thought, _ := message.Get(name)
		if thought == nil {
			continue
		}
		// In the order of the reference, which templates that write whole messages show.
		out := &jinja.Dict{}
		out.Set("thinking", thought)
		for key, item := range message.All() {
			out.Set(key, item)
		}
		out.Set("reasoning_content", thought)
		return out
	}
	return message
}

package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/tokenizer/jinja"
)

// samples are conversations of the shapes that templates tell apart: with and without a system message, an answer
// in between, and one with a text of some length.
func samples() [][]Message {
	long := make([]byte, 16<<10)
	for i := range long {
		long[i] = "words of text \n"[i%15]
	}
	user, answer := Message{Role: "user", Content: "Hello"}, Message{Role: "assistant", Content: "Hi."}
	return [][]Message{
		{user},
		{{Role: "system", Content: "Be brief."}, user},
		{user, answer, {Role: "user", Content: string(long)}},
	}
}

// sampleTools is the list of tools of a sample conversation.
const sampleTools = `[{"type":"function","function":{"name":"now","description":"The time.","parameters":` +
	`{"type":"object","properties":{"zone":{"type":"string"}}}}}]`

// TryChat tries each sample with and without tools, on a fixed day, so that the same template gives the same answer.
func (t *pipeline) TryChat(ctx context.Context) (unusable, err error) {
	if len(t.chat.templates) == 0 && t.chat.err == nil {
		return nil, nil
	}
	written := false
	// one success is enough; a template that exceeds a bound is an error at once
	for _, tools := range []string{"", sampleTools} {
		for _, messages := range samples() {
			options := ChatOptions{AddGenerationPrompt: true, Now: time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC)}
			if tools != "" {
				options.Tools = []byte(tools)
			}
			_, err := t.chat.write(ctx, messages, options)
			switch {
			case err == nil:
				written = true
			case ctx.Err() != nil:
				return nil, fmt.Errorf("try chat template: %w", err)
			case errors.Is(err, jinja.ErrLimit):
				return nil, diag.New(diag.ClassInput, "apply chat template: %w (messages: %d)", err, len(messages)).
					WithHint("it would take as much in whatever runs it: correct chat_template in " +
						"tokenizer_config.json (or chat_template.jinja), or remove it; prompts without --chat need none")
			case unusable == nil:
				unusable = err
			}
		}
	}
	if written {
		return nil, nil
	}
	return unusable, nil
}

package runcmd

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/runtime/tokenizer"
)

// input turns the flags into token ids.
func (o *options) input(ctx context.Context, ui *cli.Streams, tok tokenizer.Tokenizer) ([]int32, error) {
	switch {
	case o.bench:
		return nil, nil
	case o.tokens != "":
		var ids []int32
		for f := range strings.SplitSeq(o.tokens, ",") {
			token, err := strconv.ParseInt(strings.TrimSpace(f), 10, 32)
			if err != nil {
				return nil, diag.New(diag.ClassUsage, "--tokens: %q is not a token id", f).
					WithHint("write ids separated by commas: --tokens 1,5,7")
			}
			ids = append(ids, int32(token))
		}
		return ids, nil
	}
	text := o.prompt
	// At most one of both is given, so that joining picks it.
	if file := o.promptFile + o.messages; file != "" {
		data, err := readAll(ctx, ui, file)
		if err != nil {
			return nil, err
		}
		text = data
	}
	if tok == nil {
		return nil, diag.New(diag.ClassInput, "the bundle has no tokenizer").WithHint("give token ids with --tokens")
	}
	var ids []int32
	var err error
	if o.answers() {
		var messages []tokenizer.Message
		if messages, err = o.conversation(text); err == nil {
			ids, err = answer(ctx, tok, messages)
		}
	} else {
		ids, err = tok.Prompt(text)
	}
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, diag.New(diag.ClassInput, "the prompt is empty and the model has no token to begin with").
			WithHint("give some text")
	}
	return ids, nil
}

// answers reports whether the input is a conversation.
func (o *options) answers() bool { return o.chat || o.messages != "" }

// conversation is that of one message, or of a list of them as JSON.
func (o *options) conversation(text string) ([]tokenizer.Message, error) {
	if o.messages != "" {
		return tokenizer.ParseMessages([]byte(text))
	}
	return o.message(text), nil
}

// message returns a conversation that begins with a message.
func (o *options) message(text string) (messages []tokenizer.Message) {
	if o.system != "" {
		messages = append(messages, tokenizer.Message{Role: "system", Content: o.system})
	}
	return append(messages, tokenizer.Message{Role: "user", Content: text})
}

// readAll reads a prompt from a file, or from standard input for "-". It returns when ctx ends even while
// nothing is written to the input.
func readAll(ctx context.Context, s *cli.Streams, path string) (string, error) {
	const limit = 16 << 20
	in := s.In
	if path != "-" {
		file, err := wholefile.Open(path)
		if err != nil {
			return "", fmt.Errorf("prompt: %w", err)
		}
		defer file.Close()
		in = file
	}
	type result struct {
		data []byte
		err  error
	}
	// a reader of its own, since a read of standard input cannot be cancelled
	done := make(chan result, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(in, limit+1))
		done <- result{data, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case result := <-done:
		switch {
		case result.err != nil:
			return "", diag.New(diag.ClassInput, "read prompt: %w", result.err)
		case len(result.data) > limit:
			return "", diag.New(diag.ClassInput, "read prompt %q: more than %d bytes", path, limit)
		}
		return string(result.data), nil
	}
}

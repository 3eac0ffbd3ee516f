package servecmd

import (
	"bytes"
	"encoding/json"
	"io"
	"os"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/serving"
)

// recording appends a line to a trace for every request that ends. Where a file is continued, so are its times.
type recording struct {
	file   *os.File
	origin float64 // ms of the file's last line
	warn   func(format string, args ...any)
	failed bool
}

// recorded is a line of the trace: what hetc simulate plays and hetc solve counts.
type recorded struct {
	AtMS   float64 `json:"at_ms"` // since the recording began
	Class  string  `json:"class"`
	Prompt int     `json:"prompt_tokens"`
	Cached int     `json:"cached_tokens,omitempty"` // of the prompt
	Output int     `json:"output_tokens"`
	// of the output tokens that were decoded alone, those that the text so far had a guess for, and rightly
	Guessed int `json:"guessed_tokens,omitempty"`
	Right   int `json:"right_tokens,omitempty"`
}

// firstKey is what every line begins with.
const firstKey = `{"at_ms":`

// lastLines is how much of the end of a file is looked at for its last line.
const lastLines = 4096

// record opens a file to append to. A line that was cut off, because the machine stopped while it was written, goes.
func record(path string, warn func(format string, args ...any)) (*recording, error) {
	fail := func(err error) (*recording, error) {
		return nil, diag.New(diag.ClassIO, "--record %q: %w", path, err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fail(err)
	}
	out := &recording{file: file, warn: warn}
	size, err := file.Seek(0, io.SeekEnd)
	if err == nil && size > 0 {
		tail := make([]byte, min(size, lastLines))
		if _, err = file.ReadAt(tail, size-int64(len(tail))); err == nil {
			end := bytes.LastIndexByte(tail, '\n') + 1
			var last recorded
			line := tail[bytes.LastIndexByte(tail[:max(0, end-1)], '\n')+1 : end]
			onlyCutOff := end == 0 && bytes.HasPrefix(tail, []byte(firstKey))
			if wrong := json.Unmarshal(line, &last); wrong != nil && !onlyCutOff {
				_ = file.Close()
				return nil, diag.New(diag.ClassInput, "--record %q: its last line is no request: %w", path, wrong).
					WithHint("give a file that hetserve has written, or a new one")
			}
			out.origin = last.AtMS
			err = file.Truncate(size - int64(len(tail)) + int64(end))
		}
	}
	if err != nil {
		_ = file.Close()
		return fail(err)
	}
	return out, nil
}

// ended appends a request. What cannot be written is told once, and ends the recording, not the service.
func (r *recording) ended(request serving.Ended) {
	if r.failed {
		return
	}
	line, err := json.Marshal(recorded{AtMS: r.origin + float64(request.ArrivedNS/1e3)/1e3, Class: request.Class.String(),
		Prompt: request.PromptTokens, Cached: request.ReusedTokens, Output: request.GeneratedTokens,
		Guessed: request.Guessed, Right: request.Right})
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	if err != nil {
		r.failed = true
		r.warn("--record: no more requests are recorded: %v", err)
	}
}

// Close closes the file.
func (r *recording) Close() error { return r.file.Close() }

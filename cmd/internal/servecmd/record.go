package servecmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/filelock"
	"github.com/hetc/hetc/runtime/serving"
)

// recording appends a line to a trace for every request that ends. Where a file is continued, so are its times.
type recording struct {
	file   *os.File
	origin float64 // ms of the latest request in the file
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

// lastLines is how much of the end of a file is looked at for its last lines.
const lastLines = 4096

// lockPatience is how long a server waits for the one before. Tests wait less.
var lockPatience = filelock.OfTheKilled

// own keeps other servers out of a recording until the file is closed or this process dies: their times would count
// from other moments, and each would take the other's latest line for one that was cut off.
func own(file *os.File) error {
	err := filelock.TryFor(file, lockPatience)
	if err == nil || errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return diag.New(diag.ClassIO, "--record %q: another hetserve writes it: %w", file.Name(), err).
		WithHint("give each server a file of its own")
}

// record opens a file to append to. A line that was cut off, because the machine stopped while it was written, goes.
func record(path string, warn func(format string, args ...any)) (*recording, error) {
	fail := func(err error) (*recording, error) {
		return nil, diag.New(diag.ClassIO, "--record %q: %w", path, err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fail(err)
	}
	if err := own(file); err != nil {
		_ = file.Close()
		return nil, err
	}
	out := &recording{file: file, warn: warn}
	size, err := file.Seek(0, io.SeekEnd)
	if err == nil && size > 0 {
		tail := make([]byte, min(size, lastLines))
		if _, err = file.ReadAt(tail, size-int64(len(tail))); err == nil {
			latest, cutOff, wrong := ending(tail, size > lastLines)
			if wrong != nil {
				_ = file.Close()
				return nil, diag.New(diag.ClassInput, "--record %q: its last line is no request: %w", path, wrong).
					WithHint("give a file that hetserve has written, or a new one")
			}
			out.origin = latest
			err = file.Truncate(size - int64(cutOff))
		}
	}
	if err != nil {
		_ = file.Close()
		return fail(err)
	}
	return out, nil
}

// ending returns the latest time of the requests at the end of a recording, and the length of a line behind them that
// was cut off. Lines are in the order in which requests ended, so that the last one need not be the latest. The error
// says that this is no recording. partial: the first line began before tail does.
func ending(tail []byte, partial bool) (latest float64, cutOff int, err error) {
	lines := bytes.Split(tail, []byte("\n"))
	last := lines[len(lines)-1]
	lines = lines[:len(lines)-1]
	if partial {
		if len(lines) < 2 {
			return 0, 0, fmt.Errorf("want lines of less than %d bytes", len(tail))
		}
		lines = lines[1:]
	}
	for _, line := range lines {
		var request recorded
		if err := json.Unmarshal(line, &request); err != nil {
			return 0, 0, err
		}
		if !bytes.HasPrefix(line, []byte(firstKey)) || !(request.AtMS >= 0) {
			return 0, 0, fmt.Errorf("got %.40q, want a line that begins with %s and a time", line, firstKey)
		}
		latest = max(latest, request.AtMS)
	}
	if !bytes.HasPrefix(last, []byte(firstKey)) && !bytes.HasPrefix([]byte(firstKey), last) {
		return 0, 0, fmt.Errorf("got %.40q behind the last whole line, want a line that begins with %s", last, firstKey)
	}
	return latest, len(last), nil
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

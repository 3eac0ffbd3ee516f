package workload

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The acceptance of drafts is a number, or what a trace has counted.
func TestDrafts(t *testing.T) {
	dir := t.TempDir()
	trace := `{"at_ms":1,"class":"reactive","prompt_tokens":9,"output_tokens":50,"guessed_tokens":40,"right_tokens":30}
{"at_ms":2,"class":"reactive","prompt_tokens":9,"output_tokens":50}

{"at_ms":3,"class":"reactive","prompt_tokens":9,"output_tokens":60,"guessed_tokens":59,"right_tokens":30}
`
	for name, text := range map[string]string{
		"trace.jsonl": trace, "none.jsonl": `{"prompt_tokens":9,"output_tokens":50}`,
		"twice.jsonl": `{"guessed_tokens":1,"right_tokens":1,"right_tokens":0}`,
		"more.jsonl":  `{"guessed_tokens":1,"right_tokens":2}`, "all.jsonl": `{"guessed_tokens":9,"right_tokens":9}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	read := func(drafts string) (*Workload, error) {
		file := filepath.Join(dir, "work.yaml")
		if err := os.WriteFile(file, []byte("schema: "+Schema+"\ndrafts: "+drafts+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return Read(file)
	}

	for text, want := range map[string]Drafts{
		"{acceptance: 0.7}": {0.7, defaultDraft}, "{acceptance: 0, max: 3}": {0, 3},
		"{trace: trace.jsonl}": {0.6, defaultDraft}, "{trace: all.jsonl, max: 64}": {0.9, 64},
	} {
		if work, err := read(text); err != nil || work.Drafts == nil || *work.Drafts != want {
			t.Errorf("%s: got %+v (%v), want %+v", text, work, err, want)
		}
	}

	for text, want := range map[string]string{
		"{acceptance: 1}": "less than 1", "{acceptance: -0.5}": "at least 0",
		"{acceptance: 0.5, max: 0}": "want 1..64", "{acceptance: 0.5, max: 65}": "want 1..64",
		"{max: 3}": "either", "{acceptance: 0.5, trace: trace.jsonl}": "either",
		"{trace: none.jsonl}": "no guessed tokens", "{trace: twice.jsonl}": `key "right_tokens" twice`,
		"{trace: more.jsonl}": "2 of 1", "{trace: absent.jsonl}": "absent.jsonl", "{rate: 0.5}": "rate",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

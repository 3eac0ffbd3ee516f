package servecmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/filelock"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
)

// A recording goes on behind the last whole line of its file, and its times behind the time of that.
func TestRecordingGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	warn := func(format string, args ...any) { t.Errorf(format, args...) }
	write := func(ms int64) {
		t.Helper()
		log, err := record(path, warn)
		if err != nil {
			t.Fatal(err)
		}
		log.ended(serving.Ended{ArrivedNS: ms * 1e6, Class: scheduler.Reactive,
			Usage: serving.Usage{PromptTokens: 12, ReusedTokens: 5, GeneratedTokens: 3}})
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write(1500)
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(`{"at_ms":1600,"class":"rea`); err != nil {
		t.Fatal(err)
	}
	file.Close()
	write(250)
	got, err := os.ReadFile(path)
	want := `{"at_ms":1500,"class":"reactive","prompt_tokens":12,"cached_tokens":5,"output_tokens":3}
{"at_ms":1750,"class":"reactive","prompt_tokens":12,"cached_tokens":5,"output_tokens":3}
`
	if err != nil || string(got) != want {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
	if err := os.WriteFile(path, []byte(`{"at_ms":15,"cl`), 0o600); err != nil {
		t.Fatal(err)
	}
	write(250)
	if got, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(got), `{"at_ms":250,`) {
		t.Errorf("behind a first line that was cut off: %q, %v", got, err)
	}
	// The request that ended last need not have come last.
	if err := os.WriteFile(path, []byte(`{"at_ms":9000,"class":"reactive","prompt_tokens":12,"output_tokens":3}
{"at_ms":1500,"class":"reactive","prompt_tokens":12,"output_tokens":300}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	write(250)
	if got, err := os.ReadFile(path); err != nil || !strings.Contains(string(got), "\n"+`{"at_ms":9250,`) {
		t.Errorf("behind lines in the order in which requests ended: %q, %v", got, err)
	}
	for name, content := range map[string]string{
		"a text": "In the beginning\n", "no line": strings.Repeat("x", 5000),
		"other JSON": "{\"prompt\":120}\n", "no object": "null\n", "before the beginning": "{\"at_ms\":-1}\n",
		"other JSON without a line feed at its end": "{\"prompt\":120}\n{\"prompt\":130}",
		"something else behind a request":           "{\"at_ms\":1,\"class\":\"reactive\"}\nmine",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := record(path, warn); err == nil || !strings.Contains(err.Error(), "no request") {
			t.Errorf("%s: got %v", name, err)
		}
		if after, _ := os.ReadFile(path); string(after) != content {
			t.Errorf("%s: the file was changed", name)
		}
	}
	if _, err := record(filepath.Join(path, "below"), warn); err == nil {
		t.Error("a file below a file was opened")
	}
}

// Two servers do not write one file, and the second one leaves it as it is.
func TestRecordingHasOneWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	first, err := record(path, t.Errorf)
	if err != nil {
		t.Fatal(err)
	}
	if err := filelock.Try(first.file); err != nil {
		t.Skipf("no locks here: %v", err)
	}
	defer func(was time.Duration) { lockPatience = was }(lockPatience)
	lockPatience = 50 * time.Millisecond
	if second, err := record(path, t.Errorf); diag.ClassOf(err) != diag.ClassIO || !strings.Contains(err.Error(), "another hetserve") {
		t.Errorf("a second server: got %v, %v, want an error of class io", second, err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	third, err := record(path, t.Errorf)
	if err != nil {
		t.Fatalf("once the first server has ended: %v", err)
	}
	third.Close()
}

// What cannot be written is told once.
func TestRecordingFails(t *testing.T) {
	told := 0
	log, err := record(filepath.Join(t.TempDir(), "trace.jsonl"), func(string, ...any) { told++ })
	if err != nil {
		t.Fatal(err)
	}
	log.Close()
	for range 3 {
		log.ended(serving.Ended{})
	}
	if told != 1 {
		t.Errorf("told %d times, want once", told)
	}
}

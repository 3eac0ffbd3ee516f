package servecmd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
)

// openAIPackage is the official client, from PyPI.
const openAIPackage = "openai==3.54.0"

// openAI is a Python with the official client, or the end of the test where there is none.
func openAI(t *testing.T) (python string) {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	python = filepath.Join(dir, "bin", "python")
	if runtime.GOOS == "windows" {
		python = filepath.Join(dir, "Scripts", "python.exe")
	}
	for _, words := range [][]string{
		{"python3", "-m", "venv", dir}, {python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", openAIPackage},
	} {
		command := exec.CommandContext(ctx, words[0], words[1:]...)
		if out, err := command.CombinedOutput(); err != nil {
			require.Skip(t, "openai", errors.Join(errors.New(openAIPackage+" cannot be installed"), err, errors.New(string(out))))
		}
	}
	return python
}

// The official client for Python understands the server: testdata/client.py says what it wants.
func TestOpenAIClient(t *testing.T) {
	require.Slow(t)
	python := openAI(t)
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("first-key\nsecond-key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := alone(t)
	s := launch(t, "--api-key-file", keys)
	command := exec.CommandContext(t.Context(), python, "testdata/client.py", s.started.URL, "second-key")
	ids := r.tokens(t, prompts[0], greedy, 12)
	command.Env = append(os.Environ(), "WANT="+r.text(ids), "PROMPT="+prompts[0])
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

package ort_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/ort"
)

// open opens the first core with options; without the library the test is skipped.
func open(t *testing.T, options map[string]string) (driver.Processor, error) {
	t.Helper()
	p, err := ort.New().Open(t.Context(), driver.Config{Select: affinity.Selections()[0].Select, Options: options})
	if (errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrIncapable)) && options["library"] == "" {
		require.Skip(t, ort.Name, err)
	}
	return p, err
}

// A library that is missing or is none is an error that says what was looked at and what to do, and no other library is
// used instead.
func TestUnusableLibraries(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, path := range []string{
		filepath.Join(dir, "absent.so"),
		dir,
		file("empty.so", ""),
		file("text.so", "not a library\n"),
		file("cut.so", "\x7fELF\x02\x01\x01"),
	} {
		_, err := open(t, map[string]string{"library": path})
		if !errors.Is(err, driver.ErrUnavailable) || diag.ClassOf(err) != diag.ClassUnavailable {
			t.Errorf("library %q: got %v", path, err)
			continue
		}
		if text := err.Error(); !strings.Contains(text, path) || !strings.Contains(text, ortapi.EnvLibrary) {
			t.Errorf("library %q: got %v, want the path and %s", path, err, ortapi.EnvLibrary)
		}

		t.Setenv(ortapi.EnvLibrary, path)
		if _, err := ort.New().Devices(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("devices with library %q: got %v", path, err)
		}
	}
}

// Options and providers that cannot be had are refused by name, so that nothing runs elsewhere than was asked for.
func TestRefusedOptions(t *testing.T) {
	p, err := open(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, c := range []struct {
		options map[string]string
		class   diag.Class
		words   []string
	}{
		{
			options: map[string]string{"thread": "2"},
			class:   diag.ClassInput,
			words:   []string{`"thread"`},
		},
		{
			options: map[string]string{"provider.": "2"},
			class:   diag.ClassInput,
			words:   []string{`"provider."`},
		},
		{
			options: map[string]string{"provider": "NoSuchExecutionProvider"},
			class:   diag.ClassUnavailable,
			words:   []string{`"NoSuchExecutionProvider"`, "version"},
		},
		{
			options: map[string]string{"provider": "QNNExecutionProvider", "provider.backend_path": "x"},
			class:   diag.ClassUnavailable,
			words:   []string{`"QNNExecutionProvider"`},
		},
		{
			options: map[string]string{"provider.backend_path": "x"},
			class:   diag.ClassInput,
			words:   []string{"provider.backend_path"},
		},
		{
			options: map[string]string{"config.session.disable_cpu_ep_fallback": "0"},
			class:   diag.ClassInput,
			words:   []string{"fall"},
		},
		{
			options: map[string]string{"config.session.disable_quant_qdq": "0"},
			class:   diag.ClassInput,
			words:   []string{"precision"},
		},
	} {
		p, err := open(t, c.options)
		if err == nil {
			p.Close()
			t.Errorf("%v: accepted", c.options)
			continue
		}
		hints := diag.HintsOf(err)
		if diag.ClassOf(err) != c.class || len(hints) == 0 {
			t.Errorf("%v: class %v, hints %q of %v", c.options, diag.ClassOf(err), hints, err)
		}
		text := err.Error() + strings.Join(hints, " ")
		for _, word := range c.words {
			if !strings.Contains(text, word) {
				t.Errorf("%v: got %q, want it to mention %q", c.options, text, word)
			}
		}
	}
}

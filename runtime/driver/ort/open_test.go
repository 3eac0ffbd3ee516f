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

// A library that is not there, or is none, is told with what was looked at and the way out, and nothing else is used
// instead of it.
func TestUnusableLibraries(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, path := range []string{
		filepath.Join(dir, "absent.so"), dir, file("empty.so", nil), file("text.so", []byte("not a library\n")), file("cut.so", []byte("\x7fELF\x02\x01\x01")),
	} {
		_, err := open(t, map[string]string{"library": path})
		if !errors.Is(err, driver.ErrUnavailable) || diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), ortapi.EnvLibrary) {
			t.Errorf("library %q: got %v", path, err)
		}
		t.Setenv(ortapi.EnvLibrary, path)
		if _, err := ort.New().Devices(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("devices with library %q: got %v", path, err)
		}
	}
}

// Options and providers are refused by name; nothing runs elsewhere than was asked for.
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
		{map[string]string{"thread": "2"}, diag.ClassInput, []string{`"thread"`}},
		{map[string]string{"provider.": "2"}, diag.ClassInput, []string{`"provider."`}},
		{map[string]string{"provider": "NoSuchExecutionProvider"}, diag.ClassUnavailable, []string{`"NoSuchExecutionProvider"`, "version"}},
		{map[string]string{"provider": "QNNExecutionProvider", "provider.backend_path": "x"}, diag.ClassUnavailable, []string{`"QNNExecutionProvider"`}},
		{map[string]string{"provider.backend_path": "x"}, diag.ClassInput, []string{"provider.backend_path"}},
		{map[string]string{"config.session.disable_cpu_ep_fallback": "0"}, diag.ClassInput, []string{"fall"}},
		{map[string]string{"config.session.disable_quant_qdq": "0"}, diag.ClassInput, []string{"precision"}},
	} {
		p, err := open(t, c.options)
		if err == nil {
			p.Close()
			t.Errorf("%v: accepted", c.options)
			continue
		}
		text := err.Error() + strings.Join(diag.HintsOf(err), " ")
		for _, w := range c.words {
			if !strings.Contains(text, w) {
				t.Errorf("%v: got %q, want it to mention %q", c.options, text, w)
			}
		}
		if diag.ClassOf(err) != c.class || len(diag.HintsOf(err)) == 0 {
			t.Errorf("%v: class %v, hints %q of %v", c.options, diag.ClassOf(err), diag.HintsOf(err), err)
		}
	}
}

package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/cas"
)

func TestSelfTestsAreListed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "self-test")
	if found := selfTests(dir); len(found) != 1 || found[0].Status != OK || !strings.Contains(found[0].Found, "none") {
		t.Errorf("without a cache: %+v", found)
	}
	cache, err := cas.Open(dir, cas.Options{MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for key, text := range map[string]string{
		"a": `{"key":"a","product":"demo","bundle":"0123456789abcdef","processor":"gpu","device":"GPU of a test",` +
			`"library":"CL 3.0","kernels":12,"worst":0.25}`,
		"b": "no verdict",
		"c": `{"key":"of another build","product":"demo","bundle":"0123456789abcdef","processor":"gpu",` +
			`"device":"GPU of a test","library":"CL 3.0","kernels":12,"worst":0.25}`,
	} {
		entry, err := cache.Put(cas.KeyOf("verdict", key),
			func(path string) error { return os.WriteFile(path, []byte(text), 0o600) })
		if err != nil {
			t.Fatal(err)
		}
		entry.Close()
	}
	if err := cache.Close(); err != nil {
		t.Fatal(err)
	}
	const want = `12 kernels on "gpu" (GPU of a test, CL 3.0) agree with the reference, ` +
		`within 25 % of what is permitted; bundle demo 0123456789ab`
	if found := selfTests(dir); len(found) != 1 || found[0].Found != want {
		t.Errorf("got %+v, want %q", found, want)
	}
}

package bench

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
)

// A file is made again after any of its inputs, the model's files or the settings changed, or when a file that belongs
// to it is gone; and only then.
func TestUnlessDone(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(path(name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(path("model"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("program", "1")
	write("model/weights", "1")
	write("workload", "1")
	b := &enginesBench{EnginesOptions: &EnginesOptions{Cores: []int{0}}, s: &cli.Streams{Out: io.Discard, Err: io.Discard},
		self: path("program")}
	runs := 0
	work := func() error {
		runs++
		write("record", "2")
		write("soc", "2")
		return nil
	}

	for _, test := range []struct {
		name   string
		change func()
		again  bool
	}{
		{name: "the first time", change: func() {}, again: true},
		{name: "nothing changed", change: func() {}},
		{name: "another build", change: func() { write("program", "22") }, again: true},
		{name: "another workload", change: func() { write("workload", "22") }, again: true},
		{name: "other weights", change: func() { write("model/weights", "22") }, again: true},
		{name: "weights of the same size", change: func() {
			write("model/weights", "33")
			later := time.Now().Add(time.Hour)
			if err := os.Chtimes(path("model/weights"), later, later); err != nil {
				t.Fatal(err)
			}
		}, again: true},
		{name: "one more file", change: func() { write("model/config.json", "{}") }, again: true},
		{name: "other cores", change: func() { b.Cores = []int{1} }, again: true},
		{name: "more time", change: func() { b.profile = time.Hour }, again: true},
		{name: "without the record", change: func() { os.Remove(path("record")) }, again: true},
		{name: "without the SoC file", change: func() { os.Remove(path("soc")) }, again: true},
		{name: "with a record that was cut off", change: func() { write("record", "") }, again: true},
		{name: "with a SoC file that was edited", change: func() { write("soc", "22") }, again: true},
		{name: "with a damaged stamp", change: func() { write("record.stamp", "?") }, again: true},
		{name: "nothing changed at last", change: func() {}},
	} {
		before := runs
		test.change()
		err := b.unlessDone([]string{path("record"), path("soc")}, path("model"), []string{path("workload")}, work)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if again := runs > before; again != test.again {
			t.Errorf("%s: made again %v, want %v", test.name, again, test.again)
		}
	}

	// A GGUF file is a model without a directory.
	file, err := modelFiles(path("model/weights"))
	if err != nil || len(file) == 0 {
		t.Errorf("files of a model in one file: %q, %v", file, err)
	}
}

package golden

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// spy records what a test would have said.
type spy struct {
	testing.TB
	name   string
	errors []string
}

func (s *spy) Name() string              { return s.name }
func (s *spy) Helper()                   {}
func (s *spy) Errorf(f string, a ...any) { s.errors = append(s.errors, f) }
func (s *spy) Fatalf(f string, a ...any) { s.errors = append(s.errors, f) }
func (s *spy) failed() bool              { return len(s.errors) > 0 }
func file(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestEqual(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HETC_UPDATE", "")
	path := filepath.Join(folder, "TestX", "a_b.txt")

	s := &spy{name: "TestX/a b"}
	Equal(s, "txt", []byte("one\n"))
	if !s.failed() {
		t.Error("a missing file counts as equal")
	}
	if got := file(t, path+".got"); got != "one\n" {
		t.Errorf("left %q", got)
	}

	t.Setenv("HETC_UPDATE", "1")
	used.names = map[string]bool{}
	s = &spy{name: "TestX/a b"}
	Equal(s, "txt", []byte("one\n"))
	if s.failed() || file(t, path) != "one\n" {
		t.Errorf("update: %v", s.errors)
	}
	if _, err := os.Stat(path + ".got"); !os.IsNotExist(err) {
		t.Error("update leaves the .got file")
	}

	t.Setenv("HETC_UPDATE", "")
	used.names = map[string]bool{}
	s = &spy{name: "TestX/a b"}
	Equal(s, "txt", []byte("one\n"))
	if s.failed() {
		t.Errorf("equal output fails: %v", s.errors)
	}
	used.names = map[string]bool{}
	s = &spy{name: "TestX/a b"}
	Equal(s, "txt", []byte("two\n"))
	if !s.failed() || file(t, path) != "one\n" {
		t.Error("a difference passes, or changes the golden file")
	}
	s = &spy{name: "TestX/empty"}
	Equal(s, "txt", nil)
	if s.failed() {
		t.Errorf("missing is not empty: %v", s.errors)
	}
}

func TestOneFileIsComparedOnce(t *testing.T) {
	if repeated() {
		t.Skip("tests run several times in this process, so a second comparison is legitimate")
	}
	t.Chdir(t.TempDir())
	t.Setenv("HETC_UPDATE", "")
	used.names = map[string]bool{}
	s := &spy{name: "TestY"}
	Equal(s, "txt", nil)
	Equal(s, "txt", nil)
	if !s.failed() {
		t.Error("two comparisons with one file pass")
	}
}

type run int

func (r run) Run() int { return int(r) }

func TestOrphans(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HETC_UPDATE", "")
	used.names = map[string]bool{filepath.Join(folder, "TestA.txt"): true}
	for _, f := range []string{"TestA.txt", "TestA.txt.got", "TestOld/x.json"} {
		if err := write(filepath.Join(folder, f), nil); err != nil {
			t.Fatal(err)
		}
	}
	got, err := orphans(folder)
	if want := []string{filepath.Join(folder, "TestOld", "x.json")}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if partial() {
		t.Skip("only part of the tests run, so Main does not look for orphans")
	}
	if code := Main(run(0)); code != 1 {
		t.Errorf("orphan: exit %d, want 1", code)
	}
	if code := Main(run(3)); code != 3 {
		t.Errorf("failed tests: exit %d, want 3", code)
	}
	t.Setenv("HETC_UPDATE", "1")
	if code := Main(run(0)); code != 0 {
		t.Errorf("update: exit %d, want 0", code)
	}
	if got, _ := orphans(folder); len(got) != 0 {
		t.Errorf("update keeps %v", got)
	}
}

func TestPath(t *testing.T) {
	for name, want := range map[string]string{
		"TestX":            "TestX.txt",
		"TestX/a=1/b c":    "TestX/a_1/b_c.txt",
		"TestX/../../evil": "TestX/_../_../evil.txt",
		"TestX/ffn@256":    "TestX/ffn@256.txt",
	} {
		if got := filepath.ToSlash(strings.TrimPrefix(pathOf(&spy{name: name}, ".txt"), folder+string(filepath.Separator))); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestDifferenceNamesTheLine(t *testing.T) {
	if got, want := firstDifference("a\nb\n", "a\nc\n"), "line 2\n\twant b\n\tgot  c"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := firstDifference("a", "a\n"); !strings.Contains(got, "line 2") {
		t.Errorf("missing line: %q", got)
	}
}

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/require"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/internal/diag"
)

// The test binary plays a program whose command does not listen to signals.
func TestMain(m *testing.M) {
	if os.Getenv("CLI_TEST_STUBBORN") != "" {
		os.Exit(Main("tool", []string{"stubborn"}, os.Stdin, os.Stdout, os.Stderr, func(s *Streams) *cobra.Command {
			root := &cobra.Command{Use: "tool"}
			root.AddCommand(&cobra.Command{Use: "stubborn", RunE: func(c *cobra.Command, _ []string) error {
				s.Printf("ready\n")
				<-c.Context().Done()
				s.Printf("asked\n")
				time.Sleep(time.Minute)
				return c.Context().Err()
			}})
			return root
		}))
	}
	os.Exit(m.Run())
}

// A second signal ends a command that does not heed the first one.
func TestSecondSignal(t *testing.T) {
	require.Slow(t)
	if runtime.GOOS == "windows" {
		t.Skip("sends signals")
	}
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "CLI_TEST_STUBBORN=1")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	hung := time.AfterFunc(30*time.Second, func() { _ = c.Process.Kill() })
	defer hung.Stop()
	wait := func(word string) {
		line := make([]byte, len(word)+1)
		if _, err := io.ReadFull(out, line); err != nil || string(line) != word+"\n" {
			t.Fatalf("got %q, %v, want %q", line, err, word)
		}
	}
	wait("ready")
	_ = c.Process.Signal(os.Interrupt)
	wait("asked")
	// The first signal restores what a signal does by default, a moment after the command has been told.
	for range 100 {
		if err := c.Process.Signal(os.Interrupt); err != nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	_ = c.Wait()
	if s, ok := c.ProcessState.Sys().(syscall.WaitStatus); !ok || !s.Signaled() || s.Signal() != syscall.SIGINT {
		t.Errorf("ended with %v, want by the second SIGINT", c.ProcessState)
	}
}

// run executes Main with one command "do" that returns err.
func run(err error, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Main("tool", args, strings.NewReader(""), &out, &errs, func(s *Streams) *cobra.Command {
		root := &cobra.Command{Use: "tool"}
		var text, output, prompt, trace string
		var list []string
		do := &cobra.Command{Use: "do", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
			if err == nil {
				panic("BUG: on purpose")
			}
			return err
		}}
		do.Flags().StringVar(&text, "text", "", "some text")
		do.Flags().StringVar(&trace, "trace", "", "another file")
		do.Flags().StringVar(&prompt, "prompt", "", "some prompt")
		do.Flags().StringSliceVar(&list, "list", nil, "some words")
		do.Flags().StringVarP(&output, "output", "o", "", "some file")
		root.AddCommand(do)
		return root
	})
	return code, out.String(), errs.String()
}

func TestReport(t *testing.T) {
	list := diag.List{
		diag.New(diag.ClassInput, "first").WithCode("x.first").At("a:1").WithHint("mend it"),
		diag.New(diag.ClassInput, "second").At("a:2"),
	}
	for name, c := range map[string]struct {
		err    error
		code   int
		class  string
		errs   string // lines
		hint   string
		finds  int
		toPath string
	}{
		"one":          {list[0], 3, "input", "a:1: x.first: first", "mend it", 1, "a:1"},
		"wrapped":      {fmt.Errorf("read: %w", list[0]), 3, "input", "read: a:1: x.first: first", "mend it", 1, "a:1"},
		"several":      {list.Err(), 3, "input", "a:1: x.first: first|a:2: second", "mend it", 2, "a:1"},
		"no class":     {errors.New("oops"), 1, "internal", "oops", "please report it", 0, ""},
		"disk full":    {&fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, 9, "io", "write x: no space left on device", "free space", 0, ""},
		"too large":    {&fs.PathError{Op: "write", Path: "x", Err: syscall.EFBIG}, 9, "io", "write x: file too large", "ulimit -f", 0, ""},
		"read only":    {&fs.PathError{Op: "open", Path: "x", Err: syscall.EROFS}, 9, "io", "open x: read-only file system", "write elsewhere", 0, ""},
		"no memory":    {fmt.Errorf("allocate: %w", syscall.ENOMEM), 4, "unavailable", "allocate: cannot allocate memory", "ulimit -v", 0, ""},
		"not ours":     {diag.New(diag.ClassUnavailable, "driver"), 4, "unavailable", "driver", "hetc drivers", 1, ""},
		"control":      {diag.New(diag.ClassInput, "file %s", "\x1b[2Jx\ttab\u009b"), 3, "input", `file \x1b[2Jx\x09tab\x9b`, "correct", 1, ""},
		"not a signal": {context.Canceled, 1, "internal", "context canceled", "report", 0, ""},
		"a panic":      {nil, 1, "internal", "a defect of tool: BUG: on purpose", "please report it", 1, ""},
	} {
		code, stdout, stderr := run(c.err, "do")
		if code != c.code || stdout != "" {
			t.Errorf("%s: exit code %d, want %d; printed %q", name, code, c.code, stdout)
		}
		for l := range strings.SplitSeq(c.errs, "|") {
			if !strings.Contains(stderr, "tool: error: "+l+"\n") {
				t.Errorf("%s: got\n%s\nwant the error %s", name, stderr, l)
			}
		}
		if !strings.Contains(stderr, "tool: hint: ") || !strings.Contains(stderr, c.hint) {
			t.Errorf("%s: got\n%s\nwant the hint %q", name, stderr, c.hint)
		}
		// The same as a document, wherever the flag stands.
		for _, args := range [][]string{{"do", "--json"}, {"--json", "do"}} {
			code, stdout, _ = run(c.err, args...)
			var doc errorDocument
			if err := json.Unmarshal([]byte(stdout), &doc); err != nil {
				t.Errorf("%s %v: %v\n%s", name, args, err, stdout)
				continue
			}
			e := doc.Error
			if code != c.code || e.ExitCode != c.code || e.Class != c.class || len(e.Hints) == 0 || len(e.Diagnostics) != c.finds || e.Path != c.toPath {
				t.Errorf("%s %v: exit code %d, got %+v", name, args, code, e)
			}
		}
	}
}

// A line break in a name of a file, given or found, begins no line of its own: it could pose as another error or hint.
func TestNamesOfSeveralLines(t *testing.T) {
	given, found := "a dir\ntool: hint: x/f", "g\nh"
	reached := errors.Join(
		fmt.Errorf("open %s: %w", "a dir\ntool: hint: x/f.part", &fs.PathError{Op: "open", Path: found, Err: syscall.EACCES}),
		&os.LinkError{Op: "rename", Old: "old", New: "n\nm", Err: syscall.EACCES},
		diag.New(diag.ClassIO, "second").WithHint("look at %s", given))
	_, _, stderr := run(reached, "do", "--text="+given)
	want := `tool: error: open a dir\x0atool: hint: x/f.part: open g\x0ah: permission denied
tool: error: rename old n\x0am: permission denied
tool: error: second
tool: hint: look at a dir\x0atool: hint: x/f
`
	if stderr != want {
		t.Errorf("got\n%s\nwant\n%s", stderr, want)
	}
	if _, _, stderr := run(nil, "do", "--no\nflag"); strings.Count(stderr, "tool: error: ") != 1 {
		t.Errorf("a flag of two lines: got\n%s\nwant one error", stderr)
	}
}

// Results name files, too: nothing in a name reaches the terminal as a command, turns the line around or begins another.
func TestResultsSpellNamesOut(t *testing.T) {
	var out bytes.Buffer
	ui := &Streams{Tool: "hetc", Out: &out, Err: io.Discard}
	name := "a\x1b[2J\u202eb\u2028c\nd"
	ui.noteBreaks(name)
	ui.Printf("%s: verified\n\tö\n", name)
	if got, want := out.String(), `a\x1b[2J\u202eb\u2028c\x0ad: verified`+"\n\tö\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Errors of the command line are documents, too, also when --json stands behind what was not understood.
func TestUsageErrorsAsDocuments(t *testing.T) {
	for _, args := range [][]string{
		{"dont", "--json"}, {"do", "--texd", "x", "--json"}, {"--what", "--json"}, {"do", "more", "--json"}, {"--json", "do", "-x"}, {"do", "-output", "x", "--json=true"},
		{"dont", "--json=1"}, {"--what", "--json=T"},
	} {
		code, stdout, stderr := run(errors.New("not reached"), args...)
		var doc errorDocument
		if err := json.Unmarshal([]byte(stdout), &doc); err != nil || code != 2 || doc.Error.Class != "usage" || len(doc.Error.Hints) == 0 {
			t.Errorf("%v: exit code %d, %v\n%s%s", args, code, err, stdout, stderr)
		}
	}
	for _, last := range [][]string{{"--", "--json"}, {"--json=false"}, {"--json=maybe"}} {
		args := append([]string{"do", "--texd", "x"}, last...)
		if _, stdout, _ := run(errors.New("not reached"), args...); stdout != "" {
			t.Errorf("%q: asks for no document, got %q", args, stdout)
		}
	}
}

// A command that has forgotten its result does not leave a program that reads --json with nothing and a success.
func TestForgottenResult(t *testing.T) {
	root := func(*Streams) *cobra.Command {
		return &cobra.Command{Use: "tool", RunE: func(*cobra.Command, []string) error { return nil }}
	}
	for _, args := range [][]string{{}, {"--json"}, {"--json", "--help"}} {
		var out, errw strings.Builder
		want := diag.Class(0)
		if slices.Equal(args, []string{"--json"}) {
			want = diag.ClassInternal
		}
		if code := Main("tool", args, strings.NewReader(""), &out, &errw, root); code != int(want) {
			t.Errorf("%q: exit code %d, want %d: %s", args, code, want, errw.String())
		}
		if want != 0 && !json.Valid([]byte(out.String())) {
			t.Errorf("%q: got %q, want the error as JSON", args, out.String())
		}
	}
}

// A flag of a text that is empty is refused, each by its name: a script whose variable is not set does not go without
// what it wanted to demand. A prompt may be empty.
func TestEmptyFlags(t *testing.T) {
	for line, want := range map[string][]string{
		"do --text= --output=":         {"tool do: --text is empty", "tool do: --output is empty"},
		"do --list=":                   {"tool do: --list is empty"},
		"do --text=a --list=b":         nil,
		"do --prompt= --text=a -o=out": nil,
	} {
		code, _, stderr := run(diag.New(diag.ClassRun, "reached"), strings.Fields(line)...)
		if wantCode := map[bool]int{true: 8, false: 2}[want == nil]; code != wantCode {
			t.Errorf("%s: exit code %d, want %d\n%s", line, code, wantCode, stderr)
		}
		for _, text := range want {
			if !strings.Contains(stderr, "tool: error: "+text+"\n") {
				t.Errorf("%s: got\n%s\nwant %q", line, stderr, text)
			}
		}
	}
}

// So is an argument that is empty.
func TestEmptyArguments(t *testing.T) {
	var out, errs bytes.Buffer
	code := Main("tool", []string{"show", "a", ""}, nil, &out, &errs, func(*Streams) *cobra.Command {
		root := &cobra.Command{Use: "tool"}
		root.AddCommand(&cobra.Command{Use: "show A [B]", Args: cobra.RangeArgs(1, 2),
			RunE: func(*cobra.Command, []string) error { return diag.New(diag.ClassRun, "reached") }})
		return root
	})
	if want := "tool: error: tool show: argument 2 is empty\n"; code != 2 || !strings.Contains(errs.String(), want) {
		t.Errorf("exit code %d and\n%s\nwant 2 and %q", code, errs.String(), want)
	}
}

// Of two values of a flag that takes one, none is dropped in silence. The same value twice is no question.
func TestFlagsGivenTwice(t *testing.T) {
	for line, want := range map[string]string{
		"do --text=a --text b":               `tool do: --text is given as "a" and as "b"`,
		"do -o a --output=b":                 `tool do: --output is given as "a" and as "b"`,
		"--json=true do --json=false":        `tool do: --json is given as "true" and as "false"`,
		"do --text=a --text=a --json --json": "",
		"do --list=a --list=b --text=a":      "",
	} {
		code, _, stderr := run(diag.New(diag.ClassRun, "reached"), strings.Fields(line)...)
		if wantCode := map[bool]int{true: 8, false: 2}[want == ""]; code != wantCode || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, want %d with %q\n%s", line, code, wantCode, want, stderr)
		}
	}
}

// The files a command reads are not those it writes.
func TestClobbers(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"in", "out", "m/model.safetensors", "m/notes"} {
		if err := os.MkdirAll("m", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("in", "link"); err != nil {
		t.Skipf("this system makes no symbolic links: %v", err)
	}
	reached := errors.New("reached")
	for args, refused := range map[string]bool{
		"do --text in -o in": true, "do --text in -o ./in": true, "do --text link -o in": true, "do --text in -o out": false,
		"do --text m -o m/model.safetensors": true, "do --text m -o m/notes": false, "do --text m -o m/new.json": false,
	} {
		code, _, stderr := run(reached, strings.Fields(args)...)
		if refused != (code == 2) || refused != strings.Contains(stderr, "would replace what --text reads") {
			t.Errorf("%s: exit code %d, %s, want refused %v", args, code, stderr, refused)
		}
	}
	if code, _, stderr := run(reached, "do", "--output=new", "--trace=./new"); code != 2 || !strings.Contains(stderr, "--output and --trace name one file") {
		t.Errorf("one file for two outputs: exit code %d, %s", code, stderr)
	}
}

// A table whose last header asks for it fits TableWidth, and loses no word; one that fits by itself stays as it is.
func TestTableIsWrapped(t *testing.T) {
	text := strings.Repeat("a sentence about a machine, ", 12) + strings.Repeat("x", 80)
	var out, plain strings.Builder
	rows := [][]string{{"soc-of-some-length", "cpu gpu npu", text}, {"other", "cpu", "short"}}
	(&Streams{Out: &out}).Table([]string{"name", ">processors", "<what"}, rows)
	var words []string
	for i, line := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
		if n := utf8.RuneCountInString(line); n > tableWidth {
			t.Errorf("line %d has %d columns, want at most %d: %q", i, n, tableWidth, line)
		}
		if i > 1 {
			words = append(words, strings.Fields(line)...)
		}
	}
	if got, want := strings.Join(words, " "), "soc-of-some-length cpu gpu npu "+text+" other cpu short"; got != want {
		t.Errorf("the table says %q, want %q", got, want)
	}
	out.Reset()
	(&Streams{Out: &out}).Table([]string{"name", "<what"}, rows[1:])
	(&Streams{Out: &plain}).Table([]string{"name", "what"}, rows[1:])
	if out.String() != plain.String() {
		t.Errorf("got %q, want %q", out.String(), plain.String())
	}
}

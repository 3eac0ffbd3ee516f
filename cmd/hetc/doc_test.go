package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
)

func TestReadme(t *testing.T) {
	require.Slow(t)
	runPage(t, "../../README.md", 5)
}

func TestImportPage(t *testing.T) { runPage(t, "../../docs/import.md", 2) }

// runPage runs every command of a page's console blocks in one temporary directory, in order, and
// compares what it prints. A line "..." stands for any lines, "…" within a line for anything.
// HETC_UPDATE=1 writes what was printed instead.
func runPage(t *testing.T, page string, least int) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "testdata"), filepath.Join(dir, "testdata")); err != nil {
		t.Fatal(err)
	}
	update := os.Getenv("HETC_UPDATE") != ""
	var out []string
	lines := strings.Split(string(text), "\n")
	commands := 0
	for i := 0; i < len(lines); {
		out = append(out, lines[i])
		if lines[i] != "```console" {
			i++
			continue
		}
		for i++; i < len(lines) && lines[i] != "```"; {
			command, ok := strings.CutPrefix(lines[i], "$ ")
			if !ok {
				t.Fatalf("%s:%d: want a command after \"$ \", got %q", page, i+1, lines[i])
			}
			out = append(out, lines[i])
			at := i + 1
			for i++; strings.HasSuffix(command, "\\"); i++ {
				command = strings.TrimSuffix(command, "\\") + lines[i]
				out = append(out, lines[i])
			}
			var want []string
			for i < len(lines) && lines[i] != "```" && !strings.HasPrefix(lines[i], "$ ") {
				want = append(want, lines[i])
				i++
			}
			got := shell(t, dir, command)
			commands++
			switch {
			case matches(strings.Join(want, "\n"), got):
				out = append(out, want...)
			case update:
				if got != "" {
					out = append(out, strings.Split(got, "\n")...)
				}
			default:
				t.Errorf("%s:%d: %s\ngot:\n%s\nwant:\n%s", page, at, command, got, strings.Join(want, "\n"))
			}
		}
	}
	if commands < least {
		t.Fatalf("%s has %d commands in console blocks, want at least %d", page, commands, least)
	}
	if update && !t.Failed() {
		if err := os.WriteFile(page, []byte(strings.Join(out, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// shell runs a command line of the README: words and double quotes, hetc or hetrun only.
func shell(t *testing.T, dir, command string) string {
	t.Helper()
	var words []string
	for _, m := range regexp.MustCompile(`"([^"]*)"|\S+`).FindAllStringSubmatch(command, -1) {
		if strings.HasPrefix(m[0], `"`) {
			words = append(words, m[1])
		} else {
			words = append(words, m[0])
		}
	}
	if words[0] != "hetc" && words[0] != "hetrun" {
		t.Fatalf("%s: only hetc and hetrun can be run here", command)
	}
	c := exec.Command(words[0], words[1:]...)
	c.Dir = dir
	var both bytes.Buffer
	c.Stdout, c.Stderr = &both, &both
	if err := c.Run(); err != nil {
		t.Errorf("%s: %v\n%s", command, err, both.String())
	}
	var trimmed []string
	for l := range strings.SplitSeq(strings.TrimRight(both.String(), "\n"), "\n") {
		trimmed = append(trimmed, strings.TrimRight(l, " "))
	}
	return strings.Join(trimmed, "\n")
}

func matches(want, got string) bool {
	var re strings.Builder
	re.WriteString(`\A`)
	for i, l := range strings.Split(want, "\n") {
		if l == "..." {
			re.WriteString(`(?s:\n?.*)`)
			continue
		}
		if i > 0 {
			re.WriteString(`\n?`)
		}
		re.WriteString(strings.ReplaceAll(regexp.QuoteMeta(l), "…", `.*`))
	}
	re.WriteString(`\z`)
	return regexp.MustCompile(re.String()).MatchString(got)
}

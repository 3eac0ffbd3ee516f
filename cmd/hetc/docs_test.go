package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/matrix"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/cmd/internal/servecmd"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/profiler/imported"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/workload"
)

// TestDocExamples reads every example file of docs with the reader it is an example for.
func TestDocExamples(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("no documents found: %v", err)
	}
	examples := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(text), "```")[1:] {
			kind, body, _ := strings.Cut(block, "\n")
			if kind != "yaml" && kind != "json" {
				continue
			}
			examples++
			switch {
			case strings.Contains(body, "hetc.workload/1"):
				_, err = workload.Parse(name, []byte(body))
			case strings.Contains(body, "hetc.build/1"):
				_, err = matrix.ParseConfig(name, []byte(body))
			case strings.Contains(body, "hetc.soc/1"):
				_, err = socs.Parse(name, []byte(body))
			case strings.Contains(body, "hetc.import/1"):
				_, err = imported.ParseMapping(name, []byte(body))
			case strings.Contains(body, "hetc.record/1"):
				_, err = record.Read(name, strings.NewReader(body))
			case strings.Contains(body, "hetc.calibration/1"):
				_, err = calibration.Decode(name, []byte(body))
			default:
				t.Errorf("%s: an example of no known schema", name)
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if examples < 3 {
		t.Errorf("%d examples in docs, want at least 3", examples)
	}
}

// commandLine is a command of ours in a document: in a code span, or at the beginning of a line of code.
var commandLine = regexp.MustCompile("(?m)(?:`|^ {4}(?:\\$ )?)(?:bin/)?(hetc|hetrun|hetserve) ([^`\n#]*)")

// TestDocCommands finds every command that the documents write, and every flag that they give it.
func TestDocCommands(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	roots := map[string]*cobra.Command{
		"hetc":     cli.Prepare(&cli.Streams{Tool: "hetc", Out: io.Discard, Err: io.Discard}, newRoot),
		"hetrun":   cli.Prepare(&cli.Streams{Tool: "hetrun", Out: io.Discard, Err: io.Discard}, func(s *cli.Streams) *cobra.Command { return runcmd.New(s, "hetrun", false, nil) }),
		"hetserve": cli.Prepare(&cli.Streams{Tool: "hetserve", Out: io.Discard, Err: io.Discard}, func(s *cli.Streams) *cobra.Command { return servecmd.New(s, nil) }),
	}
	found := 0
	for _, name := range append(files, "../../README.md", "../../SECURITY.md", "../../CHANGELOG.md", "../../RATIONALE.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var indented strings.Builder // with fenced code like the other kind
		fenced := false
		for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
			if strings.HasPrefix(line, "```") {
				fenced = !fenced
			} else if fenced {
				line = "    " + line
			}
			indented.WriteString(line)
		}
		for _, match := range commandLine.FindAllStringSubmatch(indented.String(), -1) {
			found++
			command := roots[match[1]]
			words := strings.Fields(match[2])
			for len(words) > 0 && command.HasSubCommands() {
				next, _, err := command.Find(words[:1])
				if err != nil || next == command {
					break
				}
				command, words = next, words[1:]
			}
			if command.HasSubCommands() && len(words) > 0 && regexp.MustCompile(`^[a-z]+$`).MatchString(words[0]) {
				t.Errorf("%s: %q: there is no command %s %s", name, match[0], command.CommandPath(), words[0])
			}
			for _, word := range words {
				flag, ok := strings.CutPrefix(word, "--")
				flag, _, _ = strings.Cut(strings.TrimRight(flag, ",.;)]"), "=")
				if ok && flag != "help" && command.Flags().Lookup(flag) == nil && command.InheritedFlags().Lookup(flag) == nil {
					t.Errorf("%s: %q: %s has no flag --%s", name, match[0], command.CommandPath(), flag)
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("%d commands found in documents, want at least 100", found)
	}
}

// The commands that commands.md has for a keyring of two keys make one that is accepted.
func TestDocKeyring(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("needs a shell")
	}
	text, err := os.ReadFile("../../docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "```sh\n")
	block, _, _ = strings.Cut(block, "hetc verify")
	dir := t.TempDir()
	for _, name := range []string{"old", "new"} {
		key, err := emit.GenerateKey(bundle.Ed25519, name, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := key.Save(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.Command("sh", "-c", block)
	command.Dir = dir
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ring, err := bundle.LoadTrust(filepath.Join(dir, "keyring.json"))
	if err != nil || len(ring.Keys) != 2 || ring.Generation != 1 || ring.Threshold != 1 {
		t.Errorf("got %+v, %v, want a keyring of two keys", ring, err)
	}
}

// TestDocExitCodes compares the table of exit codes in docs/commands.md with the one that every help text ends with.
func TestDocExitCodes(t *testing.T) {
	text, err := os.ReadFile("../../docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	want := "Exit codes:"
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) \| [^|]*\| (.*) \|$`).FindAllStringSubmatch(string(text), -1) {
		want += fmt.Sprintf("\n  %-5s%s", row[1], link.ReplaceAllString(row[2], "$1"))
	}
	if cli.ExitCodes != want {
		t.Errorf("--help says\n%s\ndocs/commands.md says\n%s", cli.ExitCodes, want)
	}
}

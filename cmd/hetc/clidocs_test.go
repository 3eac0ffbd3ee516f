package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/cmd/internal/servecmd"
)

// TestCommandReference keeps docs/cli the same as what the commands say about themselves. HETC_UPDATE=1
// writes it anew.
func TestCommandReference(t *testing.T) {
	const dir = "../../docs/cli"
	want := map[string]string{}
	index := "# Command reference\n\nWritten from the commands (`HETC_UPDATE=1 go test ./cmd/hetc -run TestCommandReference`); what they have in common is in\n[commands.md](../commands.md).\n\n| command | what it does |\n| --- | --- |\n"
	for _, root := range []*cobra.Command{
		cli.Prepare(&cli.Streams{Tool: "hetc", Out: io.Discard, Err: io.Discard}, newRoot),
		cli.Prepare(&cli.Streams{Tool: "hetrun", Out: io.Discard, Err: io.Discard}, func(s *cli.Streams) *cobra.Command { return runcmd.New(s, "hetrun", false, nil) }),
		cli.Prepare(&cli.Streams{Tool: "hetserve", Out: io.Discard, Err: io.Discard}, func(s *cli.Streams) *cobra.Command { return servecmd.New(s, nil) }),
	} {
		for _, c := range documented(root) {
			name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".md"
			want[name] = reference(c)
			index += fmt.Sprintf("| [%s](%s) | %s |\n", c.CommandPath(), name, c.Short)
		}
	}
	want["README.md"] = index
	if len(want) < 20 {
		t.Fatalf("%d commands found, want at least 20", len(want))
	}
	if os.Getenv("HETC_UPDATE") != "" {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range want {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, ok := want[f.Name()]; !ok {
			t.Errorf("%s/%s: no command is called that; HETC_UPDATE=1 removes it", dir, f.Name())
		}
	}
	for name, text := range want {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != text {
			t.Errorf("%s/%s is not what the command says: HETC_UPDATE=1 writes it (%v)", dir, name, err)
		}
	}
}

// A value that a flag does not take is refused with words for what it takes, not with the name of a type of Go.
func TestFlagsSayWhatTheyTake(t *testing.T) {
	root := cli.Prepare(&cli.Streams{Tool: "hetc", Out: io.Discard, Err: io.Discard}, newRoot)
	for _, command := range documented(root) {
		command.Flags().VisitAll(func(flag *pflag.Flag) {
			if kind := flag.Value.Type(); flag.Value.Set("ü") == nil || kind == "bool" {
				return
			}
			line := slices.Concat(strings.Fields(command.CommandPath())[1:], []string{"--" + flag.Name + "=ü"})
			var errs strings.Builder
			code := cli.Main("hetc", line, strings.NewReader(""), io.Discard, &errs, newRoot)
			if code != 2 || !strings.Contains(errs.String(), ": want ") || strings.Contains(errs.String(), "want "+flag.Value.Type()+"\n") {
				t.Errorf("%q: exit code %d, %s", line, code, errs.String())
			}
		})
	}
}

// The way from a clone to a user's own model is at most four commands, and the README and hetc help say the
// same; script quick.txtar runs its last one.
func TestNewUsersPath(t *testing.T) {
	root := cli.Prepare(&cli.Streams{Tool: "hetc", Out: io.Discard, Err: io.Discard}, newRoot)
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var paths [2][]string
	for i, text := range []string{root.Long, string(readme)} {
		for l := range strings.SplitSeq(text[strings.Index(text, "git clone"):], "\n") {
			if l = strings.TrimSpace(l); l == "" {
				break
			}
			paths[i] = append(paths[i], strings.Split(l, " && ")...)
		}
	}
	if got, want := strings.Join(paths[0], "\n"), strings.Join(paths[1], "\n"); got != want {
		t.Errorf("hetc help says\n%s\nand the README\n%s", got, want)
	}
	if n := len(paths[0]); n < 2 || n > 4 || !strings.HasPrefix(paths[0][n-1], "bin/hetc quick MODEL --prompt ") {
		t.Errorf("%d commands %q, want at most 4 that end in hetc quick", n, paths[0])
	}
}

// documented lists a command and those below it, without help, completion and what is hidden.
func documented(c *cobra.Command) []*cobra.Command {
	out := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "completion" && sub.Name() != "help" {
			out = append(out, documented(sub)...)
		}
	}
	return out
}

// reference is the page of a command.
func reference(c *cobra.Command) string {
	var b bytes.Buffer
	long, _, _ := strings.Cut(c.Long, cli.ExitCodes) // those are in commands.md
	use := c.UseLine()
	if c.HasAvailableSubCommands() {
		use += " COMMAND"
	}
	fmt.Fprintf(&b, "# %s\n\n%s\n\n    %s\n\n", c.CommandPath(), sentence(c.Short), use)
	if long = strings.TrimSpace(long); long != "" && long != c.Short {
		b.WriteString(fenced(long) + "\n")
	}
	var subs []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "completion" && sub.Name() != "help" {
			subs = append(subs, fmt.Sprintf("- [%s](%s.md): %s\n", sub.CommandPath(), strings.ReplaceAll(sub.CommandPath(), " ", "-"), sub.Short))
		}
	}
	if len(subs) > 0 {
		sort.Strings(subs)
		fmt.Fprintf(&b, "Commands:\n\n%s\n", strings.Join(subs, ""))
	}
	b.WriteString("| flag | default | meaning |\n| --- | --- | --- |\n")
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		def := ""
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && !volatile[c.CommandPath()+" "+f.Name] {
			def = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, def, strings.ReplaceAll(f.Usage, "|", `\|`))
	})
	c.InheritedFlags().VisitAll(func(f *pflag.Flag) { fmt.Fprintf(&b, "| `--%s` | | %s |\n", f.Name, f.Usage) })
	b.WriteString("\nExit codes: [commands.md](../commands.md).\n")
	return b.String()
}

// volatile are flags whose default is the machine's.
var volatile = map[string]bool{"hetc build jobs": true}

func sentence(s string) string { return strings.ToUpper(s[:1]) + s[1:] + "." }

// fenced keeps indented paragraphs of a help text as they are.
func fenced(long string) string {
	var out strings.Builder
	for part := range strings.SplitSeq(long, "\n\n") {
		if strings.HasPrefix(part, "  ") {
			part = "```text\n" + part + "\n```"
		}
		out.WriteString(part + "\n\n")
	}
	return strings.TrimSpace(out.String()) + "\n"
}

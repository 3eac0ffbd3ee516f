package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/cmd/internal/servecmd"
	"github.com/hetc/hetc/emit/compile/qnn"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/runtime/driver/opencl"
	"github.com/hetc/hetc/solver/highs"
)

// The test binary plays hetc and hetrun, so that scripts need no build and count towards coverage.
func TestMain(m *testing.M) {
	_, works := all.Worker(os.Args[1:])
	if _, ok := highs.Worker(os.Args[1:]); ok || works || qnn.Worker(os.Args[1:]) {
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	testscript.Main(cleaning{m}, map[string]func(){
		"hetc":     func() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
		"hetrun":   func() { os.Exit(runHetrun()) },
		"hetserve": func() { os.Exit(runHetserve()) },
	})
}

// shared is a directory for what several tests use.
var shared string

// cleaning removes shared when all tests are done.
type cleaning struct{ m *testing.M }

func (c cleaning) Run() int {
	var err error
	if shared, err = os.MkdirTemp("", "hetc-test"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(shared)
	return c.m.Run()
}

func runHetrun() int {
	return cli.Main("hetrun", os.Args[1:], os.Stdin, os.Stdout, os.Stderr, func(s *cli.Streams) *cobra.Command {
		return runcmd.New(s, "hetrun", false, func(*planir.Plan) ([]driver.Driver, error) { return all.Drivers(), nil })
	})
}

func runHetserve() int {
	return cli.Main("hetserve", os.Args[1:], os.Stdin, os.Stdout, os.Stderr, func(s *cli.Streams) *cobra.Command {
		return servecmd.New(s, all.Drivers())
	})
}

// TestScripts runs every script of testdata/script. Scripts see the demo model as $MODEL and check exit
// codes with "exit CODE COMMAND...". The first line of slow ones is slowScript.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(files) < 5 {
		t.Fatalf("found %d scripts in testdata/script (%v), want at least 5", len(files), err)
	}
	testdata, err := filepath.Abs("../../testdata")
	if err != nil {
		t.Fatal(err)
	}
	slow := slowScripts(t, files)
	testscript.Run(t, testscript.Params{
		Files: files,
		Setup: func(e *testscript.Env) error {
			name := strings.TrimPrefix(filepath.Base(e.WorkDir), "script-")
			if reason := require.SkipsSlow(name); slow[name] && reason != "" {
				e.T().Skip(reason)
			}
			e.Setenv("GOGC", os.Getenv("GOGC"))
			e.Setenv("MODEL", filepath.Join(testdata, "models", "tiny-llama-kjv"))
			e.Setenv("TESTDATA", testdata)
			if hetc, err := exec.LookPath("hetc"); err == nil {
				e.Setenv("HETCDIR", filepath.Dir(hetc)) // a PATH with nothing else
			}
			e.Setenv("ARCH", filepath.Join(testdata, "arch"))
			require.Deps()
			e.Setenv("DEPS", os.Getenv(native.EnvDir)) // libraries, for scripts that use them
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exit":    exitCode,
			"patch":   patch,
			"tree":    tree,
			"cutline": cutline,
			"forge":   forge,
			"traced":  traced,
		},
		Condition: func(name string) (bool, error) {
			require.Deps()
			var err error
			switch name {
			case "qnn":
				_, err = ortapi.FindQNN("")
			case "opencl":
				_, err = opencl.New().Devices(context.Background())
			default:
				return false, fmt.Errorf("unknown condition %q", name)
			}
			if err != nil && require.Listed(name) {
				return false, fmt.Errorf("%s lists %q: %w", require.Env, name, err)
			}
			return err == nil, nil
		},
		UpdateScripts: os.Getenv("HETC_UPDATE") != "",
	})
}

// Every command is called by a script.
func TestEveryCommandHasAScript(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var scripts strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		scripts.Write(text)
	}
	called := strings.ReplaceAll(scripts.String(), "hetc --json ", "hetc ")
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
		call := regexp.MustCompile(`(?m)\b` + cmd.CommandPath() + `\b`)
		if !cmd.HasSubCommands() && !call.MatchString(called) {
			t.Errorf("no script in testdata/script calls %q", cmd.CommandPath())
		}
	}
	visit(newRoot(&cli.Streams{}))
}

// slowScript is for a script what require.Slow is for a test.
const slowScript = "# slow\n"

// slowScripts are the names of the scripts that are slow.
func slowScripts(t *testing.T, files []string) map[string]bool {
	slow := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		slow[strings.TrimSuffix(filepath.Base(file), ".txtar")] = strings.HasPrefix(string(text), slowScript)
	}
	return slow
}

// exitCode runs a command and wants exactly this exit code: exit 3 hetc check x.yaml
func exitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exit CODE COMMAND [ARG...]")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if err != nil {
		s := err.Error()
		i := strings.LastIndex(s, "exit status ")
		if i < 0 {
			ts.Fatalf("%s: %v", args[1], err)
		}
		got, _ = strconv.Atoi(s[i+len("exit status "):])
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("%s exited with %d, want %s", strings.Join(args[1:], " "), got, args[0])
	}
}

// patch flips the lowest bit of a byte of a file: patch FILE OFFSET
func patch(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: patch FILE OFFSET")
	}
	name := ts.MkAbs(args[0])
	data, err := os.ReadFile(name)
	ts.Check(err)
	at, err := strconv.Atoi(args[1])
	ts.Check(err)
	if at < 0 {
		at += len(data)
	}
	data[at] ^= 1
	ts.Check(os.WriteFile(name, data, 0o644))
}

// tree lists the files of a directory with size, time of modification and digest: tree DIR LISTING
func tree(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: tree DIR LISTING")
	}
	dir, files := ts.MkAbs(args[0]), 0
	var list strings.Builder
	ts.Check(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		files++
		fmt.Fprintf(&list, "%s %d %d %x\n", path, st.Size(), st.ModTime().UnixNano(), sha256.Sum256(data))
		return err
	}))
	if files == 0 {
		ts.Fatalf("no files in %s", args[0])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(list.String()), 0o644))
}

// cutline removes the last line of a file: cutline FILE
func cutline(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: cutline FILE")
	}
	name := ts.MkAbs(args[0])
	data, err := os.ReadFile(name)
	ts.Check(err)
	at := strings.LastIndexByte(strings.TrimSuffix(string(data), "\n"), '\n')
	ts.Check(os.WriteFile(name, data[:at+1], 0o644))
}

// traced wants a trace that is JSON, has steps on each of its lanes, and programs of these names: traced FILE NAME...
func traced(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: traced FILE NAME...")
	}
	var doc struct {
		TraceEvents []struct {
			Name, Cat, Ph string
			TID           int
			TS, Dur       float64
			Args          struct{ Name any }
		}
	}
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &doc))
	lanes, steps := map[int]string{}, map[int]int{}
	ends := map[int]float64{} // of the latest step or wait of a lane
	missing := slices.Clone(args[1:])
	for _, e := range doc.TraceEvents {
		switch {
		case e.Name == "thread_name" && e.TID > 0:
			lanes[e.TID] = fmt.Sprint(e.Args.Name)
		case e.Cat == "step", e.Cat == "wait":
			if e.TS < ends[e.TID]-0.0011 {
				ts.Fatalf("%s: %s %q of lane %q begins at %.3f us, before %.3f", args[0], e.Cat, e.Name, lanes[e.TID], e.TS, ends[e.TID])
			}
			steps[e.TID]++
			ends[e.TID] = e.TS + e.Dur
		case e.Cat == "program":
			missing = slices.DeleteFunc(missing, func(name string) bool { return strings.Contains(e.Name, name) })
		}
	}
	if len(steps) == 0 || len(missing) > 0 {
		ts.Fatalf("%s: steps of %d of %d lanes, no program %q", args[0], len(steps), len(lanes), missing)
	}
}

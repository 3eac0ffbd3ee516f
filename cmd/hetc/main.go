// Command hetc compiles deployment plans for language models: it profiles processors, solves for the
// best partition, and emits signed bundles that hetrun executes.
//
// newRoot below lists the commands. Each is a function newX in a file cmd_*.go, which defines its flags, checks them,
// and makes one call into a package below cmd/internal; help/*.txt has its long description. docs/architecture.md says
// where the work of each command begins.
package main

import (
	"embed"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/emit/compile/qnn"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/solver/highs"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run returns the program as a function: its result is the exit code.
func run(args []string, in io.Reader, out, errw io.Writer) int {
	work, isWorker := workerOf(args, in, out)
	if !isWorker {
		return cli.Main("hetc", args, in, out, errw, newRoot)
	}
	if err := work(); err != nil {
		fmt.Fprintln(errw, err)
		return int(diag.ClassInternal)
	}
	return 0
}

// workerOf returns the work of a process that another hetc has started as a worker. Libraries that may crash run in
// workers: a solver, a vendor's compiler, a driver. A crash then ends the worker alone.
func workerOf(args []string, in io.Reader, out io.Writer) (work func() error, ok bool) {
	if library, ok := highs.Worker(args); ok {
		return func() error { return highs.Work(library, in, out) }, true
	}
	if qnn.Worker(args) {
		return func() error { return qnn.Work(".", in) }, true
	}
	return all.Worker(args)
}

// newRoot returns the tree of all commands. Calls are independent of each other, which hetc quick relies on.
func newRoot(ui *cli.Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "hetc",
		Short: "compile deployment plans for language models on CPU, GPU and NPU",
	}
	root.AddGroup(&cobra.Group{ID: "main", Title: "The main job:"},
		&cobra.Group{ID: "look", Title: "Looking at things:"})
	add := func(group string, cmds ...*cobra.Command) {
		for _, cmd := range cmds {
			cmd.GroupID = group
			root.AddCommand(cmd)
		}
	}
	add("main", newQuick(ui), newProbe(ui), newProfile(ui), newImport(ui), newFit(ui), newCalibrate(ui), newLoads(ui),
		newSolve(ui), newKeygen(ui), newEmit(ui), newQuality(ui), newVerify(ui), newRun(ui), newBuild(ui))
	add("look", newCheck(ui), newExplain(ui), newDiff(ui), newInspect(ui), newReproduce(ui), newBench(ui), newSimulate(ui),
		newModels(ui), newSocs(ui), newDrivers(ui), newDoctor(ui))
	root.AddCommand(newVersion(ui))
	describe(root, root.Name())
	return root
}

// longHelp are the long descriptions of commands: a file for each, by the words of its path joined by "_".
//
//go:embed help/*.txt
var longHelp embed.FS

// describe gives a command and those below it their long descriptions. A command without a file keeps its own.
func describe(cmd *cobra.Command, name string) {
	if text, err := longHelp.ReadFile("help/" + name + ".txt"); err == nil {
		cmd.Long = strings.TrimSuffix(string(text), "\n")
	}
	for _, sub := range cmd.Commands() {
		path := sub.Name()
		if cmd.HasParent() {
			path = name + "_" + path
		}
		describe(sub, path)
	}
}

// newVersion prints the version and the commit, and with --licenses the licences of what the program contains.
func newVersion(ui *cli.Streams) *cobra.Command {
	licences := false
	cmd := &cobra.Command{
		Use: "version", Short: "print the version, and the commit it was built from", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			revision := cli.Revision()
			ui.Printf("hetc %s\n", cli.Version)
			if revision != "" {
				ui.Printf("revision %s\n", revision)
			}
			result := map[string]string{"version": cli.Version, "revision": revision}
			if licences {
				text := highs.Licences()
				if text == "" {
					ui.Printf("Apache License 2.0. This program does not contain HiGHS: nothing of its licences is " +
						"to be passed on.\n")
				} else {
					ui.Printf("Apache License 2.0. This program contains HiGHS %s, as WebAssembly:\n\n%s",
						highs.Version, text)
				}
				result["licence"], result["highs_licences"] = "Apache-2.0", text
			}
			return ui.Result(result)
		},
	}
	cmd.Flags().BoolVar(&licences, "licenses", false,
		"print the licences of the solver that a build with the tag highs contains")
	return cmd
}

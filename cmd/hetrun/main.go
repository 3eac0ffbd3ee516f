// Command hetrun verifies a bundle and executes it. It decides nothing the plan could tell it, and links
// neither solver nor compiler nor signing code.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/all"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run returns the program as a function: its result is the exit code. hetrun also starts itself as a worker of a
// driver.
func run(args []string, in io.Reader, out, errw io.Writer) int {
	if work, ok := all.Worker(args); ok { // this process is part of another hetrun
		if err := work(); err != nil {
			fmt.Fprintln(errw, err)
			return int(diag.ClassInternal)
		}
		return 0
	}
	return cli.Main("hetrun", args, in, out, errw, func(s *cli.Streams) *cobra.Command {
		return runcmd.New(s, "hetrun", false, func(*planir.Plan) ([]driver.Driver, error) { return all.Drivers(), nil })
	})
}

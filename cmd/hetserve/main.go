// Command hetserve verifies a bundle and serves its model over HTTP, in the form that OpenAI's clients speak. Like
// hetrun it links neither solver nor compiler nor signing code.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/servecmd"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver/all"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run returns the program as a function: its result is the exit code. hetserve also starts itself as a worker of a
// driver.
func run(args []string, in io.Reader, out, errw io.Writer) int {
	if work, ok := all.Worker(args); ok { // this process is part of another hetserve
		if err := work(); err != nil {
			fmt.Fprintln(errw, err)
			return int(diag.ClassInternal)
		}
		return 0
	}
	return cli.Main("hetserve", args, in, out, errw, func(ui *cli.Streams) *cobra.Command {
		return servecmd.New(ui, all.Drivers())
	})
}

//go:build linux

package openfiles_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	_ "github.com/hetc/hetc/internal/openfiles"
)

// The test binary also is a program that opens a file while it is initialised, as packages of others do.
var _ = func() int {
	if os.Getenv("HETC_TEST_FILES") != "" {
		f, err := os.Open("/proc/self/exe")
		if err != nil {
			panic(err)
		}
		f.Close()
		os.Exit(0)
	}
	return 0
}()

// Under every limit the program works or is refused with one error, a way out, and the exit code for what this machine
// does not offer. A trace of Go's runtime is neither.
func TestLimits(t *testing.T) {
	const refusal = "hetc: error: this process may open fewer than 3 files more\nhetc: hint: raise the limit: ulimit -n 1024\n"
	worked, refused := 0, 0
	for limit := range 20 {
		c := exec.Command("sh", "-c", fmt.Sprintf("ulimit -n %d && exec \"$0\"", limit), os.Args[0])
		c.Env = append(os.Environ(), "HETC_TEST_FILES=1")
		var complaints strings.Builder
		c.Stderr = &complaints
		err := c.Run()
		var exit *exec.ExitError
		switch {
		case err == nil:
			worked++
		case errors.As(err, &exit) && exit.ExitCode() == int(diag.ClassUnavailable) && complaints.String() == refusal:
			refused++
		case errors.As(err, &exit) && strings.HasPrefix(complaints.String(), "sh:"): // too few for the shell
		default:
			t.Errorf("%d files: %v\n%.300s", limit, err, complaints.String())
		}
	}
	if worked < 8 || refused < 2 {
		t.Errorf("worked under %d limits, refused under %d", worked, refused)
	}
}

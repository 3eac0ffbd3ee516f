package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/solver/highs"
)

// solverFindings says which engines of solve are there. Without HiGHS the exact engine does all it can alone.
func solverFindings() []Finding {
	var out []Finding
	for _, e := range []struct {
		name, without string
		locate        func() (string, error)
	}{{"engine highs", "solve has the exact engine alone", highs.Locate}, {"engine highs-native", "not needed: engine highs does the same in twice the time", highs.LocateNative}} {
		f := Finding{Check: e.name, Status: OK}
		where, err := e.locate()
		switch {
		case err == nil:
			f.Found = fmt.Sprintf("HiGHS %s, %s", highs.Version, where)
		case e.name == "engine highs":
			f.Status, f.Found, f.Hint = Note, "not there: "+e.without, "make deps fetches it; hetc drivers says where it was looked for"
		default:
			f.Found = "not there; " + e.without
		}
		out = append(out, f)
	}
	return out
}

func Show(ctx context.Context, s *cli.Streams, model string) error {
	var list []Finding
	if model != "" {
		var err error
		if list, err = CheckModel(ctx, model); err != nil {
			return err
		}
	} else {
		dir, err := bindings.CacheDir("")
		if err != nil {
			dir = ""
		} else if dir, err = filepath.Abs(dir); err != nil {
			return err
		}
		list = Machine{Version: cli.Version, Drivers: all.Drivers(), Kernels: host.Kernels(), CacheDir: dir}.Check(ctx)
		list = append(list, solverFindings()...)
	}
	rows := make([][]string, 0, len(list))
	for _, f := range list {
		lines := cli.Wrap(strings.Fields(f.Found), "")
		if f.Hint != "" {
			lines = append(lines, cli.Wrap(strings.Fields("-> "+f.Hint), "")...)
		}
		for i, l := range lines {
			row := []string{"", "", l}
			if i == 0 {
				row[0], row[1] = string(f.Status), f.Check
			}
			rows = append(rows, row)
		}
	}
	s.Table([]string{"", "check", "found"}, rows)
	err := Err(list)
	if rerr := s.Result(map[string]any{"ok": err == nil, "checks": list}); rerr != nil {
		return rerr
	}
	return err
}

package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir/bundle"
)

// newKeygen makes the pair of keys that sign and verify bundles; emit.GenerateKey makes it.
func newKeygen(ui *cli.Streams) *cobra.Command {
	var out, kind string
	var dev bool
	cmd := &cobra.Command{
		Use:   "keygen --out NAME",
		Short: "make a signing key: NAME.key and NAME.pub",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "out"); err != nil {
				return err
			}
			base := filepath.Base(out)
			if strings.HasSuffix(out, "/") || base == "." || base == ".." || out == wholefile.Standard {
				dir := strings.TrimSuffix(out, wholefile.Standard)
				return diag.New(diag.ClassUsage, "hetc keygen: --out %q names no file", out).
					WithHint("give a name without extension: --out %s", cli.Quote(filepath.Join(dir, "release")))
			}
			for _, extension := range []string{".key", ".pub"} {
				if name, ends := strings.CutSuffix(out, extension); ends {
					return diag.New(diag.ClassUsage, "hetc keygen: --out %q ends in %s, an extension of the files", out,
						extension).WithHint("give the name without extension: --out %s", cli.Quote(name))
				}
			}
			key, err := emit.GenerateKey(bundle.Algorithm(kind), out, dev)
			if err != nil {
				return err
			}
			if err := key.Save(out); err != nil {
				return err
			}
			ui.Printf("%s.key, %s.pub: %s key %s\n", out, out, kind, key.Public.ID())
			return ui.Result(map[string]any{"key": out + ".key", "public": out + ".pub", "algorithm": kind,
				"keyid": key.Public.ID(), "dev": dev})
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "name of the two files, without extension")
	cmd.Flags().StringVar(&kind, "type", string(bundle.Ed25519), "ed25519, or p256 for hardware keys")
	cmd.Flags().BoolVar(&dev, "dev", false, "a key for development")
	return cmd
}

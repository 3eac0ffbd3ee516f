package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
)

// compilers are the compilers this build has, for a plan's processors on soc.
func compilers(soc *socs.SoC) []driver.Compiler {
	out := []driver.Compiler{host.New()}
	if soc != nil && soc.Simulated() {
		out = append(out, sim.NewCompiler(soc))
	}
	return out
}

// drivers are those that execute for real, and the simulation of soc if it is simulated.
func drivers(soc *socs.SoC) []driver.Driver {
	out := all.Drivers()
	if soc != nil && soc.Simulated() {
		out = append(out, sim.New(soc))
	}
	return out
}

// socOf returns the SoC a plan is for: the file or name given, or for a simulated plan the catalog's.
// A SoC with another digest than the plan's is refused.
func socOf(p *planir.Plan, given string) (*socs.SoC, error) {
	name := given
	if name == "" {
		if !p.SoC.Simulated {
			return nil, nil
		}
		name = p.SoC.Name
	}
	soc, err := socs.Open(name)
	if err != nil && given == "" {
		return nil, diag.New(diag.ClassOf(err), "find the machine the plan was made for: %w", err).WithHint("give the SoC file the plan was solved with: --soc FILE")
	}
	if err != nil {
		return nil, err
	}
	digest, err := soc.Digest()
	if err != nil {
		return nil, err
	}
	if digest != p.SoC.Digest {
		return nil, diag.New(diag.ClassInput, "soc %q has digest %.12s, and the plan was made for %q with %.12s", name, digest, p.SoC.Name, p.SoC.Digest).
			WithHint("give the SoC file the plan was solved with (--soc), or solve again")
	}
	return soc, nil
}

// newRun is hetrun with the simulation beside it.
func newRun(s *cli.Streams) *cobra.Command {
	var soc string
	c := runcmd.New(s, "run", true, func(p *planir.Plan) ([]driver.Driver, error) {
		x, err := socOf(p, soc)
		return drivers(x), err
	})
	c.Flags().StringVar(&soc, "soc", "", "SoC file of a simulated plan whose SoC is not in the catalog")
	return c
}

// tokenizerFiles are a model's tokenizer and its settings as blobs, none for a model without.
func tokenizerFiles(m *models.Model) (map[string][]byte, error) {
	out := map[string][]byte{}
	for blob, name := range map[string]string{"tokenizer": "tokenizer.json", "config": "tokenizer_config.json"} {
		data, err := wholefile.Read(filepath.Join(m.Dir, name), 64<<20)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("model %q: %w", m.Dir, err)
		}
		out[blob] = data
	}
	return out, nil
}

func newDrivers(s *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "drivers",
		Short: "list drivers and the processors each one offers here",
		Long:  "Lists every driver of this build: what it can open on this machine, or what it lacks and how to get it.\n\n" + cli.ExitCodes,
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			type device struct {
				Select      string `json:"select"`
				Description string `json:"description"`
			}
			type entry struct {
				Driver    string   `json:"driver"`
				Available bool     `json:"available"`
				Missing   string   `json:"missing,omitempty"`
				Devices   []device `json:"devices,omitempty"`
			}
			var list []entry
			var rows [][]string
			for _, d := range all.Drivers() {
				e := entry{Driver: d.Name()}
				devices, err := d.Devices(c.Context())
				if err != nil {
					e.Missing = err.Error()
					rows = append(rows, []string{d.Name(), "-", "not available: " + e.Missing})
				} else {
					e.Available = true
					for _, x := range devices {
						e.Devices = append(e.Devices, device{x.Select, x.Description})
						rows = append(rows, []string{d.Name(), x.Select, x.Description})
					}
				}
				list = append(list, e)
			}
			s.Table([]string{"driver", "select", "what"}, rows)
			return s.Result(list)
		},
	}
}

func newModels(s *cli.Streams) *cobra.Command {
	c := &cobra.Command{Use: "models", Short: "list, show and synthesise models", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	list := &cobra.Command{Use: "list", Short: "list the catalog (shapes without weights)", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var rows [][]string
			var docs []any
			for _, name := range models.CatalogNames() {
				m, err := models.Open(name)
				if err != nil {
					return err
				}
				rows = append(rows, []string{name, m.Architecture, fmt.Sprintf("%.2f", float64(m.Parameters())/1e9), m.Source})
				docs = append(docs, map[string]any{"name": name, "architecture": m.Architecture, "parameters": m.Parameters(), "source": m.Source})
			}
			s.Table([]string{"model", "architecture", ">parameters 1e9", "source"}, rows)
			return s.Result(docs)
		}}
	show := &cobra.Command{Use: "show MODEL", Short: "show a model's dimensions and weights", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			m, err := models.Open(args[0])
			if err != nil {
				return err
			}
			defer m.Close()
			s.Printf("%s: %s, %d layers, hidden %d, heads %d/%d of %d, ffn %d, vocabulary %d, context %d, stored %s, weights: %v\n",
				m.Name, m.Architecture, m.Layers, m.Hidden, m.Heads, m.KVHeads, m.HeadDim, m.FFN, m.Vocab, m.MaxContext, m.Stored, m.HasWeights())
			for _, k := range m.UnreadKeys() {
				s.Warnf("config key %q is not used", k)
			}
			var rows [][]string
			g := m.Graph()
			for _, w := range g.Weights {
				rows = append(rows, []string{w.Name, fmt.Sprintf("[%d,%d]", w.K, w.N), strings.Join(w.From, " ")})
			}
			s.Table([]string{"weight", "[K,N]", "from"}, rows)
			return s.Result(map[string]any{"name": m.Name, "architecture": m.Architecture, "layers": m.Layers, "hidden": m.Hidden, "heads": m.Heads,
				"kv_heads": m.KVHeads, "head_dim": m.HeadDim, "ffn": m.FFN, "vocabulary": m.Vocab, "max_context": m.MaxContext, "weights": m.HasWeights(), "parameters": m.Parameters()})
		}}
	var out string
	var seed uint64
	synth := &cobra.Command{Use: "synth SHAPE -o DIR", Short: "write a model with seeded random weights", Args: cobra.ExactArgs(1),
		Long: "Writes a Hugging Face directory with the shapes of a catalog model and seeded random weights with outlier\nchannels, for measuring speed and memory. The same seed gives the same bytes.\n\n" + cli.ExitCodes,
		RunE: func(c *cobra.Command, args []string) error {
			if err := cli.Required(c, "output"); err != nil {
				return err
			}
			m, err := models.Open(args[0])
			if err != nil {
				return err
			}
			defer m.Close()
			if err := models.Synth(c.Context(), m, out, seed); err != nil {
				return err
			}
			s.Printf("%s: random weights of %s, seed %d\n", out, m.Name, seed)
			return s.Result(map[string]any{"dir": out, "model": m.Name, "seed": seed, "parameters": m.Parameters()})
		}}
	synth.Flags().StringVarP(&out, "output", "o", "", "directory to write")
	synth.Flags().Uint64Var(&seed, "seed", 7, "seed of the weights")
	c.AddCommand(list, show, synth)
	return c
}

func newSocs(s *cli.Streams) *cobra.Command {
	c := &cobra.Command{Use: "socs", Short: "list and show SoCs", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	list := &cobra.Command{Use: "list", Short: "list the catalog (simulated SoCs)", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var rows [][]string
			var docs []any
			for _, name := range socs.Catalog() {
				x, err := socs.Open(name)
				if err != nil {
					return err
				}
				var procs []string
				for _, p := range x.Processors {
					procs = append(procs, p.Name)
				}
				rows = append(rows, []string{name, strings.Join(procs, " "), fmt.Sprint(len(x.Assumptions())), x.Description})
				docs = append(docs, map[string]any{"name": name, "processors": procs, "assumptions": len(x.Assumptions()), "description": x.Description})
			}
			s.Table([]string{"soc", "processors", ">assumed values", "what"}, rows)
			return s.Result(docs)
		}}
	show := &cobra.Command{Use: "show SOC", Short: "show every number of a SoC with its source", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			x, err := socs.Open(args[0])
			if err != nil {
				return err
			}
			var rows [][]string
			for _, n := range x.Numbers() {
				rows = append(rows, []string{n.Path, n.Value, n.Kind, n.Text})
			}
			s.Printf("%s: %s\n", x.Name, x.Description)
			s.Table([]string{"value", ">number", "source", "where"}, rows)
			return s.Result(x)
		}}
	c.AddCommand(list, show)
	return c
}

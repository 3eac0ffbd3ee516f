package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/solver/highs"
)

func newDrivers(s *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "drivers",
		Short: "list drivers: their libraries, the processors they offer here, or what they lack",
		Long: "Lists every driver of this build: the library that does the work, the processors it offers on this machine with\n" +
			"their operators, schemes and cache types; or what it lacks, where that was looked for, and how to get it. A driver\n" +
			"that is not available is no error. Below stand the engines of solve that are libraries. Where libraries are looked for: docs/drivers.md.\n\n" + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var list []driverEntry
			var rows [][]string
			for _, d := range all.Drivers() {
				e := describe(c.Context(), d)
				rows = append(rows, e.rows()...)
				list = append(list, e)
			}
			s.Table([]string{"driver", "has", ""}, rows)
			for _, locate := range []func() (string, error){highs.Locate, highs.LocateNative} {
				if where, err := locate(); err != nil {
					s.Printf("%v\n", err)
				} else {
					s.Printf("engine of solve: HiGHS %s, %s\n", highs.Version, where)
				}
			}
			if native.Supported() != nil {
				s.Printf("\nThis build opens no shared libraries: drivers that need one are left out.\n")
			}
			return s.Result(list)
		},
	}
}

// driverEntry is what `hetc drivers` says about one driver.
type driverEntry struct {
	Driver    string        `json:"driver"`
	Available bool          `json:"available"`
	Library   *libraryEntry `json:"library,omitempty"`
	Devices   []deviceEntry `json:"devices,omitempty"`
	Operators []string      `json:"operators,omitempty"`
	Schemes   []string      `json:"schemes,omitempty"`
	Forms     []string      `json:"forms,omitempty"` // "a32/w32 as swapped"
	Cache     []string      `json:"cache_types,omitempty"`
	Emulated  bool          `json:"emulated,omitempty"` // its times are those of an emulator
	Problem   string        `json:"problem,omitempty"`  // devices are listed, but cannot be opened
	Missing   *missingEntry `json:"missing,omitempty"`
}

type libraryEntry struct {
	Name      string   `json:"name"`
	Version   string   `json:"version,omitempty"`
	Path      string   `json:"path,omitempty"`
	Build     string   `json:"build,omitempty"`
	Providers []string `json:"execution_providers,omitempty"`
}

type deviceEntry struct {
	Select      string `json:"select"`
	Description string `json:"description"`
	Cores       []int  `json:"cores,omitempty"`
}

type missingEntry struct {
	What     string   `json:"what"`
	Tried    []string `json:"tried,omitempty"`
	Get      string   `json:"get,omitempty"`
	Variable string   `json:"variable,omitempty"`
}

// describe asks a driver for all there is to know; its first device is opened for what it can do.
func describe(ctx context.Context, d driver.Driver) driverEntry {
	e := driverEntry{Driver: d.Name()}
	devices, err := d.Devices(ctx)
	var u *driver.Unavailable
	switch {
	case errors.As(err, &u):
		e.Missing = &missingEntry{What: u.Found, Tried: u.Tried, Get: u.Get, Variable: u.Override}
		if e.Missing.What == "" {
			e.Missing.What = "the library is in none of the places it was looked for"
		}
		return e
	case err != nil:
		e.Missing = &missingEntry{What: err.Error()}
		return e
	}
	e.Available = true
	if k, ok := d.(driver.Described); ok {
		if l, err := k.Library(ctx); err != nil {
			e.Problem = err.Error()
		} else {
			e.Library = &libraryEntry{l.Name, l.Version, l.Path, l.Build, l.Providers}
		}
	}
	for _, x := range devices {
		e.Devices = append(e.Devices, deviceEntry{x.Select, x.Description, x.Cores})
	}
	if len(devices) == 0 {
		e.Problem = "the driver found no device"
		return e
	}
	p, err := d.Open(ctx, driver.Config{Select: devices[0].Select})
	if err != nil {
		e.Problem = err.Error()
		return e
	}
	defer p.Close()
	caps := p.Capabilities()
	e.Emulated = caps.Emulated
	for _, k := range caps.Kinds {
		e.Operators = append(e.Operators, string(k))
	}
	for _, x := range caps.Schemes {
		e.Schemes = append(e.Schemes, string(x))
	}
	for _, x := range caps.Schemes {
		for _, f := range caps.Forms[x] {
			e.Forms = append(e.Forms, fmt.Sprintf("%s as %s", x, f))
		}
	}
	for _, t := range caps.KV {
		e.Cache = append(e.Cache, fmt.Sprint(t))
	}
	return e
}

// rows are the lines of the table: the driver's name stands in the first of them.
func (e *driverEntry) rows() (rows [][]string) {
	add := func(what string, values ...string) {
		for i, v := range values {
			if v == "" {
				continue
			}
			if i > 0 {
				what = ""
			}
			rows = append(rows, []string{"", what, v})
		}
	}
	if m := e.Missing; m != nil {
		add("not available", m.What)
		add("tried", m.Tried...)
		ways := []string{m.Get}
		if m.Variable != "" {
			ways = append(ways, "set "+m.Variable+" to the library's path")
		}
		add("way out", ways...)
	}
	if l := e.Library; l != nil {
		add("library", strings.TrimSpace(l.Name+" "+l.Version))
		add("path", l.Path)
		add("build", l.Build)
		add("execution providers", strings.Join(l.Providers, ", "))
	}
	var selects []string
	for _, x := range e.Devices {
		selects = append(selects, x.Select)
	}
	add("processors", strings.Join(selects, ", "))
	if e.Emulated {
		add("emulated", "the device's results, and no device times: probe and profile leave it out")
	}
	add("operators", wrap(e.Operators, ",")...)
	add("schemes", wrap(e.Schemes, ",")...)
	add("forms", wrap(e.Forms, ",")...)
	add("cache types", wrap(e.Cache, ",")...)
	add("problem", e.Problem)
	rows[0][0] = e.Driver
	return rows
}

// wrap joins words, which sep ends, into lines of readable width.
func wrap(words []string, sep string) (lines []string) {
	const width = 72
	line := ""
	for i, w := range words {
		if i < len(words)-1 {
			w += sep
		}
		if line != "" && len(line)+1+len(w) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	return append(lines, line)
}

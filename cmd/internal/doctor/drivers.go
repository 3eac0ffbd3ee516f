package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/runtime/driver"
)

// DriverEntry is what `hetc drivers` says about one driver.
type DriverEntry struct {
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

// Describe asks a driver for all there is to know; its first device is opened for what it can do.
func Describe(ctx context.Context, d driver.Driver) DriverEntry {
	e := DriverEntry{Driver: d.Name()}
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

// Rows are the lines of the table: the driver's name stands in the first of them.
func (e *DriverEntry) Rows() (rows [][]string) {
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
	add("operators", cli.Wrap(e.Operators, ",")...)
	add("schemes", cli.Wrap(e.Schemes, ",")...)
	add("forms", cli.Wrap(e.Forms, ",")...)
	add("cache types", cli.Wrap(e.Cache, ",")...)
	add("problem", e.Problem)
	rows[0][0] = e.Driver
	return rows
}

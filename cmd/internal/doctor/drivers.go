package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/runtime/driver"
)

// DriverEntry is what `hetc drivers` reports about one driver.
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

// libraryEntry is the shared library that a driver works with.
type libraryEntry struct {
	Name      string   `json:"name"`
	Version   string   `json:"version,omitempty"`
	Path      string   `json:"path,omitempty"`
	Build     string   `json:"build,omitempty"`
	Providers []string `json:"execution_providers,omitempty"`
	Skipped   []string `json:"skipped,omitempty"` // parts that fail, with their reasons
}

// deviceEntry is a processor that a driver offers.
type deviceEntry struct {
	Select      string `json:"select"`
	Description string `json:"description"`
	Cores       []int  `json:"cores,omitempty"`
}

// missingEntry is what a driver lacks, where it was looked for, and how to get it.
type missingEntry struct {
	What     string   `json:"what"`
	Tried    []string `json:"tried,omitempty"`
	Get      string   `json:"get,omitempty"`
	Variable string   `json:"variable,omitempty"`
}

// Describe asks a driver for everything; it opens the first device to ask for its capabilities.
func Describe(ctx context.Context, drv driver.Driver) DriverEntry {
	entry := DriverEntry{Driver: drv.Name()}
	devices, err := drv.Devices(ctx)
	var missing *driver.Unavailable
	switch {
	case errors.As(err, &missing):
		entry.Missing = &missingEntry{What: missing.Found, Tried: missing.Tried, Get: missing.Get,
			Variable: missing.Override}
		if entry.Missing.What == "" {
			entry.Missing.What = "the library is in none of the places it was looked for"
		}
		return entry
	case err != nil:
		entry.Missing = &missingEntry{What: err.Error()}
		return entry
	}
	// From here on a failure is a problem of a driver that is there: it is told beside what is known already.
	entry.Available = true
	if described, ok := drv.(driver.Described); ok {
		if library, err := described.Library(ctx); err != nil {
			entry.Problem = err.Error()
		} else {
			entry.Library = &libraryEntry{library.Name, library.Version, library.Path, library.Build, library.Providers,
				library.Skipped}
		}
	}
	for _, device := range devices {
		entry.Devices = append(entry.Devices, deviceEntry{device.Select, device.Description, device.Cores})
	}
	if len(devices) == 0 {
		entry.Problem = "the driver found no device"
		return entry
	}
	proc, err := drv.Open(ctx, driver.Config{Select: devices[0].Select})
	if err != nil {
		entry.Problem = err.Error()
		return entry
	}
	defer proc.Close()
	caps := proc.Capabilities()
	entry.Emulated = caps.Emulated
	for _, kind := range caps.Kinds {
		entry.Operators = append(entry.Operators, string(kind))
	}
	for _, scheme := range caps.Schemes {
		entry.Schemes = append(entry.Schemes, string(scheme))
	}
	for _, scheme := range caps.Schemes {
		for _, form := range caps.Forms[scheme] {
			entry.Forms = append(entry.Forms, fmt.Sprintf("%s as %s", scheme, form))
		}
	}
	for _, element := range caps.KV {
		entry.Cache = append(entry.Cache, fmt.Sprint(element))
	}
	return entry
}

// Rows returns the lines of the table; the driver's name stands in the first one.
func (e *DriverEntry) Rows() (rows [][]string) {
	// One line for each value; the word stands before the first only.
	add := func(what string, values ...string) {
		for i, value := range values {
			if value == "" {
				continue
			}
			if i > 0 {
				what = ""
			}
			rows = append(rows, []string{"", what, value})
		}
	}
	if entry := e.Missing; entry != nil {
		add("not available", entry.What)
		add("tried", entry.Tried...)
		ways := []string{entry.Get}
		if entry.Variable != "" {
			ways = append(ways, "set "+entry.Variable+" to the library's path")
		}
		add("way out", ways...)
	}
	if entry := e.Library; entry != nil {
		add("library", called(entry.Name, entry.Version))
		add("path", entry.Path)
		add("build", entry.Build)
		add("providers", strings.Join(entry.Providers, ", "))
		add("skipped", entry.Skipped...)
	}
	var selects []string
	for _, entry := range e.Devices {
		selects = append(selects, entry.Select)
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
	// There is always a row: a driver has devices, or a problem, or something missing.
	rows[0][0] = e.Driver
	return rows
}

// called joins the name of a library and its version, which may begin with the name.
func called(name, version string) string {
	if strings.HasPrefix(version, name) {
		return version
	}
	return strings.TrimSpace(name + " " + version)
}

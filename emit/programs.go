package emit

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/programs"
)

// programSources returns the binaries of the programs that the plan's processors build from artifacts, for the devices
// that these drivers find here. A program that several artifacts hold is there once.
func (c *Content) programSources(ctx context.Context, drivers []driver.Driver) ([]bundle.Source, error) {
	blobs, builders := map[string][]byte{}, 0
	for _, name := range slices.Sorted(maps.Keys(c.artifacts)) {
		made := c.artifacts[name]
		proc := c.plan.Proc(made.proc)
		at := slices.IndexFunc(drivers, func(d driver.Driver) bool { return d.Name() == proc.Driver })
		if at < 0 {
			continue
		}
		builder, ok := drivers[at].(driver.Prebuilder)
		if !ok {
			continue
		}
		builders++
		code, err := made.read()
		if err != nil {
			return nil, err
		}
		list, err := builder.Prebuild(ctx, driver.Config{Select: proc.Select, Options: proc.Options}, code)
		if err != nil {
			return nil, fmt.Errorf("build the programs of %q for processor %q: %w", name, proc.Name, err)
		}
		for i := range list {
			blob := programs.Blob(list[i].Key)
			if blobs[blob] != nil {
				continue
			}
			if blobs[blob], err = programs.Encode(&list[i]); err != nil {
				return nil, err
			}
		}
	}
	if builders == 0 {
		return nil, diag.New(diag.ClassUsage, "--binaries: no processor of the plan builds programs from source").
			WithHint("leave it out: processors of driver opencl have binaries")
	}
	var out []bundle.Source
	for _, name := range slices.Sorted(maps.Keys(blobs)) {
		out = append(out, blob(name, bundle.RoleGPUKernel, "application/vnd.hetc.program.v1", blobs[name]))
	}
	return out, nil
}

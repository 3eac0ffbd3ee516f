package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/doctor"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/solver/highs"
)

// newDrivers lists drivers and engines with what they offer here or lack; doctor.Describe asks each driver.
func newDrivers(ui *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "drivers",
		Short: "list drivers: their libraries, the processors they offer here, or what they lack",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list []doctor.DriverEntry
			var rows [][]string
			for _, drv := range all.Drivers() {
				entry := doctor.Describe(cmd.Context(), drv)
				rows = append(rows, entry.Rows()...)
				list = append(list, entry)
			}
			ui.Table([]string{"driver", "has", ""}, rows)
			for _, locate := range []func() (string, error){highs.Locate, highs.LocateNative} {
				if where, err := locate(); err != nil {
					ui.Printf("%v\n", err)
				} else {
					ui.Printf("engine of solve: HiGHS %s, %s\n", highs.Version, where)
				}
			}
			if native.Supported() != nil {
				ui.Printf("\nThis build opens no shared libraries: drivers that need one are left out.\n")
			}
			return ui.Result(list)
		},
	}
}

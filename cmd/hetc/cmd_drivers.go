package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/doctor"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/solver/highs"
)

func newDrivers(s *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "drivers",
		Short: "list drivers: their libraries, the processors they offer here, or what they lack",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var list []doctor.DriverEntry
			var rows [][]string
			for _, d := range all.Drivers() {
				e := doctor.Describe(c.Context(), d)
				rows = append(rows, e.Rows()...)
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

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/papers"
)

// newReproduce recomputes figures of papers beside the printed ones; package papers holds the items.
func newReproduce(ui *cli.Streams) *cobra.Command {
	var list bool
	var models string
	cmd := &cobra.Command{
		Use:   "reproduce [PAPER [ITEM]]",
		Short: "recompute what the papers behind hetc print, beside the printed values",
		Args:  cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			items, err := papers.PickItems(args)
			if err != nil {
				return err
			}
			if err := papers.CheckModels(models); err != nil {
				return err
			}
			if list {
				return papers.ListItems(ui, items)
			}
			rows := []papers.Row{}
			for _, it := range items {
				more, err := it.Run(cmd.Context(), models)
				if err != nil {
					return fmt.Errorf("reproduce %s %s: %w", it.Paper, it.Name, err)
				}
				papers.ShowRows(ui, &it, more)
				rows = append(rows, more...)
			}
			return ui.Result(map[string]any{"rows": rows})
		},
	}
	cmd.Flags().BoolVar(&list, "list", false, "list the items instead of recomputing them")
	cmd.Flags().StringVar(&models, "models", "", "folder with tiny-llama-kjv and tiny-moe-kjv, which some rows are executed with")
	return cmd
}

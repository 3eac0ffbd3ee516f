package matrix

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
)

// recordSource is the record that costs are fitted to.
type recordSource struct {
	name string                                    // for messages
	key  cas.Key                                   // of the costs
	read func(ctx context.Context) ([]byte, error) // the bytes of the record
}

// costs returns the key of a cell's costs, and the function that finds or makes them.
func (b *build) costs(cell *Cell) (cas.Key, func(context.Context) (*roofline.Costs, error), error) {
	input := cell.soc
	from := b.givenRecord(input)
	if input.entry.Record == "" {
		var err error
		if from, err = b.simulatedRecord(cell); err != nil {
			return cas.Key{}, nil, err
		}
	}

	// A build that accepts no noisy record must not find costs that were fitted to one. A simulated one is never noisy.
	if b.o.AcceptNoisy && input.entry.Record != "" {
		from.key = cas.KeyOf("noisy", from.key.String())
	}
	return from.key, func(ctx context.Context) (*roofline.Costs, error) {
		entry, _, err := b.obtain(ctx, from.key, func(path string) error {
			return b.fit(ctx, input, from, path)
		}, cell.warn)
		if err != nil {
			return nil, err
		}

		defer entry.Close()
		text, err := entry.Data(maxText)
		if err != nil {
			return nil, err
		}
		return roofline.Parse("costs of "+input.entry.Name, text)
	}, nil
}

// givenRecord returns the record that the configuration names. It must not change while the build runs.
func (b *build) givenRecord(input *socInput) *recordSource {
	return &recordSource{
		name: input.entry.Record,
		key:  cas.KeyOf("costs", b.o.Program, input.digest, input.record.String()),
		read: func(context.Context) ([]byte, error) {
			data, err := b.readRecord(input)
			if err == nil && sha256.Sum256(data) != input.record {
				err = errChanged("record", input.entry.Record)
			}
			return data, err
		},
	}
}

// simulatedRecord returns the record of a simulated SoC with the requests of the cell's model and workload. It depends
// only on SoC and requests, so that all models with the same requests share it.
func (b *build) simulatedRecord(cell *Cell) (*recordSource, error) {
	input := cell.soc
	needs, err := cell.workload.workload.Needs(cell.model.model.MaxContext)
	if err != nil {
		return nil, err
	}

	want := profiler.Want{Buckets: needs.Buckets, Batches: needs.Batches, Schemes: needs.On(input.part),
		MaxContext: needs.Context, Caches: needs.Caches, Densities: needs.Densities}
	requests, err := profiler.Requests(input.part, cell.model.model, want)
	if err != nil {
		return nil, err
	}
	list, err := json.Marshal(requests)
	if err != nil {
		return nil, fmt.Errorf("requests: %w", err)
	}
	measured := cas.KeyOf("record", b.o.Program, input.digest, string(list))
	return &recordSource{
		name: "simulated record of " + input.entry.Name,
		key:  cas.KeyOf("costs", b.o.Program, input.digest, measured.String()),
		read: func(ctx context.Context) ([]byte, error) {
			entry, _, err := b.obtain(ctx, measured, func(path string) error {
				return b.o.Tools.Simulate(ctx, input.soc, requests, path)
			}, cell.warn)
			if err != nil {
				return nil, err
			}
			defer entry.Close()
			return entry.Data(maxRecord)
		},
	}, nil
}

// fit fits costs to a record and writes them.
func (b *build) fit(ctx context.Context, input *socInput, from *recordSource, path string) error {
	set, give, err := b.parseRecord(ctx, from)
	if err != nil {
		return err
	}

	defer give()
	if !b.o.AcceptNoisy {
		if err := set.Steady(from.name); err != nil {
			return err
		}
	}

	costs, err := roofline.Fit(input.soc, set)
	if err != nil {
		return err
	}
	return roofline.Write(path, costs)
}

// noise returns the warning about a record of which most is noisy and which was accepted all the same, none about
// others.
func (b *build) noise(ctx context.Context, input *socInput) (diag.List, error) {
	if !b.o.AcceptNoisy || input.entry.Record == "" {
		return nil, nil
	}
	from := b.givenRecord(input)
	set, give, err := b.parseRecord(ctx, from)
	if err != nil {
		return nil, err
	}

	defer give()
	warning := set.Unreliable(from.name)
	if warning == "" {
		return nil, nil
	}
	return diag.List{diag.New(diag.ClassInput, "%s", warning)}, nil
}

// parseRecord reads a record. give returns the memory that is counted for it.
func (b *build) parseRecord(ctx context.Context, from *recordSource) (set *record.Set, give func(), err error) {
	data, err := from.read(ctx)
	if err != nil {
		return nil, nil, err
	}
	give, err = b.memory.take(ctx, baseBytes+parsedRecord*int64(len(data)))
	if err != nil {
		return nil, nil, fmt.Errorf("fit: %w", err)
	}
	if set, err = record.Read(from.name, bytes.NewReader(data)); err != nil {
		give()
		return nil, nil, err
	}
	return set, give, nil
}

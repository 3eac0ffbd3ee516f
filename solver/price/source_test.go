package price

import (
	"errors"
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs/timeline"
)

// inOneScheme is a cost model that knows products in one scheme only.
type inOneScheme struct{ Costs }

func (inOneScheme) Together(tasks []Task) ([]Estimate, error) {
	var out []Estimate
	for _, task := range tasks {
		if task.Op.Scheme != op.A8TQ8C {
			return nil, errors.New("never measured")
		}
		out = append(out, Estimate{NS: 100})
	}
	return out, nil
}

func (inOneScheme) Phase(task Task) (timeline.Phase, error) {
	if task.Op.Scheme != op.A8TQ8C {
		return timeline.Phase{}, errors.New("never measured")
	}
	return timeline.Phase{SetupNS: 100}, nil
}

// What a plan in any scheme would take has a price alone, beside others, and taken apart; what has no scheme has
// only its own.
func TestAnySchemeHasEveryPrice(t *testing.T) {
	costs := AnyScheme{Costs: inOneScheme{}}
	product := Task{Proc: "a", Op: op.Op{Kind: op.MatMul, Scheme: op.A32W16}}
	if list, err := costs.Together([]Task{product, product}); err != nil || len(list) != 2 || list[1].NS != 100 {
		t.Errorf("beside each other: %v, %v", list, err)
	}
	if phase, err := costs.Phase(product); err != nil || phase.SetupNS != 100 {
		t.Errorf("taken apart: %+v, %v", phase, err)
	}
	other := Task{Proc: "a", Op: op.Op{Kind: op.Add}}
	if _, err := costs.Phase(other); err == nil {
		t.Error("an addition that was never measured has a price")
	}
}

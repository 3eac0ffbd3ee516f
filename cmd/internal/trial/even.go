package trial

import (
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/calibration"
)

// EvenHeads returns a calibration of a model in which all heads of sparse attention are alike (calibration.Even).
func EvenHeads(model *models.Model, density float64) (*calibration.Calibration, error) {
	digest, err := model.Digest()
	if err != nil {
		return nil, err
	}
	of := calibration.Model{Name: model.Name, Digest: digest}
	return calibration.Even(of, model.Layers, model.Heads, model.KVHeads, density), nil
}

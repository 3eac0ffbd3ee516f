package induction

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"

	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir/op"
)

// Write writes config.json and model.safetensors into a directory that is there, the values as bfloat16. Equal tensors
// and configurations give equal bytes.
func Write(dir string, tensors Tensors, config map[string]any) error {
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return err
	}
	if err := wholefile.Write(filepath.Join(dir, "config.json"), append(text, '\n')); err != nil {
		return err
	}
	var list []safetensors.Tensor
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		tensor := tensors[name]
		data := make([]byte, 0, 2*len(tensor.Values))
		for _, value := range tensor.Values {
			data = binary.LittleEndian.AppendUint16(data, number.FloatToBrain(float32(value)))
		}
		list = append(list, safetensors.Tensor{Name: name, Type: op.BF16, Shape: tensor.Shape, Data: data})
	}
	return safetensors.Write(filepath.Join(dir, "model.safetensors"), list, map[string]string{"format": "pt"})
}

package ort

import (
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
)

// verify is replaced by the real check.
func verify(*onnx.Model, *op.Graph) error { return nil }

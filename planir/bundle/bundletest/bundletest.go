// Package bundletest knows how a publisher signs a bundle again that he has changed, for tests of what is then refused.
package bundletest

import (
	"bytes"
	"context"

	"github.com/hetc/hetc/planir/bundle"
)

// Changes are what differs from a bundle. The zero value changes nothing.
type Changes struct {
	Entrypoint string                                          // "": the same
	Contents   map[string][]byte                               // of blobs, by name
	Role       func(name string, role bundle.Role) bundle.Role // nil: the same
}

// Resign writes a bundle with changes to path, signed by signer.
func Resign(ctx context.Context, path string, from *bundle.Bundle, changes Changes, signer bundle.Signer) error {
	manifest := *from.Manifest()
	manifest.Blobs = nil
	if changes.Entrypoint != "" {
		manifest.Entrypoint = changes.Entrypoint
	}
	var sources []bundle.Source
	for _, blob := range from.Manifest().Blobs {
		content, ok := changes.Contents[blob.Name]
		if !ok {
			var err error
			if content, err = from.Bytes(blob.Name); err != nil {
				return err
			}
		}
		role := blob.Role
		if changes.Role != nil {
			role = changes.Role(blob.Name, role)
		}
		sources = append(sources, bundle.Source{Name: blob.Name, Role: role, Type: blob.Type, Align: blob.Align,
			Bytes: int64(len(content)), Content: bytes.NewReader(content)})
	}
	_, err := bundle.Write(ctx, path, manifest, sources, signer)
	return err
}

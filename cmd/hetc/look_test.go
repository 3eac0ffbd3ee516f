package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/planir/bundle"
)

// What is known of compiled graphs is shown of both forms of a bundle alike, and a damaged report is named.
func TestInspectShowsTheReport(t *testing.T) {
	key, err := emit.GenerateKey(bundle.Ed25519, "test", false)
	if err != nil {
		t.Fatal(err)
	}
	const report = `{"schema":"hetc.npu-report/1","compilers":[{"proc":"npu","driver":"qnn","version":"QNN 1","token":"v2"}],` +
		`"graphs":[{"blob":"graph/0001.000","bytes":7,"sha256":"ab","name":"npu/layers.qkv@64","proc":"npu","layer":0,"ops":["norm[1,2]"],"rows":64}],` +
		`"bounds":"none","not_checked":["never loaded on a device"]}`
	write := func(text string, form func(context.Context, string, bundle.Manifest, []bundle.Source, ...bundle.Signer) (bundle.Digest, error)) string {
		path := filepath.Join(t.TempDir(), "x")
		_, err := form(t.Context(), path, bundle.Manifest{Product: "test", Entrypoint: emit.PlanBlob}, []bundle.Source{
			{Name: emit.PlanBlob, Role: bundle.RolePlan, Bytes: 2, Content: strings.NewReader("{}")},
			{Name: emit.ReportBlob, Role: bundle.RoleReport, Bytes: int64(len(text)), Content: strings.NewReader(text)},
		}, key.Signer())
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, form := range []func(context.Context, string, bundle.Manifest, []bundle.Source, ...bundle.Signer) (bundle.Digest, error){bundle.Write, bundle.WriteDir} {
		var out, errs bytes.Buffer
		if code := run([]string{"inspect", write(report, form)}, nil, &out, &errs); code != 0 || !strings.Contains(out.String(), "npu: compiled by QNN 1") || !strings.Contains(out.String(), "not checked: never loaded on a device") {
			t.Errorf("inspect exits with %d:\n%s%s", code, out.String(), errs.String())
		}
		out.Reset()
		if code := run([]string{"inspect", write(report[:len(report)-1], form)}, nil, &out, &errs); code != 3 || !strings.Contains(errs.String(), "decode report: unexpected EOF") || !strings.Contains(errs.String(), "hetc verify") {
			t.Errorf("inspect of a damaged report exits with %d:\n%s%s", code, out.String(), errs.String())
		}
	}
}

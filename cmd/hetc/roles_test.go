package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/bundle/bundletest"
)

// A trusted key that signed a blob under a role it is not used as, or that begins with another plan: refused where the
// blob is used, with the step and the code of verification, whatever the blob is called.
func TestWrongRoles(t *testing.T) {
	require.Slow(t)
	whole := artifacts(t)
	key, err := emit.LoadSigningKey(whole.at("k.key"))
	if err != nil {
		t.Fatal(err)
	}
	trust, err := bundle.LoadTrust(whole.at("k.pub"))
	if err != nil {
		t.Fatal(err)
	}
	d := &dir{T: t, path: t.TempDir(), artifacts: whole.path, model: whole.model}
	d.hetc("emit --plan $A/plan.yaml --model $M --key $A/k.key --with-reference -o app.hetb")
	b, err := bundle.Open(d.at("app.hetb"), bundle.Options{Trust: trust})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()

	resigned := func(entrypoint string, role func(name string, role bundle.Role) bundle.Role) string {
		path := filepath.Join(t.TempDir(), "x.hetb")
		changes := bundletest.Changes{Entrypoint: entrypoint, Role: role}
		if err := bundletest.Resign(t.Context(), path, b, changes, key.Signer()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	only := func(prefix string, wrong bundle.Role) func(string, bundle.Role) bundle.Role {
		return func(name string, role bundle.Role) bundle.Role {
			if strings.HasPrefix(name, prefix) {
				return wrong
			}
			return role
		}
	}
	same := only("\x00", "")
	for _, c := range []struct {
		name, entry string
		role        func(string, bundle.Role) bundle.Role
		check       bool
		say         string // "": it runs
	}{
		{"as emitted", "plan", same, true, ""},
		{"graphs as weights", "plan", only("graph/", bundle.RoleWeights), false, `has role "weights", want ["plan" "npu-graph" "gpu-kernel"]`},
		{"graphs as reports", "plan", only("graph/", bundle.RoleReport), false, `has role "report", want`},
		{"tokenizer as weights", "plan", only("tokenizer", bundle.RoleWeights), false, `blob "tokenizer" has role "weights", want ["tokenizer"]`},
		{"config as weights", "plan", only("config", bundle.RoleWeights), false, `blob "config" has role "weights", want ["config"]`},
		{"weights as a plan", "plan", only("weights/", bundle.RolePlan), false, `has role "plan", want ["weights"]`},
		{"weights as reference", "plan", only("weights/", bundle.RoleReference), false, `has role "reference", want ["weights"]`},
		{"another entrypoint", "reference/plan", same, false, "its plan is measured"}, // the reference is a plan for the host
		{"another entrypoint, plan as weights", "reference/plan", only("plan", bundle.RoleWeights), false, "its plan is measured"},
		{"an artifact as entrypoint", "graph/0000", same, false, "plan"},
		{"reference plan as reference", "plan", only("reference/plan", bundle.RoleReference), true, `blob "reference/plan" has role "reference", want ["plan"]`},
		{"reference weights as weights", "plan", only("reference/weights", bundle.RoleWeights), true, `has role "weights", want ["reference"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := []string{"run", resigned(c.entry, c.role), "--trust", whole.at("k.pub"), "--prompt", "In the", "--max-tokens", "1"}
			if c.check {
				args = append(args, "--check")
			}
			want := 5
			if strings.HasPrefix(c.entry, "graph/") { // its role is right, and it is no plan
				want = 3
			}
			var out, errs bytes.Buffer
			code := run(args, nil, &out, &errs)
			switch {
			case c.say == "" && code != 0:
				t.Errorf("exit code %d\n%s", code, errs.String())
			case c.say == "":
			case code != want, !strings.Contains(errs.String(), c.say), !strings.Contains(errs.String(), "hint: "), out.Len() > 0 && !c.check:
				t.Errorf("exit code %d, want %d and %q\n%s%s", code, want, c.say, out.String(), errs.String())
			}
		})
	}
}

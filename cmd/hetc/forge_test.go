package main

import (
	"context"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/bundle/bundletest"
)

// forge signs a bundle again in which an artifact of a group of experts is another one: forge KIND BUNDLE KEY OUT. The
// key is given without its suffix. Kinds are those of forged.
func forge(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 || forged[args[0]] == nil {
		ts.Fatalf("usage: forge KIND BUNDLE KEY OUT")
	}
	keys, err := bundle.LoadTrust(ts.MkAbs(args[2] + ".pub"))
	ts.Check(err)
	key, err := emit.LoadSigningKey(ts.MkAbs(args[2] + ".key"))
	ts.Check(err)
	from, err := bundle.Open(ts.MkAbs(args[1]), bundle.Options{Trust: keys})
	ts.Check(err)
	defer from.Close()
	blob := func(name string) []byte {
		data, err := from.Bytes(name)
		ts.Check(err)
		return data
	}
	plan, err := planir.Decode(blob(from.Manifest().Entrypoint))
	ts.Check(err)

	var groups []planir.GraphGroup
	for _, group := range plan.GraphGroups() {
		if strings.Contains(group.Graphs[0].Name, "_g") {
			groups = append(groups, group)
		}
	}
	changed := map[string][]byte{}
	forged[args[0]](groups, blob, changed)
	if len(changed) == 0 {
		ts.Fatalf("forge %s: nothing is changed in %d groups of experts", args[0], len(groups))
	}

	ts.Check(bundletest.Resign(context.Background(), ts.MkAbs(args[3]), from, bundletest.Changes{Contents: changed},
		key.Signer()))
}

// forged are ways to change the artifacts of groups, by name.
var forged = map[string]func(groups []planir.GraphGroup, blob func(string) []byte, changed map[string][]byte){
	// the first half of one
	"half": func(groups []planir.GraphGroup, blob func(string) []byte, changed map[string][]byte) {
		name := artifactOf(&groups[0])
		data := blob(name)
		changed[name] = data[:len(data)/2]
	},
	// two of other slots or capacities exchanged, in one layer
	"groups": func(groups []planir.GraphGroup, blob func(string) []byte, changed map[string][]byte) {
		exchange(groups, blob, changed, func(one, other *planir.GraphGroup) bool {
			return one.Layer == other.Layer && one.Graphs[0] != other.Graphs[0]
		})
	},
	// two layers of one group exchanged: the same graph with other experts
	"layers": func(groups []planir.GraphGroup, blob func(string) []byte, changed map[string][]byte) {
		exchange(groups, blob, changed, func(one, other *planir.GraphGroup) bool {
			return one.Layer != other.Layer && one.Graphs[0] == other.Graphs[0]
		})
	},
}

// artifactOf is the blob of a group's first graph.
func artifactOf(group *planir.GraphGroup) string {
	return planir.LayerBlob(group.Graphs[0].Artifact, group.Layer)
}

// exchange exchanges the artifacts of the first group and of the first other one that fits.
func exchange(groups []planir.GraphGroup, blob func(string) []byte, changed map[string][]byte,
	fits func(one, other *planir.GraphGroup) bool) {
	for i := range groups {
		if fits(&groups[0], &groups[i]) {
			one, other := artifactOf(&groups[0]), artifactOf(&groups[i])
			changed[one], changed[other] = blob(other), blob(one)
			return
		}
	}
}

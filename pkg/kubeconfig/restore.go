package kubeconfig

import (
	"bytes"
	"encoding/base64"
	"fmt"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Change is what Rotate did to one entry: it has all that Restore needs to take that back, and no secret.
type Change struct {
	Kind   string `json:"kind"` // cluster or user
	Name   string `json:"name"`
	Server string `json:"server"`
	From   []byte `json:"from,omitempty"` // the CA bundle before, PEM
	To     []byte `json:"to,omitempty"`   // the CA bundle after, PEM
	// Added is true when the entry had no certificate-authority-data before, not even an empty one.
	Added bool `json:"added,omitempty"`
}

func (p planned) change() Change {
	return Change{Kind: p.Kind, Name: p.Name, Server: p.server, From: p.from, To: p.to, Added: p.absent}
}

// Restore takes changes back. An entry that does not have the CA bundle any more which the change gave it, or leads
// elsewhere now, is skipped with SkipChanged. Everything else is as with Rotate.
func Restore(content []byte, changes []Change) (*Rotation, error) {
	return rewrite(content, func(before *clientcmdapi.Config) (*clientcmdapi.Config, []planned) {
		after := before.DeepCopy()
		there := map[string]place{}
		for _, one := range allPlaces(before) {
			there[one.kind+"/"+one.name] = one
		}
		var entries []planned
		for _, change := range changes {
			one, ok := there[change.Kind+"/"+change.Name]
			if !ok {
				one = place{kind: change.Kind, name: change.Name}
			}
			entries = append(entries, one.restore(after, change, ok))
		}
		return after, entries
	})
}

func (p place) restore(config *clientcmdapi.Config, change Change, there bool) planned {
	made := planned{
		Entry:    Entry{Kind: p.kind, Name: p.name, Outcome: Rotated},
		argument: p.argument, prefix: p.prefix, server: p.server, from: p.bundle, to: change.From, absent: change.Added,
	}
	switch {
	case !there || p.err != nil || p.fixed != "" || p.server != change.Server:
		made.Outcome, made.Code = Skipped, SkipChanged
		made.Reason = fmt.Sprintf("it does not lead to %q any more in the way that it did", change.Server)
		return made
	case p.file == "" && bytes.Equal(p.bundle, change.From):
		made.Outcome = Current
		return made
	case !bytes.Equal(p.bundle, change.To):
		made.Outcome, made.Code = Skipped, SkipChanged
		made.Reason = "its CA bundle was changed again since"
		return made
	}
	if p.kind == kindUser {
		config.AuthInfos[p.name].Exec.Args[p.argument] = p.prefix + base64.StdEncoding.EncodeToString(change.From)
		return made
	}
	config.Clusters[p.name].CertificateAuthorityData = nilIfEmpty(change.From)
	return made
}

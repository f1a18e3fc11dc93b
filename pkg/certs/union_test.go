package certs_test

import (
	"slices"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestUnionBundle(t *testing.T) {
	t.Parallel()
	var pems [][]byte
	for _, name := range []string{"old", "new", "other"} {
		ca := must.Get(certs.NewCA(name, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Hour))(t)
		pems = append(pems, ca.CertPEM())
	}
	join := func(parts ...[]byte) []byte { return slices.Concat(parts...) }
	for _, tt := range []struct {
		name    string
		bundles [][]byte
		want    []byte
	}{
		{"puts one after the other", [][]byte{pems[0], pems[1]}, join(pems[0], pems[1])},
		{"has each once", [][]byte{join(pems[0], pems[1], pems[0]), join(pems[2], pems[1])}, join(pems[0], pems[1], pems[2])},
		{
			"leaves out text, and what is no certificate",
			[][]byte{join([]byte("the old one\n"), pems[0]), []byte("nothing"), nil},
			pems[0],
		},
		{"is empty without any", nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := certs.UnionBundle(tt.bundles...); string(got) != string(tt.want) {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

package trustbundle_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func bundle(tb testing.TB) []byte {
	tb.Helper()
	ca, err := certs.NewCA("ca", time.Unix(1700000000, 0), time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	return ca.CertPEM()
}

func TestThereAndBack(t *testing.T) {
	t.Parallel()
	for _, want := range [][]byte{nil, {}, bundle(t), append([]byte("# the company's\n"), bundle(t)...)} {
		document, err := trustbundle.Encode(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := trustbundle.Decode(bytes.NewReader(document))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("of %q: %q, %v", want, got, err)
		}
	}
	if _, err := trustbundle.Encode(make([]byte, trustbundle.MaxSize)); err == nil {
		t.Error("a bundle that is too large can be encoded")
	}
}

func TestOtherResponses(t *testing.T) {
	t.Parallel()
	good, err := trustbundle.Encode(bundle(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		response string
		none     bool
	}{
		"a page":             {response: "<html>log in</html>", none: true},
		"nothing":            {none: true},
		"a status":           {response: `{"kind":"Status","apiVersion":"v1","code":404}`, none: true},
		"a long response":    {response: `{"kind":"` + strings.Repeat("x", trustbundle.MaxSize) + `"}`, none: true},
		"nesting":            {response: strings.Repeat("[", 100000), none: true},
		"another version":    {response: strings.Replace(string(good), "dev/v1", "dev/v2", 1)},
		"no bundle":          {response: `{"kind":"TrustBundle","apiVersion":"trustbundle.pinniped.dev/v1"}`},
		"null":               {response: `{"kind":"TrustBundle","apiVersion":"trustbundle.pinniped.dev/v1","certificateAuthorityData":null}`},
		"two":                {response: string(good) + string(good)},
		"no PEM":             {response: `{"kind":"TrustBundle","apiVersion":"trustbundle.pinniped.dev/v1","certificateAuthorityData":"eA=="}`},
		"no base64":          {response: `{"kind":"TrustBundle","apiVersion":"trustbundle.pinniped.dev/v1","certificateAuthorityData":"%"}`, none: true},
		"a key in the place": {response: `{"kind":"TrustBundle","apiVersion":"trustbundle.pinniped.dev/v1","certificateAuthorityData":"LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCmVBPT0KLS0tLS1FTkQgUFJJVkFURSBLRVktLS0tLQo="}`},
	} {
		got, err := trustbundle.Decode(strings.NewReader(test.response))
		if err == nil || got != nil || errors.Is(err, trustbundle.ErrNoDocument) != test.none {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// FuzzDecode decodes arbitrary bytes. An accepted bundle is empty or contains only certificates, and encodes to the
// same document.
func FuzzDecode(f *testing.F) {
	good, err := trustbundle.Encode(bundle(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"apiVersion":"trustbundle.pinniped.dev/v1","kind":"TrustBundle","certificateAuthorityData":""} `))
	f.Fuzz(func(t *testing.T, response []byte) {
		got, err := trustbundle.Decode(bytes.NewReader(response))
		if err != nil {
			return
		}
		if members, _ := certs.ParseBundle(got); len(got) > 0 && len(members) == 0 {
			t.Errorf("accepted %q", got)
		}
		again, err := trustbundle.Encode(got)
		if err != nil {
			t.Fatal(err)
		}
		if twice, err := trustbundle.Decode(bytes.NewReader(again)); err != nil || !bytes.Equal(twice, got) {
			t.Errorf("decoded again: %q, %v", twice, err)
		}
	})
}

package handover_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/handover"
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
		document, err := handover.Encode(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := handover.Decode(bytes.NewReader(document))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("of %q: %q, %v", want, got, err)
		}
	}
	if _, err := handover.Encode(make([]byte, handover.MaxSize)); err == nil {
		t.Error("a bundle that is too large can be encoded")
	}
}

func TestOtherAnswers(t *testing.T) {
	t.Parallel()
	good, err := handover.Encode(bundle(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		answer string
		none   bool
	}{
		"a page":             {answer: "<html>log in</html>", none: true},
		"nothing":            {none: true},
		"a status":           {answer: `{"kind":"Status","apiVersion":"v1","code":404}`, none: true},
		"a long answer":      {answer: `{"kind":"` + strings.Repeat("x", handover.MaxSize) + `"}`, none: true},
		"nesting":            {answer: strings.Repeat("[", 100000), none: true},
		"another version":    {answer: strings.Replace(string(good), "dev/v1", "dev/v2", 1)},
		"no bundle":          {answer: `{"kind":"AdvertisedCABundle","apiVersion":"handover.pinniped.dev/v1"}`},
		"null":               {answer: `{"kind":"AdvertisedCABundle","apiVersion":"handover.pinniped.dev/v1","certificateAuthorityData":null}`},
		"two":                {answer: string(good) + string(good)},
		"no PEM":             {answer: `{"kind":"AdvertisedCABundle","apiVersion":"handover.pinniped.dev/v1","certificateAuthorityData":"eA=="}`},
		"no base64":          {answer: `{"kind":"AdvertisedCABundle","apiVersion":"handover.pinniped.dev/v1","certificateAuthorityData":"%"}`, none: true},
		"a key in the place": {answer: `{"kind":"AdvertisedCABundle","apiVersion":"handover.pinniped.dev/v1","certificateAuthorityData":"LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCmVBPT0KLS0tLS1FTkQgUFJJVkFURSBLRVktLS0tLQo="}`},
	} {
		got, err := handover.Decode(strings.NewReader(test.answer))
		if err == nil || got != nil || errors.Is(err, handover.ErrNoDocument) != test.none {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// FuzzDecode decodes anything. What is accepted is nothing, or certificates, and encodes to the same again.
func FuzzDecode(f *testing.F) {
	good, err := handover.Encode(bundle(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"apiVersion":"handover.pinniped.dev/v1","kind":"AdvertisedCABundle","certificateAuthorityData":""} `))
	f.Fuzz(func(t *testing.T, answer []byte) {
		got, err := handover.Decode(bytes.NewReader(answer))
		if err != nil {
			return
		}
		if members, _ := certs.ParseBundle(got); len(got) > 0 && len(members) == 0 {
			t.Errorf("accepted %q", got)
		}
		again, err := handover.Encode(got)
		if err != nil {
			t.Fatal(err)
		}
		if twice, err := handover.Decode(bytes.NewReader(again)); err != nil || !bytes.Equal(twice, got) {
			t.Errorf("decoded again: %q, %v", twice, err)
		}
	})
}

package impersonator

import (
	"strings"
	"testing"

	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
)

func TestTrustChangesOnlyWhenSomethingChanged(t *testing.T) {
	t.Parallel()
	logger, _ := ktesting.NewTestContext(t)
	bundle := &CABundle{PEM: newCA(t, "one").CertPEM()}
	store := newTrustStore(func() *CABundle { return bundle }, clock.RealClock{}, logger)
	data := map[string]string{"client-ca-file": string(newCA(t, "cluster").CertPEM())}
	first := store.current()
	if store.current() != first {
		t.Error("want one generation while nothing changes")
	}
	bundle = &CABundle{PEM: bundle.PEM}
	if store.current() != first {
		t.Error("want the same generation for the same certificates")
	}
	if err := store.setCluster(data); err != nil {
		t.Fatal(err)
	}
	second := store.current()
	if second == first {
		t.Error("want another generation for another cluster CA")
	}
	if err := store.setCluster(map[string]string{"client-ca-file": data["client-ca-file"]}); err != nil {
		t.Fatal(err)
	}
	if store.current() != second {
		t.Error("want the same generation for the same ConfigMap")
	}
	if err := store.setCluster(map[string]string{"client-ca-file": "broken"}); err == nil {
		t.Error("want an error for a broken CA bundle")
	}
	if store.current() != second {
		t.Error("want the last good CA bundle kept")
	}
	if err := store.setCluster(map[string]string{}); err != nil {
		t.Fatal(err)
	}
	if store.current() == second {
		t.Error("want a CA that is gone no longer trusted")
	}
}

// TestTrustOfBeforeDoesNotComeBack has the signer CA change after one request has looked at it, and another request be
// served with the new one before the first goes on.
func TestTrustOfBeforeDoesNotComeBack(t *testing.T) {
	t.Parallel()
	logger, _ := ktesting.NewTestContext(t)
	before, after := &CABundle{PEM: newCA(t, "before").CertPEM()}, &CABundle{PEM: newCA(t, "after").CertPEM()}
	var store *trustStore
	var others *trust
	looked := false
	store = newTrustStore(func() *CABundle {
		if looked {
			return after
		}
		looked = true
		others = store.current()
		return before
	}, clock.RealClock{}, logger)
	if got := store.current(); got != others {
		t.Error("want the request to find what was made meanwhile")
	}
	if store.current() != others {
		t.Error("want one generation, as nothing changes any more")
	}
}

func TestFrontProxySettingsAreAllOrNothing(t *testing.T) {
	t.Parallel()
	ca := string(newCA(t, "front").CertPEM())
	last, err := parseClusterTrust(map[string]string{
		"requestheader-client-ca-file":   ca,
		"requestheader-allowed-names":    `["a"]`,
		"requestheader-username-headers": `["X-Remote-User"]`,
	}, &clusterTrust{})
	if err != nil {
		t.Fatal(err)
	}
	next, err := parseClusterTrust(map[string]string{
		"requestheader-client-ca-file": string(newCA(t, "other").CertPEM()), "requestheader-allowed-names": `[`,
	}, last)
	if err == nil || string(next.frontProxyCA) != ca || len(next.allowedNames) != 1 || len(next.headers.usernames) != 1 {
		t.Errorf("want an error and the last settings as a whole, got %v, %+v", err, next)
	}
}

func FuzzParseBundle(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		certificates, err := parseBundle(data)
		if (err == nil) == (len(certificates) == 0) {
			t.Errorf("want certificates or an error, got %d and %v", len(certificates), err)
		}
	})
}

func TestParseBundleLimits(t *testing.T) {
	t.Parallel()
	_, err := parseBundle([]byte(strings.Repeat("x", maxBundleBytes+1)))
	if err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("want too many bytes refused, got %v", err)
	}
	one := string(newCA(t, "ca").CertPEM())
	if got, err := parseBundle([]byte("some text\n" + one + "more text\n" + one)); err != nil || len(got) != 2 {
		t.Errorf("want two certificates, got %d, %v", len(got), err)
	}
}

func FuzzCheckPath(f *testing.F) {
	for _, seed := range []string{"/api/v1/pods", "/a/../b", "/%2e%2e/", "//", "/a%2fb", "/api/v1/nodes/n/proxy/x//y"} {
		f.Add(seed, 0)
		f.Add(seed, 5)
	}
	f.Fuzz(func(t *testing.T, path string, kubernetes int) {
		if checkPath(path, kubernetes) != nil {
			return
		}
		for _, bad := range []string{"/../", "/./", "/%2e%2e/", "/%2E%2E/", "/.%2e/"} {
			if strings.Contains(path+"/", bad) {
				t.Errorf("path %q was let through", path)
			}
		}
		if kubernetes == 0 && (strings.Contains(path, "//") || strings.Contains(strings.ToLower(path), "%2f")) {
			t.Errorf("path %q was let through", path)
		}
	})
}

package relay

import (
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
)

func TestReadVersion(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"v1.21.14": false, "v1.9.0": false, "v1.21.5-eks-bc4871b": false, "v1.22.0": true, "v1.36.3+k3s1": true, "v2.0.0": true, "v0.0.0-master+$Format:%H$": true,
	} {
		if got, err := readVersion([]byte(`{"gitVersion":"` + text + `"}`)); err != nil || got != want {
			t.Errorf("%s: want %t, got %t, %v", text, want, got, err)
		}
	}
	for _, text := range []string{"", "{}", "[]", `{"gitVersion":"master"}`} {
		if _, err := readVersion([]byte(text)); err == nil {
			t.Errorf("%q: want an error", text)
		}
	}
}

func TestSameUser(t *testing.T) {
	t.Parallel()
	one := &user.DefaultInfo{Name: "jane", UID: "1", Groups: nil, Extra: map[string][]string{}}
	if !sameUser(one, &user.DefaultInfo{Name: "jane", UID: "1", Groups: []string{}}) {
		t.Error("want no groups and no extras to be the same, however they are written")
	}
	if sameUser(one, &user.DefaultInfo{Name: "jane", UID: "1", Groups: []string{""}}) {
		t.Error("want an empty group to be another user")
	}
}

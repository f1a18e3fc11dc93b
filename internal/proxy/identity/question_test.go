package identity

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// TestQuestionKeys changes a question in every way that makes it another one.
func TestQuestionKeys(t *testing.T) {
	t.Parallel()
	ask := func(change func(*authorizer.AttributesRecord, *user.DefaultInfo)) *question {
		who := &user.DefaultInfo{Name: "jane", UID: "u", Groups: []string{"a"}, Extra: map[string][]string{"k": {"v"}}}
		about := &authorizer.AttributesRecord{
			User: who, Verb: "get", APIGroup: "g", APIVersion: "v1", Resource: "things", Subresource: "status", Namespace: "d",
			Name: "x", ResourceRequest: true,
		}
		change(about, who)
		q, err := newQuestion(about)
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	type record = authorizer.AttributesRecord
	type info = user.DefaultInfo
	same := ask(func(*record, *info) {})
	for name, change := range map[string]func(*record, *info){
		"user":        func(_ *record, u *info) { u.Name = "joe" },
		"uid":         func(_ *record, u *info) { u.UID = "" },
		"groups":      func(_ *record, u *info) { u.Groups = append(u.Groups, "b") },
		"extra":       func(_ *record, u *info) { u.Extra = nil },
		"verb":        func(a *record, _ *info) { a.Verb = "delete" },
		"group":       func(a *record, _ *info) { a.APIGroup = "" },
		"version":     func(a *record, _ *info) { a.APIVersion = "v2" },
		"resource":    func(a *record, _ *info) { a.Resource = "others" },
		"subresource": func(a *record, _ *info) { a.Subresource = "" },
		"path":        func(a *record, _ *info) { a.ResourceRequest, a.Path = false, "/d/x" },
	} {
		other := ask(change)
		if shareKeys(other, same) {
			t.Errorf("another %s: want all keys different", name)
		}
	}
	parts := map[questionKey]string{same.keys[0]: "none", same.keys[1]: "all names", same.keys[2]: "everywhere"}
	if len(parts) != 3 {
		t.Errorf("want three keys, got %v", parts)
	}
	for name, change := range map[string]func(*record, *info){
		"name": func(a *record, _ *info) { a.Name = "y" },
		"selector": func(a *record, _ *info) {
			a.FieldSelectorRequirements = fields.OneTermEqualSelector("metadata.name", "x").Requirements()
		},
		"selector and no name": func(a *record, _ *info) {
			a.Name, a.FieldSelectorRequirements = "", fields.OneTermEqualSelector("metadata.name", "x").Requirements()
		},
	} {
		other := ask(change)
		if before, known := parts[other.keys[0]]; known || !slices.Equal(other.keys[1:], same.keys[1:]) {
			t.Errorf("another %s: want the wider keys only to be the same, got the key of %q", name, before)
		}
		parts[other.keys[0]] = name
	}
	elsewhere := ask(func(a *record, _ *info) { a.Namespace = "e" })
	if elsewhere.keys[1] == same.keys[1] || elsewhere.keys[2] != same.keys[2] {
		t.Error("want another namespace to be a part of the same widest question")
	}
	for name, test := range map[string]struct {
		change func(*record, *info)
		want   []questionKey
	}{
		"all names":  {func(a *record, _ *info) { a.Name = "" }, same.keys[1:]},
		"everywhere": {func(a *record, _ *info) { a.Name, a.Namespace = "", "" }, same.keys[2:]},
	} {
		if got := ask(test.change); !slices.Equal(got.keys, test.want) {
			t.Errorf("%s: want the key of the wider question", name)
		}
	}
}

func shareKeys(a, b *question) bool {
	return slices.ContainsFunc(a.keys, func(key questionKey) bool { return slices.Contains(b.keys, key) })
}

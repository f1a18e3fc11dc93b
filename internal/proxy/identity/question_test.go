package identity

import (
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
		if other.key == same.key || other.allNames == same.allNames || other.everywhere == same.everywhere {
			t.Errorf("another %s: want all keys different", name)
		}
	}
	parts := map[questionKey]string{same.key: "none", same.allNames: "all names", same.everywhere: "everywhere"}
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
		if before, known := parts[other.key]; known || other.allNames != same.allNames ||
			other.everywhere != same.everywhere {
			t.Errorf("another %s: want the wider keys only to be the same, got the key of %q", name, before)
		}
		parts[other.key] = name
	}
	elsewhere := ask(func(a *record, _ *info) { a.Namespace = "e" })
	if elsewhere.allNames == same.allNames || elsewhere.everywhere != same.everywhere {
		t.Error("want another namespace to be a part of the same widest question")
	}
	for name, change := range map[string]struct {
		to   func(*record, *info)
		want func(*question) questionKey
	}{
		"all names":  {func(a *record, _ *info) { a.Name = "" }, func(q *question) questionKey { return q.allNames }},
		"everywhere": {func(a *record, _ *info) { a.Name, a.Namespace = "", "" }, func(q *question) questionKey { return q.everywhere }},
	} {
		if got := ask(change.to); got.key != change.want(same) {
			t.Errorf("%s: want the key of the wider question", name)
		}
	}
}

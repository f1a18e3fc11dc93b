package authenticator

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
)

func TestCheckUser(t *testing.T) {
	t.Parallel()
	groups := func(names ...string) user.DefaultInfo { return user.DefaultInfo{Name: "ann", Groups: names} }
	extra := func(key string, values ...string) user.DefaultInfo {
		return user.DefaultInfo{Name: "ann", Extra: map[string][]string{key: values}}
	}
	for _, test := range []struct {
		name string
		user user.DefaultInfo
		err  string // "" for none
	}{
		{"takes a plain user", groups("a b", "ü", "x:system:masters"), ""},
		{"takes extras", extra("example.com/x", "a=b", ""), ""},
		{"takes the credential's id", extra("authentication.kubernetes.io/credential-id", "x"), ""},
		{"refuses nobody", user.DefaultInfo{Groups: []string{"a"}}, "empty username"},
		{
			"takes names of many scripts",
			user.DefaultInfo{Name: "Zoë Müller", Groups: []string{"системa", "συστημα", "系统:管理员", "system", "systematic"}},
			"",
		},
		{"takes a thousand groups", groups(slices.Repeat([]string{strings.Repeat("g", 60)}, 1000)...), ""},
		{
			"refuses a megabyte of groups",
			groups(slices.Repeat([]string{strings.Repeat("g", 100)}, 10000)...),
			"10000 groups",
		},
		{"refuses very many small groups", groups(slices.Repeat([]string{"g"}, 5000)...), "5000 groups"},
		{"refuses a megabyte of extras", extra("example.com/x", strings.Repeat("x", 1<<20)), "the limit is 81920"},
		{"refuses Cyrillic look-alikes", groups("ѕуѕtеm:masters"), "reserved"},
		{"refuses wide letters", groups("ｓｙｓｔｅｍ：masters"), "reserved"},
		{"refuses a colon of another kind", groups("system∶masters"), "reserved"},
		{"refuses mathematical letters", user.DefaultInfo{Name: "𝐬𝐲𝐬𝐭𝐞𝐦:admin"}, "reserved"},
		{"refuses a long s", user.DefaultInfo{Name: "ſyſtem:admin"}, "reserved"},
		{"refuses a space other than before it", user.DefaultInfo{Name: "\u00a0\u3000system:admin"}, "reserved"},
		{"refuses what has no width", groups("\u200bsystem:masters"), "invisible"},
		{"refuses a change of direction", user.DefaultInfo{Name: "ann\u202enimda"}, "invisible"},
		{"refuses an administrator", user.DefaultInfo{Name: "system:admin"}, `the username begins with "system:"`},
		{"refuses a service account", user.DefaultInfo{Name: "system:serviceaccount:kube-system:x"}, "reserved"},
		{"refuses the masters", groups("a", "system:masters"), `group number 2 begins with "system:"`},
		{"refuses nodes", groups("system:nodes"), "reserved"},
		{"refuses them in other dress", groups(" System:masters"), "reserved"},
		{"refuses an empty group", groups("a", ""), "group number 2 is empty"},
		{"refuses a blank name", user.DefaultInfo{Name: " "}, "the username begins or ends with a space"},
		{"refuses a space at the beginning", user.DefaultInfo{Name: " ann"}, "the username begins or ends with a space"},
		{"refuses a space at the end of a group", groups("dev "), "group number 1 begins or ends with a space"},
		{"refuses a space that does not break", user.DefaultInfo{Name: "ann\u00a0smith"}, "a space other than"},
		{"refuses it in a group", groups("\u00a0"), "a space other than"},
		{"refuses letters that show nothing", user.DefaultInfo{Name: "ann\u3164"}, "invisible"},
		{"refuses a UID that headers change", user.DefaultInfo{Name: "ann", UID: " 1"}, "the UID begins or ends with a space"},
		{"refuses an extra that headers change", extra("example.com/x", "a "), "begins or ends with a space"},
		{"refuses an extra of the proxy's own", extra("example.com/x"+ReservedExtraSuffix, "a"), "is reserved for the agent"},
		{"refuses a line break", user.DefaultInfo{Name: "ann\r\nImpersonate-Group: x"}, "control character"},
		{"refuses NUL", groups("a\x00b"), "control character"},
		{"refuses broken UTF-8", user.DefaultInfo{Name: "ann\xff"}, "UTF-8"},
		{"refuses a line break in an extra", extra("example.com/x", "a\nb"), "control character"},
		{"refuses an extra without a domain", extra("x", "a"), "extra key"},
		{"refuses an extra without a name", extra("", "a"), "extra key"},
		{"refuses an extra of Kubernetes", extra("kubernetes.io/x", "a"), "reserved"},
		{"refuses an extra of a domain below", extra("a.k8s.io/x", "a"), "reserved"},
		{"refuses an extra that the agent sets", extra("concierge.pinniped.dev/Authenticator", "a"), "for the agent"},
		{"refuses an equals sign", extra("example.com/a=b", "a"), "equals sign"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := CheckUser(&test.user)
			if (test.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("want %q, got %v", test.err, err)
			}
		})
	}
}

package kubeconfig

import "testing"

// TestComments replaces an entry with comments: the comments of lines that stay are kept.
func TestComments(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ before, item, want string }{
		"above, behind and below": {
			before: "- cluster: # ours\n    # the proxy of the office\n    # (ask Ann)\n    proxy-url: http://a\n" +
				"    server: https://old # the new address\n    # no more\n  name: c # a name\n",
			item: "- cluster:\n    certificate-authority-data: AA==\n    proxy-url: http://a\n    server: https://new\n  name: c\n",
			want: "- cluster: # ours\n    certificate-authority-data: AA==\n    # the proxy of the office\n    # (ask Ann)\n    proxy-url: http://a\n" +
				"    server: https://new # the new address\n    # no more\n  name: c # a name\n",
		},
		"of an argument": {
			before: "- name: u\n  user:\n    exec:\n      args:\n      - login\n      # on the shared disk\n      - --credential-cache=/x\n" +
				"      - --gone # gone\n      - --concierge-endpoint=https://old # here\n",
			item: "- name: u\n  user:\n    exec:\n      args:\n      - login\n      - --concierge-endpoint=https://new\n      - --credential-cache=/x\n",
			want: "- name: u\n  user:\n    exec:\n      args:\n      - login\n      - --concierge-endpoint=https://new # here\n" +
				"      # on the shared disk\n      - --credential-cache=/x\n",
		},
		"in an indented list, with the line ends of Windows": {
			before: "  - context:\r\n      # mine\r\n      cluster: c\r\n    name: x\r\n",
			item:   "- context:\n    cluster: d\n  name: x\n",
			want:   "- context:\n    # mine\n    cluster: d\n  name: x\n",
		},
		"none": {before: "- name: x\n", item: "- name: y\n", want: "- name: y\n"},
		"of a line that is gone": {
			before: "- cluster:\n    # old\n    insecure-skip-tls-verify: true\n    server: a\n", item: "- cluster:\n    server: a\n",
			want: "- cluster:\n    server: a\n",
		},
		"a hash that is no comment": {
			before: "- name: 'a # b'\n", item: "- name: 'a # b'\n  x: c\n", want: "- name: 'a # b'\n  x: c\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := withComments(test.item, []byte(test.before)); got != test.want {
				t.Errorf("want\n%s\ngot\n%s", test.want, got)
			}
		})
	}
}

package agent

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// LimitsConfig says what clients of the impersonation proxy may hold. Values are quantities of Kubernetes, such as
// 500 or 64Mi; 0 is no bound.
type LimitsConfig struct {
	Connections SharesConfig `json:"connections" mapstructure:"connections"`
	Requests    SharesConfig `json:"requests" mapstructure:"requests"`
	Streams     SharesConfig `json:"streams" mapstructure:"streams"`
	Bytes       SharesConfig `json:"bytes" mapstructure:"bytes"`
	Resets      SharesConfig `json:"resets" mapstructure:"resets"`
	Reviews     SharesConfig `json:"reviews" mapstructure:"reviews"`
	Unread      SharesConfig `json:"unread" mapstructure:"unread"`
}

// SharesConfig bounds one resource: for all clients together, for one address, for one user, and for all clients
// without a user.
type SharesConfig struct {
	Total           string `json:"total,omitempty" mapstructure:"total"`
	PerAddress      string `json:"perAddress" mapstructure:"perAddress"`
	PerUser         string `json:"perUser" mapstructure:"perUser"`
	Unauthenticated string `json:"unauthenticated" mapstructure:"unauthenticated"`
}

// limitTexts describe the resources in the help texts of the flags.
var limitTexts = [budget.NumResources]string{
	budget.Connections: "open connections",
	budget.Requests:    "requests at a time",
	budget.Streams:     "watches, logs and upgraded connections at a time",
	budget.Bytes:       "bytes in memory",
	budget.Resets:      "streams reset before their answer, and refusals of clients without a user, more than other requests, in a minute",
	budget.Reviews:     "TokenReviews and SubjectAccessReviews at a time",
	budget.Unread: "answers that the client has not read for a second: those that are too large to be held here, " +
		"and watches that still begin with all objects",
}

var shareTexts = [budget.NumShares]struct{ flag, usage string }{
	budget.Total:           {"total", "of all clients together"},
	budget.PerAddress:      {"per-address", "of the clients of one address"},
	budget.PerUser:         {"per-user", "of one user"},
	budget.Unauthenticated: {"unauthenticated", "of all clients without a user together"},
}

// limitKnobs returns the knobs for all bounds that the proxy knows.
func limitKnobs() []knob {
	var all []knob
	for r, limits := range budget.Defaults() {
		for s, limit := range limits {
			if !hasLimit(budget.Resource(r), budget.Share(s)) {
				continue
			}
			name := budget.Resource(r).String()
			all = append(all, knob{
				key:   "limits." + name + "." + budget.Share(s).String(),
				flag:  "limit-" + name + "-" + shareTexts[s].flag,
				usage: "how many " + limitTexts[r] + " " + shareTexts[s].usage + " the proxy holds at most; 0 is no bound",
				value: quantity(limit),
			})
		}
	}
	return all
}

// hasLimit is false for the resets of all clients together: closing connections of all of them helps no one.
func hasLimit(r budget.Resource, s budget.Share) bool { return r != budget.Resets || s != budget.Total }

func quantity(n int64) string {
	if n > 0 && n%(1<<20) == 0 {
		return strconv.FormatInt(n>>20, 10) + "Mi"
	}
	return strconv.FormatInt(n, 10)
}

// shares returns the configuration in the order of the budget.
func (c *LimitsConfig) shares() [budget.NumResources]SharesConfig {
	return [budget.NumResources]SharesConfig{
		budget.Connections: c.Connections, budget.Requests: c.Requests, budget.Streams: c.Streams,
		budget.Bytes: c.Bytes, budget.Resets: c.Resets, budget.Reviews: c.Reviews, budget.Unread: c.Unread,
	}
}

// limits returns the bounds, or an error that names every value that is none.
func (c *LimitsConfig) limits() (budget.Limits, error) {
	var limits budget.Limits
	var problems []error
	for r, shares := range c.shares() {
		for s, text := range [budget.NumShares]string{
			budget.Total: shares.Total, budget.PerAddress: shares.PerAddress,
			budget.PerUser: shares.PerUser, budget.Unauthenticated: shares.Unauthenticated,
		} {
			if !hasLimit(budget.Resource(r), budget.Share(s)) {
				continue
			}
			parsed, err := resource.ParseQuantity(text)
			n, whole := parsed.AsInt64()
			if err != nil || !whole || n < 0 {
				problems = append(problems, fmt.Errorf("limits.%s.%s is %q: write a number such as 500, or 64Mi; 0 is no bound",
					budget.Resource(r), budget.Share(s), text))
				continue
			}
			limits[r][s] = n
		}
		if total := limits[r][budget.Total]; total > 0 {
			for s := budget.PerAddress; s < budget.NumShares; s++ {
				if limits[r][s] > total {
					problems = append(problems, fmt.Errorf("limits.%s.%s is %d: that is more than limits.%s.total, which is %d",
						budget.Resource(r), s, limits[r][s], budget.Resource(r), total))
				}
			}
		}
	}
	return limits, errors.Join(problems...)
}

// limitsTable is the table of bounds in docs/reference/agent.md.
func limitsTable() string {
	var table strings.Builder
	table.WriteString(
		"| key | `total` | `perAddress` | `perUser` | `unauthenticated` | what |\n|---|---|---|---|---|---|\n",
	)
	for r, limits := range budget.Defaults() {
		fmt.Fprintf(&table, "| `limits.%s` |", budget.Resource(r))
		for s, limit := range limits {
			if hasLimit(budget.Resource(r), budget.Share(s)) {
				fmt.Fprintf(&table, " %s |", quantity(limit))
			} else {
				table.WriteString(" |")
			}
		}
		fmt.Fprintf(&table, " %s |\n", limitTexts[r])
	}
	return table.String()
}

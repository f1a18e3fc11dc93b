package main

import "fmt"

// model says how many cores a load takes: cores = a·requests/s + b·execs/s + c·bytes/s.
type model struct {
	Request float64 `json:"coreSecondsPerRequest"`
	Exec    float64 `json:"coreSecondsPerExec"`
	Byte    float64 `json:"coreSecondsPerByte"`
}

// published is what Teleport says of its proxy.
func published() model { return model{Request: 0.0017, Exec: 0.006, Byte: 1.35e-8} }

func (m model) String() string {
	return fmt.Sprintf("cores = %.3g·requests/s + %.3g·execs/s + %.3g·bytes/s", m.Request, m.Exec, m.Byte)
}

// costModel takes a from get, b from exec, and c from what a list that is not compressed costs above
// a get. Nil when one of the three was
// not measured.
func costModel(results []requestResult) *model {
	found := map[string]wayResult{}
	for _, result := range results {
		found[result.Name] = result.Ways[proxied]
	}
	get, list, exec := found["get"], found["list-plain"], found["exec"]
	bytes := list.Bytes.Median - get.Bytes.Median
	if get.Rate.Median == 0 || list.Rate.Median == 0 || exec.Rate.Median == 0 || bytes <= 0 {
		return nil
	}
	const micro = 1e-6
	return &model{
		Request: get.ProxyCPU.Median * micro,
		Exec:    exec.ProxyCPU.Median * micro,
		Byte:    max(0, list.ProxyCPU.Median-get.ProxyCPU.Median) * micro / bytes,
	}
}

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// shapeVersion is that of the JSON form of a report. It grows when a program that reads an older one would
// misunderstand a newer one.
const shapeVersion = 2

// report is what a run gave. Its JSON form is for programs that compare runs.
type report struct {
	Version  int             `json:"version"`
	Date     time.Time       `json:"date"`
	Agent    string          `json:"agent"` // its version, which names the commit
	Machine  machine         `json:"machine"`
	Network  string          `json:"network"`
	Preset   string          `json:"preset"`
	Rounds   int             `json:"rounds"`
	Seconds  float64         `json:"seconds"`
	Requests []requestResult `json:"requests,omitempty"`
	Figures  []figureResult  `json:"figures,omitempty"`
	Model    *model          `json:"model,omitempty"`
}

type machine struct {
	Processor string `json:"processor"`
	Cores     int    `json:"cores"`
	Platform  string `json:"platform"`
	Go        string `json:"go"`
}

// spread is the median over the rounds, with the value of each.
type spread struct {
	Median float64   `json:"median"`
	Rounds []float64 `json:"rounds"`
}

func spreadOf(rounds []float64) spread { return spread{Median: median(rounds), Rounds: rounds} }

func (s spread) least() float64    { return slices.Min(s.Rounds) }
func (s spread) greatest() float64 { return slices.Max(s.Rounds) }

// wayResult is what one way gave. The processor times are those of a request: of the agent on that way, and of the API
// server.
type wayResult struct {
	Rate         spread `json:"requestsPerSecond"`
	P50          spread `json:"p50Milliseconds"`
	P99          spread `json:"p99Milliseconds"`
	ProxyCPU     spread `json:"proxyCPUMicroseconds"`
	APIServerCPU spread `json:"apiServerCPUMicroseconds"`
	Bytes        spread `json:"answerBytes"` // as they were sent
}

// comparison is what a proxied way is beside the direct one. Each round is a pair measured one after the other, so
// what disturbs both cancels out.
type comparison struct {
	Ratio        spread `json:"ratio"`        // of requests per second
	AddedLatency spread `json:"addedLatency"` // as a share of the direct request's p50
	Quotient     spread `json:"cpuQuotient"`  // proxy's CPU ÷ the API server's own for the same request sent directly
}

type requestResult struct {
	Name     string                `json:"name"`
	Ways     map[string]wayResult  `json:"ways"`
	Compared map[string]comparison `json:"compared"` // by way, with direct
	Goals    []goal                `json:"goals,omitempty"`
	aims     goals
}

// goal is one aim of a load, and whether it was met in this run.
type goal struct {
	Of  string  `json:"of"`
	Aim string  `json:"aim"`
	Met bool    `json:"met"`
	Got float64 `json:"got"`
}

// figure is one number that is no rate of requests.
type figure struct {
	name, unit string
	value      float64
	atMost     float64 // zero is no goal
	atLeast    float64
	goal       bool // atMost counts even if it is zero
	rounds     []float64
}

type figureResult struct {
	Load  string  `json:"load"`
	Way   string  `json:"way"`
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  *goal   `json:"goal,omitempty"`
	More  bool    `json:"moreIsBetter,omitempty"`
	// Rounds are the values of the rounds, if it was measured in several.
	Rounds []float64 `json:"rounds,omitempty"`
}

// values are those of the rounds, or the only one.
func (f figureResult) values() []float64 {
	if len(f.Rounds) > 0 {
		return f.Rounds
	}
	return []float64{f.Value}
}

func newReport(ctx context.Context, o *options) *report {
	return &report{
		Version: shapeVersion,
		Agent:   versionOf(ctx, o.Agent),
		Date:    time.Now().UTC().Truncate(time.Second),
		Preset:  o.Preset,
		Rounds:  o.Rounds,
		Seconds: o.Seconds,
		Machine: machine{
			Processor: processorName(),
			Cores:     runtime.NumCPU(),
			Platform:  runtime.GOOS + "/" + runtime.GOARCH,
			Go:        runtime.Version(),
		},
	}
}

// versionOf is what a program says of itself: the tag or the commit that it was built from.
func versionOf(ctx context.Context, program string) string {
	said, err := exec.CommandContext(ctx, program, "version").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(said))
}

func processorName() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer file.Close() //nolint:errcheck // it was only read
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, value, found := strings.Cut(lines.Text(), ":"); found && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func summarize(way string, samples []sample) wayResult {
	var rate, p50, p99, proxy, apiServer, bytes []float64
	for _, s := range samples {
		latencies := milliseconds(s.latencies)
		rate = append(rate, s.rate())
		p50, p99 = append(p50, quantile(latencies, 0.5)), append(p99, quantile(latencies, 0.99))
		used := s.cpu.proxy
		if way == other {
			used = s.cpu.other
		}
		proxy = append(proxy, microseconds(s.each(used)))
		apiServer = append(apiServer, microseconds(s.each(s.cpu.apiServer)))
		bytes = append(bytes, float64(s.bytes)/float64(max(1, s.requests)))
	}
	return wayResult{
		Rate: spreadOf(rate), P50: spreadOf(p50), P99: spreadOf(p99),
		ProxyCPU: spreadOf(proxy), APIServerCPU: spreadOf(apiServer), Bytes: spreadOf(bytes),
	}
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func compare(before, after wayResult) comparison {
	var ratio, added, quotient []float64
	for i, rate := range after.Rate.Rounds {
		ratio = append(ratio, rate/before.Rate.Rounds[i])
		added = append(added, after.P50.Rounds[i]/before.P50.Rounds[i]-1)
		// A short round may be over before the clock of processor time has ticked.
		if server := before.APIServerCPU.Rounds[i]; server > 0 {
			quotient = append(quotient, after.ProxyCPU.Rounds[i]/server)
		}
	}
	return comparison{Ratio: spreadOf(ratio), AddedLatency: spreadOf(added), Quotient: spreadOf(quotient)}
}

func (r *report) addRequests(name string, aims goals, samples map[string][]sample) {
	result := requestResult{Name: name, Ways: map[string]wayResult{}, Compared: map[string]comparison{}, aims: aims}
	for way, some := range samples {
		result.Ways[way] = summarize(way, some)
	}
	for way, one := range result.Ways {
		if way != direct {
			result.Compared[way] = compare(result.Ways[direct], one)
		}
	}
	r.Requests = append(r.Requests, result)
}

// judge says which of a load's goals were met. get is what a direct get cost the API server, zero if that was not
// measured.
func (l *requestResult) judge(get float64) {
	ours := l.Compared[proxied]
	if aim := l.aims.ratio; aim > 0 {
		got := ours.Ratio.Median
		l.Goals = append(l.Goals, goal{Of: "ratio", Aim: fmt.Sprintf("≥ %.2f", aim), Met: got >= aim, Got: got})
	}
	if aim := l.aims.addedLatency; aim > 0 {
		got := ours.AddedLatency.Median
		l.Goals = append(l.Goals, goal{Of: "added latency", Aim: fmt.Sprintf("≤ %.2f", aim), Met: got <= aim, Got: got})
	}
	if aim := l.aims.cpu * get; aim > 0 {
		got := l.Ways[proxied].ProxyCPU.Median
		l.Goals = append(l.Goals, goal{Of: "CPU", Aim: fmt.Sprintf("≤ %.0f µs", aim), Met: got <= aim, Got: got})
	}
}

func (r *report) addFigure(load, way string, f figure) {
	result := figureResult{
		Load: load, Way: way, Name: f.name, Value: f.value, Unit: f.unit, More: f.atLeast > 0, Rounds: f.rounds,
	}
	if f.atMost > 0 || f.goal {
		result.Goal = &goal{Of: f.name, Aim: "≤ " + digits(f.atMost), Met: f.value <= f.atMost, Got: f.value}
	}
	if f.atLeast > 0 {
		result.Goal = &goal{Of: f.name, Aim: "≥ " + digits(f.atLeast), Met: f.value >= f.atLeast, Got: f.value}
	}
	r.Figures = append(r.Figures, result)
}

// finish works out what needs several loads.
func (r *report) finish() {
	r.Model = costModel(r.Requests)
	var get float64
	for _, l := range r.Requests {
		if l.Name == "get" {
			get = l.Ways[direct].APIServerCPU.Median
		}
	}
	for i := range r.Requests {
		r.Requests[i].judge(get)
	}
}

func (r *report) writeJSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(r)
}

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

// report is what a run gave. Its JSON form is for programs that compare runs.
type report struct {
	Date     time.Time       `json:"date"`
	Machine  machine         `json:"machine"`
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

// wayResult are medians over the rounds.
type wayResult struct {
	Rate         float64   `json:"requestsPerSecond"`
	Rates        []float64 `json:"rates"` // of each round
	P50          float64   `json:"p50Milliseconds"`
	P99          float64   `json:"p99Milliseconds"`
	ProxyCPU     float64   `json:"proxyCPUMicroseconds"`     // a request
	APIServerCPU float64   `json:"apiServerCPUMicroseconds"` // a request
	Bytes        float64   `json:"answerBytes"`
}

type requestResult struct {
	Name         string    `json:"name"`
	Direct       wayResult `json:"direct"`
	Proxied      wayResult `json:"proxied"`
	Ratio        float64   `json:"ratio"`
	AddedLatency float64   `json:"addedLatency"` // as a share of the direct request's
	Quotient     float64   `json:"cpuQuotient"`
	Goals        []goal    `json:"goals,omitempty"`
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
}

type figureResult struct {
	Load  string  `json:"load"`
	Way   string  `json:"way"`
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  *goal   `json:"goal,omitempty"`
}

func newReport(o *options) *report {
	return &report{
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

// summarize makes medians of a way's rounds.
func summarize(samples []sample) wayResult {
	var result wayResult
	var p50, p99, proxy, apiServer, bytes []float64
	for _, s := range samples {
		latencies := milliseconds(s.latencies)
		result.Rates = append(result.Rates, s.rate())
		p50, p99 = append(p50, quantile(latencies, 0.5)), append(p99, quantile(latencies, 0.99))
		proxy = append(proxy, microseconds(s.each(s.cpu.proxy)))
		apiServer = append(apiServer, microseconds(s.each(s.cpu.apiServer)))
		bytes = append(bytes, float64(s.bytes)/float64(max(1, s.requests)))
	}
	result.Rate, result.P50, result.P99 = median(result.Rates), median(p50), median(p99)
	result.ProxyCPU, result.APIServerCPU, result.Bytes = median(proxy), median(apiServer), median(bytes)
	return result
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func (r *report) addRequests(name string, aims goals, samples map[string][]sample) {
	result := requestResult{Name: name, Direct: summarize(samples[direct]), Proxied: summarize(samples[proxied])}
	// Each round is a pair measured one after the other; what disturbs both cancels out.
	var ratios []float64
	for i, rate := range result.Proxied.Rates {
		ratios = append(ratios, rate/result.Direct.Rates[i])
	}
	result.Ratio = median(ratios)
	result.AddedLatency = (result.Proxied.P50 - result.Direct.P50) / result.Direct.P50
	result.Quotient = result.Proxied.ProxyCPU / result.Direct.APIServerCPU
	if aims.ratio > 0 {
		result.Goals = append(
			result.Goals,
			goal{Of: "ratio", Aim: fmt.Sprintf("≥ %.2f", aims.ratio), Met: result.Ratio >= aims.ratio, Got: result.Ratio},
		)
	}
	if aims.addedLatency > 0 {
		result.Goals = append(
			result.Goals,
			goal{
				Of:  "added latency",
				Aim: fmt.Sprintf("≤ %.2f", aims.addedLatency),
				Met: result.AddedLatency <= aims.addedLatency,
				Got: result.AddedLatency,
			},
		)
	}
	if aims.quotient > 0 {
		result.Goals = append(
			result.Goals,
			goal{
				Of:  "CPU quotient",
				Aim: fmt.Sprintf("≤ %.2f", aims.quotient),
				Met: result.Quotient <= aims.quotient,
				Got: result.Quotient,
			},
		)
	}
	r.Requests = append(r.Requests, result)
}

func (r *report) addFigure(load, way string, f figure) {
	result := figureResult{Load: load, Way: way, Name: f.name, Value: f.value, Unit: f.unit}
	if f.atMost > 0 || f.goal {
		result.Goal = &goal{Of: f.name, Aim: "≤ " + digits(f.atMost), Met: f.value <= f.atMost, Got: f.value}
	}
	if f.atLeast > 0 {
		result.Goal = &goal{Of: f.name, Aim: "≥ " + digits(f.atLeast), Met: f.value >= f.atLeast, Got: f.value}
	}
	r.Figures = append(r.Figures, result)
}

// finish works out what needs several loads.
func (r *report) finish() { r.Model = costModel(r.Requests) }

func (r *report) writeJSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(r)
}

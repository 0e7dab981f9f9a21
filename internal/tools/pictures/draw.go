package main

import (
	"bytes"
	_ "embed" // the picture's form
	"fmt"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
)

// Where things are, in units of the picture.
const (
	left, right  = 46.0, 704.0 // of the plot
	floor        = 132.0       // where the curves are 0
	slot         = 3.2         // height of a slot
	markTop      = 30.0
	admittedTall = 20.0
	deniedTall   = 8.0
)

//go:embed picture.svg.tmpl
var form string

var page = template.Must(template.New("picture").Parse(form))

// view is what the form shows. Places along an axis are texts.
type view struct {
	Limit, About     string
	Arrivals, Sends  int
	MostSent         int64  // in one window
	Admitted, Denied string // paths of the ticks
	Used, Sent       string // paths of the curves
	Count            int64
	CountY           string
	Edges            []string // of windows
	Times            []mark
}

type mark struct{ X, Text string }

func draw(r run) ([]byte, error) {
	v := view{
		Limit: r.name, About: r.limit.Description().Picture, Arrivals: len(r.arrivals),
		Used: area(r.used), Sent: curve(r.sent), MostSent: slices.Max(r.sent),
		Count: r.limit.Count, CountY: number(y(r.limit.Count)),
	}
	for _, a := range r.arrivals {
		if a.admitted {
			v.Sends++
			v.Admitted += tick(a.at, admittedTall)
		} else {
			v.Denied += tick(a.at, deniedTall)
		}
	}
	for at := time.Duration(0); at <= length; at += r.limit.Window {
		if frees := r.limit.Description().Frees; frees == algorithm.AtBoundaries || frees == algorithm.ByEstimate { // windows of the clock
			v.Edges = append(v.Edges, number(x(at)))
		}
		v.Times = append(v.Times, mark{X: number(x(at)), Text: fmt.Sprintf("%d:00", int(at.Minutes()))})
	}
	var picture bytes.Buffer
	err := page.Execute(&picture, v)
	return picture.Bytes(), err
}

func x(at time.Duration) float64 { return left + (right-left)*float64(at)/float64(length) }
func y(slots int64) float64      { return floor - slot*float64(slots) }

func number(n float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0")
}

func tick(at time.Duration, tall float64) string {
	return fmt.Sprintf("M%s %sv-%s", number(x(at)), number(markTop+admittedTall), number(tall))
}

// curve is the line of values at each step.
func curve(values []int64) string {
	var path strings.Builder
	fmt.Fprintf(&path, "M%s %s", number(x(0)), number(y(values[0])))
	for i := 1; i < len(values); i++ {
		if values[i] != values[i-1] {
			fmt.Fprintf(&path, "H%sV%s", number(x(time.Duration(i)*step)), number(y(values[i])))
		}
	}
	fmt.Fprintf(&path, "H%s", number(right))
	return path.String()
}

// area is what lies below the line.
func area(values []int64) string {
	return curve(values) + fmt.Sprintf("V%sH%sZ", number(floor), number(left))
}

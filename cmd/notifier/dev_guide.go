//go:build !nodev

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/config"
)

// guide says what runs, and what there is to see and to do.
type guide struct {
	title  string
	limits []string
	places []place
}

// place is an address, and a command to try there.
type place struct {
	name, address string
	try           typed
}

// typed is a command line for another terminal: the settings that it needs, then the program with its arguments.
type typed struct {
	settings []string
	line     string
}

func (t typed) String() string { return strings.Join(append(slices.Clone(t.settings), t.line), " ") }

// rows is the command line in rows of a width, broken where a shell takes them for one line.
func (t typed) rows(width int) []string {
	if utf8.RuneCountInString(t.String()) <= width {
		return []string{t.String()}
	}
	const goesOn = ` \`
	var rows []string
	row := ""
	for _, word := range append(slices.Clone(t.settings), t.line) {
		longer := strings.TrimSpace(row + " " + word)
		if row != "" && utf8.RuneCountInString(longer+goesOn) > width {
			rows = append(rows, row+goesOn)
			longer = word
		}
		row = longer
	}
	return append(rows, row)
}

// guideIndent is the width of the names in a guide.
const guideIndent = "         "

// rows shows the guide in rows of a width. A row is longer than that only where a command needs it.
func (g guide) rows(width int, paint painter) []string {
	var rows []string
	add := func(name, text string) {
		rows = append(rows, paint.faint(fmt.Sprintf("%-*s", len(guideIndent), name))+text)
	}
	name := "limits"
	for _, text := range g.limits {
		add(name, text)
		name = ""
	}
	for _, p := range g.places {
		taken := len(guideIndent) + utf8.RuneCountInString(p.address) + len("  ")
		if command := p.try.String(); taken+utf8.RuneCountInString(command) <= width {
			add(p.name, p.address+"  "+paint.bold(command))
			continue
		}
		add(p.name, p.address)
		for _, row := range p.try.rows(width - len(guideIndent)) {
			add("", paint.bold(row))
		}
	}
	return rows
}

func (d *dev) guide(at addresses) guide {
	g := guide{title: "notifier dev", limits: d.limitTexts()}
	if d.storm > 0 {
		g.title += fmt.Sprintf(" --storm %d", d.storm)
	}
	g.places = []place{
		{"NATS", d.nats.address, d.typed(`publish payments "card declined"`, d.nats.assignment)},
		{"Redis", d.redis.address, d.typed("limits", d.nats.assignment, d.redis.assignment)},
	}
	if at.ingest != "" {
		g.places = append(g.places, place{"HTTP", at.ingest, typed{line: d.curl(at.ingest)}})
	}
	if at.admin != "" {
		address := "http://" + at.admin + "/metrics"
		note := ""
		if !d.settings.HTTP.AddrSet && at.admin != d.settings.HTTP.Addr {
			note = fmt.Sprintf(" (%s is taken)", d.settings.HTTP.Addr)
		}
		g.places = append(g.places, place{"metrics", address + note, typed{line: "curl -s " + address + " | grep notifier_dropped"}})
	}
	if at.page != "" {
		g.places = append(g.places, place{"page", "http://" + at.page + "/", typed{line: "the live page, for a browser"}})
	}
	return g
}

func (d *dev) curl(url string) string {
	options := ""
	if d.settings.Ingest.TokensFile != "" {
		options = `-H "Authorization: Bearer $TOKEN" `
	}
	return "curl " + options + "-d 'card declined' " + url + "/v1/events/payments"
}

func (d *dev) limitTexts() []string {
	l := d.settings.Limits
	texts := []string{"global " + l.Global.String(), "each category " + l.Category.String()}
	for _, rule := range l.Rules {
		texts = append(texts, rule.Pattern.String()+" "+rule.Limits.String())
	}
	if interval := d.settings.SummaryInterval; d.storm > 0 && interval > 0 {
		texts = append(texts, "a digest every "+interval.String())
	}
	text := strings.Join(texts, ", ")
	if !d.demo {
		return []string{text}
	}
	return []string{text, "short to be seen; NOTIFIER_GLOBAL_LIMIT, NOTIFIER_CATEGORY_LIMIT change it"}
}

// typed is a command of this program, as a person types it.
func (d *dev) typed(arguments string, settings ...string) typed {
	return typed{filled(settings), invocation() + " " + arguments}
}

// namedServer is a server that a setting names. A URL that may hold a password is not shown.
func namedServer(variable string, url config.Secret) devServer {
	if strings.Contains(url.Reveal(), "@") {
		return devServer{address: "as set in " + variable}
	}
	return devServer{url.Reveal(), variable + "=" + shellWord(url.Reveal())}
}

// invocation is how this program was called, as far as someone can repeat it.
func invocation() string {
	if strings.Contains(os.Args[0], "go-build") {
		return "go run ./cmd/notifier"
	}
	return shellWord(os.Args[0])
}

// shellWord is a text as a shell takes it for one word.
func shellWord(text string) string {
	const harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-:,+=%@"
	if strings.Trim(text, harmless) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// Package dev is the demonstration: NATS, a stand-in for Redis, a worker and a storm of events in one process, with nothing installed.
//
// The package owns the servers inside the process, the storm, and what a person sees of both: a frame that is redrawn on a terminal, lines
// elsewhere, and a table at the end. It reads the worker's metrics and asks for its status, as anybody could. The caller runs the worker; see
// [Worker]. Servers listen on loopback and keep nothing. If one does not start, the command ends with its error.
package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/cli"
	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// Limits and interval of --storm unless they are set: within a minute slots run out and open again, and digests arrive.
const (
	demoGlobalLimit, demoCategoryLimit = "30/30s", "6/30s"
	demoKeyLimit, demoGuarantee        = "deploys@key=1/30s", "uplinks=3"
	demoLimits                         = "global " + demoGlobalLimit + ", each category " + demoCategoryLimit + ", " + demoKeyLimit + "; guaranteed: " + demoGuarantee
	demoFold, demoFlap                 = "database=1h", "4/10s"
	demoSummaryInterval                = "15s"
)

// limitVariables are the settings that replace the limits of the demonstration.
var limitVariables = []string{"NOTIFIER_GLOBAL_LIMIT", "NOTIFIER_CATEGORY_LIMIT", "NOTIFIER_LIMITS", "NOTIFIER_GUARANTEES", "NOTIFIER_SHADOW_LIMITS"}

// Worker is how the demonstration wants its worker to run.
type Worker struct {
	Settings     config.Config
	Warnings     []string // of the settings
	Console, Log io.Writer
	Colour       bool
	Started      func(Running) // called once, when the worker begins to take events
}

// Running is a worker that takes events. An address is "" where the worker does not listen.
type Running struct {
	Admin, Page, Ingest string
	Metrics             prometheus.Gatherer
}

// NewCommand returns the command dev. run runs a worker until the context ends.
func NewCommand(run func(context.Context, Worker) error) *cobra.Command {
	var storm int
	var length time.Duration
	command := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, with nothing installed",
		Long: "Run everything in one process: NATS with JetStream and a stand-in for Redis, both on loopback, and a worker\n" +
			"that prints notifications. A setting replaces its part: NOTIFIER_NATS_URL, NOTIFIER_REDIS_URL, and\n" +
			"NOTIFIER_SINK or a Slack token or webhook. The command keeps nothing when it ends.\n\n" +
			"With --storm it publishes events of 21 categories, among them an alert that is repeated, folded and resolved, a\n" +
			"link that flaps, an event that comes twice, a second event of a key, and an unreadable one. It mutes a category\n" +
			"for a while. Unless limits are set, these are in force: " + demoLimits + ".\n" +
			"Channels get a digest every " + demoSummaryInterval + " unless NOTIFIER_SUMMARY_INTERVAL is set.",
		Example: "  notifier dev --storm 50\n  NOTIFIER_GLOBAL_LIMIT=20/1m NOTIFIER_CATEGORY_LIMIT=3/10s notifier dev --storm 50",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if storm < 0 || storm > maxStorm {
				return &cli.UsageError{Err: fmt.Errorf("--storm %d is not between 0 and %d events a second", storm, maxStorm)}
			}
			if cmd.Flags().Changed("for") && length <= 0 {
				return &cli.UsageError{Err: fmt.Errorf("--for %s is not above 0", length)}
			}
			return demonstrate(cmd.Context(), cmd.OutOrStdout(), storm, length, run)
		},
	}
	command.Flags().IntVar(&storm, "storm", 0, "publish this many events a second, over 21 categories")
	command.Flags().DurationVar(&length, "for", 0, "end so long after the start of the worker, such as 10s (default: run until interrupted)")
	return command
}

// options are the defaults of dev. A storm has the limits of the demonstration, unless the settings name others.
func options(storm int) config.Options {
	o := config.Options{Sink: config.SinkConsole, CheckTemplate: setup.CheckTemplate, Defaults: map[string]string{
		"NOTIFIER_HTTP_ADDR": "127.0.0.1:8080", "NOTIFIER_PAGE_ADDR": cli.PageAddr, "NOTIFIER_INGEST_ADDR": cli.IngestAddr,
		"NOTIFIER_LOG_LEVEL": "warn", "NOTIFIER_LOG_FORMAT": "text",
	}}
	if storm > 0 {
		o.Defaults["NOTIFIER_SUMMARY_INTERVAL"], o.Defaults["NOTIFIER_FOLD"], o.Defaults["NOTIFIER_FLAP"] = demoSummaryInterval, demoFold, demoFlap
		if !slices.ContainsFunc(limitVariables, func(name string) bool { return os.Getenv(name) != "" }) {
			o.Defaults["NOTIFIER_GLOBAL_LIMIT"], o.Defaults["NOTIFIER_CATEGORY_LIMIT"] = demoGlobalLimit, demoCategoryLimit
			o.Defaults["NOTIFIER_LIMITS"], o.Defaults["NOTIFIER_GUARANTEES"] = demoKeyLimit, demoGuarantee
		}
	}
	return o
}

// demonstrate runs the servers, the worker and the storm until the context ends or, if there is a length, so long after the start of the
// worker. Then it prints a table of the outcomes.
func demonstrate(
	ctx context.Context, out io.Writer, storm int, length time.Duration, run func(context.Context, Worker) error,
) (err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	settings, warnings, err := cli.Settings(options(storm))
	if err != nil {
		return err
	}
	began := time.Now()
	shown := newDisplay(out)
	var metrics prometheus.Gatherer // nil: the worker has not begun
	defer func() {
		shown.Close()
		if metrics != nil {
			now := countsOf(metrics)
			err = errors.Join(err, now.print(out, time.Since(began)))
		}
	}()
	nats, redis, stop, err := startServers(&settings, shown)
	if err != nil {
		return err
	}
	defer stop()
	background, endBackground := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer func() {
		endBackground()
		tasks.Wait()
	}()
	w := Worker{Settings: settings, Warnings: warnings, Console: shown, Log: os.Stderr, Colour: shown.On}
	if screen.IsTerminal(os.Stderr) {
		w.Log = shown // the log must not tear the frame
	}
	w.Started = func(running Running) {
		metrics, began = running.Metrics, time.Now()
		if length > 0 {
			time.AfterFunc(length, func() { end(errors.New("the time is up")) }) // an end in good order
		}
		shown.introduce(guide(settings, storm, running, nats, redis))
		tasks.Go(func() {
			connection, err := setup.DialNATS(background, settings.NATS)
			if err != nil {
				shown.Line("cannot connect to NATS: %v", err)
				return
			}
			defer connection.Conn.Close()
			if storm > 0 {
				tasks.Go(func() { publishStorm(background, settings, setup.JetStream(connection), storm, shown) })
			}
			watch(background, inspect.StatusOptions(settings, connection, nil), running.Metrics, shown, nats)
		})
	}
	return run(ctx, w)
}

// guide returns a title, the limits, and for each address a command to try.
func guide(settings config.Config, storm int, at Running, nats, redis address) []string {
	l, title := settings.Limits, "notifier dev"
	limits := []string{"global " + l.Global.String(), "each category " + l.Category.String()}
	for _, rule := range l.Rules {
		limits = append(limits, rule.Level()+" "+rule.Limits.String())
	}
	for _, guarantee := range l.Guarantees {
		limits = append(limits, fmt.Sprintf("%d slots for %s", guarantee.Slots, guarantee.Path))
	}
	if storm > 0 {
		title += fmt.Sprintf(" --storm %d", storm)
		if settings.SummaryInterval > 0 {
			limits = append(limits, "a digest every "+settings.SummaryInterval.String())
		}
	}
	rows := []string{title, "limits   " + strings.Join(limits, ", ")}
	if storm > 0 && l.Global.String() == demoGlobalLimit && l.Category.String() == demoCategoryLimit {
		rows = append(rows, guideIndent+"short, so that the effect is visible; NOTIFIER_GLOBAL_LIMIT, NOTIFIER_CATEGORY_LIMIT change it")
	}
	add := func(name, text string, commands ...string) {
		if text != "" {
			rows = append(append(rows, fmt.Sprintf("%-9s%s", name, text)), commands...)
		}
	}
	add("NATS", nats.shown, typed(`publish payments "card declined"`, nats)...)
	add("Redis", redis.shown, typed("limits", nats, redis)...)
	token := ""
	if settings.Ingest.TokensFile != "" {
		//nolint:gosec // a variable of the reader's shell
		token = `-H "Authorization: Bearer $TOKEN" `
	}
	add("HTTP", at.Ingest, guideIndent+"curl "+token+"-d 'card declined' "+at.Ingest+"/v1/events/payments")
	if at.Admin != "" {
		note := ""
		if usual, _, _ := strings.Cut(settings.HTTP.Addr, ","); !settings.HTTP.AddrSet && at.Admin != usual {
			note = " (" + usual + " is taken)"
		}
		add("metrics", "http://"+at.Admin+"/metrics"+note, guideIndent+"curl -s http://"+at.Admin+"/metrics | grep notifier_dropped")
	}
	if at.Page != "" {
		add("page", "http://"+at.Page+"/  the live page, for a browser")
	}
	return rows
}

const guideIndent = "         "

// typed returns the lines of a command for another terminal, with the settings that it needs.
func typed(arguments string, servers ...address) []string {
	program := shellWord(os.Args[0])
	if strings.Contains(os.Args[0], "go-build") {
		program = "go run ./cmd/notifier"
	}
	var lines []string
	for _, server := range servers {
		if server.assignment != "" {
			lines = append(lines, guideIndent+server.assignment+` \`)
		}
	}
	return append(lines, guideIndent+program+" "+arguments)
}

// shellWord quotes a text that a shell would not take for one word.
func shellWord(text string) string {
	const harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-:,+=%@"
	if strings.Trim(text, harmless) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// watch shows the counts and the status each second, and reports new dead letters.
func watch(ctx context.Context, options status.Options, metrics prometheus.Gatherer, shown *display, nats address) {
	options.RedisInfo = nil // the stand-in has no INFO
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var last counts
	for {
		now := countsOf(metrics)
		for i, reason := range now.deadSince(last) {
			shown.Line("%s %s an event has become a dead letter: %s",
				shown.Faint(time.Now().Format(time.TimeOnly)), shown.Red(fmt.Sprintf("%-8s", "DEAD")), reason)
			if i == 0 && len(last.dead) == 0 {
				shown.Line("shown by\n%s", strings.Join(typed("dlq list", nats), "\n"))
			}
		}
		last = now
		if s, err := status.Collect(ctx, options); err == nil {
			shown.update(now, s)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

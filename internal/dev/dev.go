// Package dev is the demonstration: NATS, a stand-in for Redis, a worker and a storm of events in one process, with nothing installed.
//
// The package owns the servers inside the process, the storm, and what a person sees of both: the lines of the worker, a table at the end and, on
// a terminal, a frame of the worker's metrics and status above the lines. The caller runs the worker; see [Worker]. Servers listen on loopback and
// keep nothing. If one does not start, the command ends with its error.
package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/await"
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
	if !screen.IsTerminal(out) {
		signal.Ignore(syscall.SIGPIPE) // it would leave the folder of JetStream behind
		out = read{out, end}
	}
	settings, warnings, err := cli.Settings(options(storm))
	if err != nil {
		return err
	}
	began, pane := time.Now(), screen.NewPane(out)
	var metrics prometheus.Gatherer // nil: the worker has not begun
	defer func() {
		pane.Close()
		if metrics != nil {
			now := countsOf(metrics)
			_, _ = fmt.Fprintf(out, "\n%s in %s\n", screen.Numbered(now.events(""), "event", "events"), time.Since(began).Round(time.Second))
			err = errors.Join(err, screen.PrintTable(out, now.table(now.categories()...)))
		}
	}()
	stop, err := startServers(&settings, pane)
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
	w := Worker{Settings: settings, Warnings: warnings, Console: pane, Log: os.Stderr, Colour: pane.On}
	if screen.IsTerminal(os.Stderr) {
		w.Log = pane // the log must not tear the frame
	}
	w.Started = func(running Running) {
		metrics, began = running.Metrics, time.Now()
		if length > 0 {
			time.AfterFunc(length, func() { end(errors.New("the time is up")) }) // an end in good order
		}
		tasks.Go(func() { show(background, settings, running, storm, pane) })
	}
	return run(ctx, w)
}

// read is an output that ends the demonstration when nobody reads it any more, as after dev | head.
type read struct {
	io.Writer
	end context.CancelCauseFunc
}

func (r read) Write(text []byte) (int, error) {
	n, err := r.Writer.Write(text)
	if err != nil {
		r.end(err)
	}
	return n, err
}

// show publishes the storm, and shows the guide and, on a terminal, the counts and the status each second. It returns when the context ends.
func show(ctx context.Context, settings config.Config, running Running, storm int, pane *screen.Pane) {
	text := guide(settings, storm, running)
	text[0] = pane.Bold(text[0])
	if !pane.IsDrawn() {
		pane.Line("%s\n", strings.Join(text, "\n"))
	}
	connection, err := setup.DialNATS(ctx, settings.NATS)
	if err != nil {
		pane.Line("cannot connect to NATS: %v", err)
		return
	}
	defer connection.Conn.Close()
	var publishing sync.WaitGroup
	defer publishing.Wait()
	if storm > 0 {
		publishing.Go(func() { publishStorm(ctx, settings, setup.JetStream(connection), storm, pane) })
	}
	options := inspect.StatusOptions(settings, connection, nil)
	options.RedisInfo = nil // the stand-in has no INFO
	var last status.Status
	for isShown := pane.IsDrawn(); isShown; isShown = await.For(ctx, time.Second) {
		if s, err := status.Collect(ctx, options); err == nil {
			last = s
		}
		s, totals := last, countsOf(running.Metrics).table()
		pane.Show(func(width, height int) []string { return frame(text, totals, s, width, height) })
	}
}

// frame returns the rows above the lines of the worker. On a small terminal totals come before the status, and the status before the guide.
func frame(guide []string, totals [][]string, s status.Status, width, height int) []string {
	rows := strings.Split(strings.TrimSpace(screen.Table(totals)), "\n")
	if len(guide)+len(rows)+height/3 > height {
		guide = guide[:1]
	}
	rows = slices.Concat(guide, rows)
	rows = rows[:min(len(rows), max(1, height))]
	if most := min(height/2, height-len(rows)); most > 0 && len(s.Workers) > 0 {
		rows = append(rows, cli.StatusRows(s, width, most)...)
	}
	return rows
}

// guide returns a title, the limits, and what to try in another terminal. A URL with a user may hold a password, and is not shown.
func guide(settings config.Config, storm int, at Running) []string {
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
	rows := []string{title + "   Ctrl-C ends it with a table", "limits: " + strings.Join(limits, ", "), "try in another terminal:"}
	for _, server := range []struct{ variable, url string }{
		{"NOTIFIER_NATS_URL", settings.NATS.URL.Reveal()}, {"NOTIFIER_REDIS_URL", settings.Redis.URL.Reveal()},
	} {
		if !strings.Contains(server.url, "@") {
			rows = append(rows, "  export "+server.variable+"="+shellWord(server.url))
		}
	}
	program := shellWord(os.Args[0])
	if strings.Contains(os.Args[0], "go-build") {
		program = "go run ./cmd/notifier"
	}
	rows = append(rows, "  "+program+` publish payments "card declined"`, "  "+program+" limits", "  "+program+" dlq list")
	if at.Ingest != "" {
		token := ""
		if settings.Ingest.TokensFile != "" {
			//nolint:gosec // a variable of the reader's shell
			token = `-H "Authorization: Bearer $TOKEN" `
		}
		rows = append(rows, "  curl "+token+"-d 'card declined' "+at.Ingest+"/v1/events/payments")
	}
	if at.Admin != "" {
		rows = append(rows, "  curl -s http://"+at.Admin+"/metrics | grep notifier_dropped")
	}
	if at.Page != "" {
		rows = append(rows, "  http://"+at.Page+"/ in a browser: the live page")
	}
	return rows
}

// shellWord quotes a text that a shell would not take for one word.
func shellWord(text string) string {
	const harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-:,+=%@"
	if strings.Trim(text, harmless) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

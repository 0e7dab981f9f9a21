//go:build !nodev

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/devstack"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// devHTTPAddr is where dev serves metrics unless told otherwise: for this host only.
const devHTTPAddr = "127.0.0.1:8080"

// addRehearsals adds the commands that are no part of a deployment.
func addRehearsals(root *cobra.Command) {
	addDevCommand(root)
	addSlackStubCommand(root)
}

func addDevCommand(root *cobra.Command) {
	var d dev
	command := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, with nothing installed",
		Long: "Run everything in one process: NATS with JetStream and a stand-in for Redis, both on loopback, and a worker\n" +
			"that prints notifications. A setting replaces its part: NOTIFIER_NATS_URL, NOTIFIER_REDIS_URL, and\n" +
			"NOTIFIER_SINK or a Slack token or webhook. The command keeps nothing when it ends.\n\n" +
			"With --storm it publishes events of 20 categories, among them an alert that is resolved, an event that comes\n" +
			"twice, and one that cannot be read. Unless limits are set, these are in force then: " + demoLimits + ".\n" +
			"Channels get a digest every " + demoSummaryInterval + " unless NOTIFIER_SUMMARY_INTERVAL is set.",
		Example: "  notifier dev --storm 50\n  NOTIFIER_GLOBAL_LIMIT=20/1m NOTIFIER_CATEGORY_LIMIT=3/10s notifier dev --storm 50",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.storm < 0 || d.storm > maxStorm {
				return &usageError{fmt.Errorf("--storm %d is not between 0 and %d events a second", d.storm, maxStorm)}
			}
			return d.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	command.Flags().IntVar(&d.storm, "storm", 0, "publish this many events a second, over 20 categories")
	command.Flags().DurationVar(&d.length, "for", 0, "end after this time, such as 10s (default: run until interrupted)")
	root.Long += "\n\nTry it without any server: notifier dev --storm 50"
	root.AddCommand(command)
}

// What --storm has in force unless it is set: within a minute slots are taken and open again, and digests come.
const (
	demoGlobalLimit     = "30/30s"
	demoCategoryLimit   = "6/30s"
	demoLimits          = "global " + demoGlobalLimit + ", each category " + demoCategoryLimit
	demoSummaryInterval = "15s"
)

// limitVariables are the settings of which each replaces the limits of the demonstration.
var limitVariables = []string{"NOTIFIER_GLOBAL_LIMIT", "NOTIFIER_CATEGORY_LIMIT", "NOTIFIER_LIMITS", "NOTIFIER_GUARANTEES", "NOTIFIER_SHADOW_LIMITS"}

// dev is the command that needs nothing installed.
type dev struct {
	storm  int
	length time.Duration

	settings    config.Config
	demo        bool // the limits are those of the demonstration
	nats, redis devServer
	screen      screen
	paint       painter
	tally       *tally
}

// devServer is a server, and what a command in another terminal has to know to reach it.
type devServer struct {
	address    string // as it is shown
	assignment string // a setting; "" if the default does
}

func (d *dev) run(ctx context.Context, out io.Writer) (err error) {
	var warnings []string
	if d.settings, warnings, err = config.Load(d.options()); err != nil {
		return &usageError{err}
	}
	if d.length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d.length, errors.New("the time is up")) // an end in good order
		defer cancel()
	}
	d.paint = painter{hasTerminal(out) && os.Getenv("NO_COLOR") == ""}
	d.screen = newScreen(out, d.paint)
	d.tally = newTally(d.reportDeadLetter)
	began := time.Now()
	defer func() {
		d.screen.close()
		if d.tally.Metrics != nil { // the worker has begun
			err = errors.Join(err, d.tally.printTable(out, time.Since(began)))
		}
	}()
	logOutput := io.Writer(os.Stderr)
	if hasTerminal(os.Stderr) {
		logOutput = d.screen // the log must not disturb what is shown there
	}
	logger := telemetry.NewLogger(logOutput, d.settings.Log.Level, d.settings.Log.Format)
	for _, warning := range warnings {
		logger.Warn("settings", "detail", warning)
	}
	stop, err := d.startServers()
	if err != nil {
		return err
	}
	defer stop()

	looking, stopLooking := context.WithCancel(context.Background())
	storm, stopStorm := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer func() {
		stopLooking()
		stopStorm()
		tasks.Wait()
	}()
	w := worker{
		settings: d.settings, logger: logger, stdout: d.screen, colour: d.paint.colour, isDev: true,
		observe: func(m *telemetry.Metrics) consume.Metrics { d.tally.Metrics = m; return d.tally },
		started: func(limiter *throttle.Limiter, at addresses) {
			d.screen.introduce(d.guide(at))
			tasks.Go(func() { d.look(looking, limiter) })
			if d.storm > 0 {
				tasks.Go(func() { d.publishStorm(storm, logger) })
			}
		},
	}
	return w.run(ctx)
}

// options are the defaults of dev.
func (d *dev) options() config.Options {
	o := config.Options{Sink: config.SinkConsole, CheckTemplate: checkTemplate, Defaults: map[string]string{
		"NOTIFIER_HTTP_ADDR": devHTTPAddr, "NOTIFIER_PAGE_ADDR": pageAddr, "NOTIFIER_INGEST_ADDR": ingestAddr,
		"NOTIFIER_LOG_LEVEL": "warn", "NOTIFIER_LOG_FORMAT": "text",
	}}
	if d.storm == 0 {
		return o
	}
	o.Defaults["NOTIFIER_SUMMARY_INTERVAL"] = demoSummaryInterval
	d.demo = !slices.ContainsFunc(limitVariables, func(name string) bool { return os.Getenv(name) != "" })
	if d.demo {
		o.Defaults["NOTIFIER_GLOBAL_LIMIT"], o.Defaults["NOTIFIER_CATEGORY_LIMIT"] = demoGlobalLimit, demoCategoryLimit
	}
	return o
}

func (d *dev) say(text string) { _, _ = fmt.Fprintln(d.screen, text) }

// reportDeadLetter says that an event became a dead letter, in the columns of notifications, and the first time how to see it.
func (d *dev) reportDeadLetter(reason string, isFirst bool) {
	word := d.paint.paint("31", fmt.Sprintf("%-8s", "DEAD"))
	d.say(d.paint.faint(time.Now().Format(time.TimeOnly)) + " " + word + " an event has become a dead letter: " + reason)
	if isFirst {
		name := "shown by"
		for _, row := range d.typed("dlq list", d.nats.assignment).rows(guideWidth - len(guideIndent)) {
			d.say(fmt.Sprintf("%-*s", len(guideIndent), name) + row)
			name = ""
		}
	}
}

// startServers starts the servers that no setting names, and says which of them are not at their usual ports.
func (d *dev) startServers() (stop func(), err error) {
	var running []*devstack.Server
	stop = func() {
		for _, server := range running {
			server.Stop()
		}
	}
	start := func(name, variable string, url *config.Secret, isSet bool, begin func() (*devstack.Server, error)) (devServer, error) {
		if isSet {
			return namedServer(variable, *url), nil
		}
		server, err := begin()
		if err != nil {
			return devServer{}, err
		}
		running = append(running, server)
		*url = config.NewSecret(server.URL)
		if !server.Moved {
			return devServer{address: server.URL}, nil
		}
		d.say(d.paint.faint(fmt.Sprintf("port %d is taken, so %s listens on %s", server.Port, name, server.URL)))
		return devServer{server.URL, variable + "=" + server.URL}, nil
	}
	nats, redis := &d.settings.NATS, &d.settings.Redis
	d.nats, err = start("NATS", "NOTIFIER_NATS_URL", &nats.URL, nats.URLSet, devstack.StartNATS)
	if err == nil {
		d.redis, err = start("the stand-in for Redis", "NOTIFIER_REDIS_URL", &redis.URL, redis.URLSet, devstack.StartRedis)
	}
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

//go:build !nodev

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/devstack"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// devHTTPAddr is where dev serves metrics unless told otherwise: for this host only.
const devHTTPAddr = "127.0.0.1:8080"

func addDevCommand(root *cobra.Command) {
	var d dev
	command := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, with nothing installed",
		Long: "Run everything in one process: NATS with JetStream and a stand-in for Redis, both on loopback, and a worker\n" +
			"that prints notifications. A setting replaces its part: NOTIFIER_NATS_URL, NOTIFIER_REDIS_URL, and\n" +
			"NOTIFIER_SINK or a Slack token or webhook. The command keeps nothing when it ends.",
		Example: "  notifier dev --storm 50\n  NOTIFIER_GLOBAL_LIMIT=20/1m NOTIFIER_CATEGORY_LIMIT=3/10s notifier dev --storm 50",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.storm < 0 || d.storm > maxStorm {
				return &usageError{fmt.Errorf("--storm %d is not between 0 and %d events a second", d.storm, maxStorm)}
			}
			return d.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	command.Flags().IntVar(&d.storm, "storm", 0, "publish this many events a second, over 20 categories")
	command.Flags().DurationVar(&d.length, "for", 0, "end after this time, such as 10s (default: run until interrupted)")
	root.AddCommand(command)
}

// dev is the command that needs nothing installed.
type dev struct {
	storm  int
	length time.Duration

	out   io.Writer
	paint painter
	tally *tally
	nats  string // how a client in another terminal reaches NATS, "" if by default
}

func (d *dev) run(ctx context.Context, out io.Writer) error {
	settings, warnings, err := config.Load(config.Options{
		Sink: config.SinkConsole, HTTPAddr: devHTTPAddr, LogLevel: "warn", LogFormat: "text", CheckTemplate: checkTemplate,
	})
	if err != nil {
		return &usageError{err}
	}
	if d.length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d.length, errTimeIsUp)
		defer cancel()
	}
	output := &lines{out: out}
	d.out, d.paint = output, painter{isTerminal(out)}
	d.tally = newTally()
	logger := telemetry.NewLogger(os.Stderr, settings.Log.Level, settings.Log.Format)
	for _, warning := range warnings {
		logger.Warn("settings", "detail", warning)
	}
	stop, err := d.startServers(&settings)
	if err != nil {
		return err
	}
	defer stop()

	totals, stopTotals := context.WithCancel(context.Background())
	storm, stopStorm := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer func() {
		stopTotals()
		stopStorm()
		tasks.Wait()
	}()
	w := worker{
		settings: settings, logger: logger, stdout: output, colour: d.paint.colour, fallbackPort: !settings.HTTP.AddrSet,
		observe: func(m *telemetry.Metrics) consume.Metrics { return d.tally.over(m) },
		started: func(limiter *throttle.Limiter, adminAddr string) {
			d.introduce(settings, adminAddr)
			tasks.Go(func() { d.printTotals(totals, limiter) })
			if d.storm > 0 {
				tasks.Go(func() { d.publishStorm(storm, settings, logger) })
			}
		},
	}
	return w.run(ctx)
}

// errTimeIsUp ends dev in good order.
var errTimeIsUp = errors.New("the time is up")

func (d *dev) say(format string, values ...any) {
	_, _ = fmt.Fprintf(d.out, format+"\n", values...)
}

// startServers starts what no setting names, and says so where it is not at its usual place.
func (d *dev) startServers(settings *config.Config) (stop func(), err error) {
	var running []*devstack.Server
	stop = func() {
		for _, server := range running {
			server.Stop()
		}
	}
	start := func(name string, begin func() (*devstack.Server, error)) (config.Secret, error) {
		server, err := begin()
		if err != nil {
			stop()
			return config.Secret{}, err
		}
		running = append(running, server)
		if server.Moved {
			d.say("%s", d.paint.faint(fmt.Sprintf("port %d is taken, so %s listens on %s", server.Port, name, server.URL)))
		}
		return config.NewSecret(server.URL), nil
	}
	if !settings.NATS.URLSet {
		if settings.NATS.URL, err = start("NATS", devstack.StartNATS); err != nil {
			return nil, err
		}
		if running[0].Moved {
			d.nats = settings.NATS.URL.Reveal()
		}
	}
	if !settings.Redis.URLSet {
		if settings.Redis.URL, err = start("the stand-in for Redis", devstack.StartRedis); err != nil {
			return nil, err
		}
	}
	return stop, nil
}

// introduce says what there is to see and to do.
func (d *dev) introduce(settings config.Config, adminAddr string) {
	d.say("%s limits: global %s, each category %s%s", d.paint.bold("notifier dev"),
		settings.Limits.Global, settings.Limits.Category, rulesNote(settings.Limits.Rules))
	publish := invocation() + ` publish payments "card declined"`
	if d.nats != "" {
		publish = "NOTIFIER_NATS_URL=" + d.nats + " " + publish
	}
	d.say("  publish an event:  %s", publish)
	if adminAddr != "" {
		note := ""
		if d.portMoved(settings, adminAddr) {
			note = fmt.Sprintf("  (%s is taken)", settings.HTTP.Addr)
		}
		d.say("  metrics:           http://%s/metrics%s", adminAddr, note)
	}
	d.say("  stop:              Ctrl-C\n")
}

func (d *dev) portMoved(settings config.Config, adminAddr string) bool {
	return !settings.HTTP.AddrSet && adminAddr != settings.HTTP.Addr
}

func rulesNote(rules []limits.Rule) string {
	var note strings.Builder
	for _, rule := range rules {
		fmt.Fprintf(&note, ", %s %s", rule.Pattern, rule.Limits)
	}
	return note.String()
}

// invocation is how this program was called, as far as someone can repeat it.
func invocation() string {
	if strings.Contains(os.Args[0], "go-build") {
		return "go run ./cmd/notifier"
	}
	return os.Args[0]
}

func isTerminal(out io.Writer) bool {
	file, isFile := out.(*os.File)
	return isFile && term.IsTerminal(int(file.Fd())) && os.Getenv("NO_COLOR") == ""
}

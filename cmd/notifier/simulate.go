package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/simulate"
)

// defaultTop is how many paths a table shows unless told otherwise.
const defaultTop = 50

func newSimulateCommand() *cobra.Command {
	var s simulation
	command := &cobra.Command{
		Use:   "simulate [FILE]",
		Short: "Show what limits would do to past events",
		Long: "Replay events through limits at the events' own times. Print for each category how many events were seen, sent\n" +
			"and dropped, by which limit, and the longest time without a sent event. The command posts nothing and does\n" +
			"not use Redis.\n\n" +
			"FILE has a JSON object on each line, as the worker takes it, with its time and category. Other members are\n" +
			"optional:\n" +
			"  {\"time\": \"2026-03-01T12:00:00Z\", \"category\": \"payments\", \"id\": \"order-4711\", \"cost\": 2}\n" +
			"Without FILE, or with -, the command reads standard input. With --from-stream it reads the JetStream stream, with\n" +
			"the times at which events were stored. A work queue, as the worker creates it, has only events that are not\n" +
			"settled yet. Events that wait in the room are not read.\n" +
			"--from-stream needs the permissions for $JS.API.STREAM.INFO.<stream> and $JS.API.STREAM.MSG.GET.<stream>.\n\n" +
			"A body of Alertmanager or Grafana is one event for each alert. On a line of FILE it may have a time and a\n" +
			"category beside its alerts: when and where it was published. Otherwise each alert has its own. An event with a\n" +
			"key and the status resolved takes no slot: it is sent if the firing event with its key was sent, else dropped\n" +
			"as unpaired.\n\n" +
			"The limits are those of the settings. --limits changes some of them: NAME=LIMIT, comma separated, where NAME\n" +
			"is a path as in NOTIFIER_LIMITS, global or category. --compare does the same for a second set (b) and replays\n" +
			"the events under both sets. An empty text stands for the unchanged settings.\n\n" +
			"Each delivery succeeds at once, so an inflight limit is never full, unless one event exceeds its capacity.\n" +
			"No event waits for a slot: events that would wait by NOTIFIER_DELAY are dropped. A later event with the\n" +
			"category and the ID of a sent one is a duplicate, for as long as a worker would keep the delivery record.\n" +
			"Unusable lines and alerts are reported, and the status is then 1.",
		Example: "  notifier simulate events.jsonl --limits 'global=200/1h,payments=40/30m'\n" +
			"  notifier simulate events.jsonl --compare 'category=5/30m'\n" +
			"  notifier simulate --from-stream --json",
		Args: func(cmd *cobra.Command, arguments []string) error {
			s.comparing = cmd.Flags().Changed("compare")
			return s.checkArguments(cmd, arguments)
		},
		RunE: func(cmd *cobra.Command, arguments []string) error {
			s.file = cmp.Or(strings.Join(arguments, ""), standardInput)
			return s.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.StringVar(&s.limits, "limits", "", "change limits of the settings: NAME=LIMIT,…")
	flags.StringVar(&s.compare, "compare", "", "replay the events under these changes too, and print both side by side")
	flags.BoolVar(&s.fromStream, "from-stream", false, "replay the events that the stream has now")
	flags.BoolVar(&s.json, "json", false, "print one JSON object, with all paths")
	flags.IntVar(&s.top, "top", defaultTop, "how many paths the table shows; 0 for all")
	return command
}

// standardInput is the FILE that is standard input.
const standardInput = "-"

// simulation is the command's flags and its argument.
type simulation struct {
	file       string // a name, or standardInput
	fromStream bool
	limits     string
	compare    string
	comparing  bool
	json       bool
	top        int
}

func (s *simulation) checkArguments(cmd *cobra.Command, arguments []string) error {
	fault := ""
	switch {
	case len(arguments) > 1:
		fault = "expected at most one file"
	case s.fromStream && len(arguments) == 1:
		fault = "--from-stream takes no file"
	case s.top < 0:
		fault = "--top is below 0"
	}
	if fault != "" {
		return &usageError{fmt.Errorf("%s\nSee '%s --help'", fault, cmd.CommandPath())}
	}
	return nil
}

func (s *simulation) run(ctx context.Context, in io.Reader, out, problems io.Writer) error {
	settings, _, err := config.Load(config.Options{Sink: config.SinkConsole})
	if err != nil {
		return &usageError{err}
	}
	sets, err := s.limitSets(settings.Limits.Plan())
	if err != nil {
		return &usageError{err}
	}
	bar := newProgressBar(problems)
	history, err := s.read(ctx, settings, in, bar)
	bar.clear()
	if err != nil {
		return err
	}
	reportProblems(problems, history, s.noun())
	var reports []simulate.Report
	for _, set := range sets {
		limiter := simulate.NewLimiter(set.tree, retention(0, settings.Event.MaxAge), settings.PairTTL)
		report, err := history.Replay(ctx, limiter, bar.stage("judging events"))
		bar.clear()
		if err != nil {
			return err
		}
		reports = append(reports, report)
	}
	if s.json {
		err = s.printJSON(out, reports)
	} else {
		err = s.printTable(out, sets, reports)
	}
	if err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	if history.Invalid > 0 {
		return fmt.Errorf("%d of %d %ss could not be used", history.Invalid, history.Read, s.noun())
	}
	return nil
}

// noun is what holds an event.
func (s *simulation) noun() string {
	if s.fromStream {
		return "message"
	}
	return "line"
}

// limitSets are the limits to judge by; b is nil without a comparison. The error names everything that is wrong.
// limitSets are the trees under which the events are judged, with the limits in words.
func (s *simulation) limitSets(plan limits.Plan) ([]limitSet, error) {
	changes := []struct{ flag, text string }{{"--limits", s.limits}}
	if s.comparing {
		changes = append(changes, struct{ flag, text string }{"--compare", s.compare})
	}
	var (
		sets   []limitSet
		faults []error
	)
	for _, change := range changes {
		changed, wrong := override(plan, change.text)
		tree, err := limits.NewTree(changed)
		if err != nil && len(wrong) == 0 {
			wrong = []error{err}
		}
		for _, fault := range wrong {
			faults = append(faults, fmt.Errorf("%s: %w", change.flag, fault))
		}
		if len(wrong) == 0 {
			sets = append(sets, limitSet{tree: tree, text: describe(tree)})
		}
	}
	return sets, errors.Join(faults...)
}

type limitSet struct {
	tree *limits.Tree
	text string
}

// override changes a plan by a text of the form of NOTIFIER_LIMITS that may name global and category too. An empty text
// changes nothing.
func override(plan limits.Plan, text string) (limits.Plan, []error) {
	if strings.TrimSpace(text) == "" {
		return plan, nil
	}
	overrides, faults := limits.ParseOverrides(text)
	return plan.With(overrides, limits.FromEnvironment), faults
}

func (s *simulation) read(
	ctx context.Context, settings config.Config, in io.Reader, bar *progressBar,
) (*simulate.History, error) {
	decoder := event.Decoder{Prefix: settings.NATS.Subject, MaxBytes: settings.Event.MaxBytes}
	if s.fromStream {
		return readStream(ctx, settings.NATS, decoder, bar)
	}
	type result struct {
		history *simulate.History
		err     error
	}
	finished := make(chan result, 1)
	progress := bar.stage("reading bytes")
	go func() { // an input that says nothing cannot be interrupted
		history, err := s.readFile(ctx, decoder, in, progress)
		finished <- result{history, err}
	}()
	select {
	case r := <-finished:
		return r.history, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *simulation) readFile(
	ctx context.Context, decoder event.Decoder, in io.Reader, progress simulate.Progress,
) (*simulate.History, error) {
	size := int64(0)
	if s.file != standardInput {
		file, err := os.Open(s.file)
		if err != nil {
			return nil, fmt.Errorf("reading events: %w", err)
		}
		defer func() { _ = file.Close() }()
		if info, err := file.Stat(); err == nil {
			size = info.Size() // 0 for a pipe
		}
		in = file
	}
	return simulate.ReadLines(ctx, in, decoder, func(done, _ int64) { progress(done, size) })
}

// readStream reads the stream as the user of the settings.
func readStream(
	ctx context.Context, settings config.NATS, decoder event.Decoder, bar *progressBar,
) (*simulate.History, error) {
	connection, err := connectNATS(settings, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer connection.Conn.Close()
	if err := awaitConnection(ctx, connection); err != nil {
		return nil, err
	}
	js, err := jetstream.New(connection.Conn)
	if err != nil {
		return nil, fmt.Errorf("using jetstream: %w", err)
	}
	history, err := simulate.ReadStream(ctx, js, settings.Stream, decoder, bar.stage("reading messages"))
	if err != nil && errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w (may this user publish to $JS.API.STREAM.INFO.%s and $JS.API.STREAM.MSG.GET.%[2]s?)",
			err, settings.Stream)
	}
	return history, err
}

func reportProblems(out io.Writer, history *simulate.History, noun string) {
	for _, problem := range history.Problems {
		_, _ = fmt.Fprintf(out, "%s %d: %v\n", noun, problem.Number, problem.Err)
	}
	if more := history.Invalid - len(history.Problems); more > 0 {
		_, _ = fmt.Fprintf(out, "and %d more\n", more)
	}
}

func (s *simulation) printJSON(out io.Writer, reports []simulate.Report) error {
	encoder := json.NewEncoder(out)
	if s.comparing {
		return encoder.Encode(map[string]simulate.Report{"a": reports[0], "b": reports[1]})
	}
	return encoder.Encode(reports[0])
}

func (s *simulation) printTable(out io.Writer, sets []limitSet, reports []simulate.Report) error {
	r := reports[0]
	span := "no events"
	if n := r.Total.Seen; n > 0 {
		span = fmt.Sprintf("%d events from %s to %s", n, r.From.Format(time.RFC3339), r.To.Format(time.RFC3339))
	}
	limits := "limits: " + sets[0].text
	if s.comparing {
		limits = "a: " + sets[0].text + "\nb: " + sets[1].text
	}
	if _, err := fmt.Fprintf(out, "%s\n%s\n\n", span, limits); err != nil {
		return err
	}
	if s.comparing {
		return simulate.WriteComparison(out, r, reports[1], s.top)
	}
	return simulate.WriteTable(out, r, s.top)
}

// describe is the limits in the form that --limits takes, and the guarantees.
func describe(tree *limits.Tree) string {
	var entries []string
	for _, level := range tree.AllLevels() {
		entries = append(entries, level.Level+"="+level.Limits.String())
	}
	text := strings.Join(entries, ",")
	if len(tree.Guarantees()) == 0 {
		return text
	}
	var guarantees []string
	for _, guarantee := range tree.Guarantees() {
		guarantees = append(guarantees, fmt.Sprintf("%s=%d", guarantee.Path, guarantee.Slots))
	}
	return text + "; guarantees: " + strings.Join(guarantees, ",")
}

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/simulate"
)

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
			"as unpaired. Where NOTIFIER_FOLD or NOTIFIER_FLAP is set here, repeats and flapping keys are folded as workers would do it.\n\n" +
			"The command uses the limits of the settings here, if one of them is set, otherwise the limits of the running\n" +
			"workers. If no worker answers within a second, it uses the defaults. The output says which. --limits changes some\n" +
			"limits: NAME=LIMIT, comma separated, where NAME is a path as in NOTIFIER_LIMITS, global or category. --compare does\n" +
			"the same for a second set (b) and replays the events under both sets.\n\n" +
			"Each delivery succeeds at once, so an inflight limit is never full, unless one event exceeds its capacity.\n" +
			"No event waits for a slot: events that would wait by NOTIFIER_DELAY are dropped. A later event with the\n" +
			"category and the ID of a sent one is a duplicate, for as long as a worker would keep the delivery record.\n" +
			"Unusable lines and alerts are reported, and the status is then 1.",
		Example: "  notifier simulate events.jsonl --limits 'global=200/1h,payments=40/30m'\n" +
			"  notifier simulate events.jsonl --compare 'category=5/30m'\n" +
			"  notifier simulate --from-stream --json\n" +
			"  notifier simulate --week",
		Args: s.checkArguments,
		RunE: s.run,
	}
	flags := command.Flags()
	flags.StringVar(&s.limits, "limits", "", "change some of the limits: NAME=LIMIT,…")
	flags.StringVar(&s.compare, "compare", "", "replay the events under these changes too, and print both side by side")
	flags.StringArrayVar(&s.mutes, "mute", nil, "mute a path, always or by a schedule: 'db=Tue 02:00-04:00 Europe/Paris'; may be repeated")
	flags.BoolVar(&s.fromStream, "from-stream", false, "replay the events that the stream has now")
	flags.BoolVar(&s.week, "week", false, "replay a generated on-call week through the limits of the settings here, also with a limit for each key")
	flags.BoolVar(&s.json, "json", false, "print one JSON object, with all paths")
	flags.IntVar(&s.top, "top", defaultTop, "how many paths the table shows; 0 for all")
	return command
}

const standardInput = "-"

type simulation struct {
	file       string // standardInput reads standard input
	fromStream bool
	week       bool
	limits     string
	compare    string
	json       bool
	top        int
	mutes      []string // as simulate.ParseMute reads them
	from       string   // source of the limits, before the changes of the flags
}

func (s *simulation) checkArguments(cmd *cobra.Command, arguments []string) error {
	switch {
	case len(arguments) > 1:
		return errors.New("expected at most one file")
	case s.fromStream && len(arguments) == 1:
		return errors.New("--from-stream takes no file")
	case s.week && (s.fromStream || len(arguments) == 1 || s.limits != "" || s.compare != "" || s.mutes != nil):
		return errors.New("--week takes no file, and neither --from-stream, --limits, --compare nor --mute")
	case s.top < 0:
		return errors.New("--top is below 0")
	}
	return emptyFlag(cmd, "limits", "compare")
}

func (s *simulation) run(cmd *cobra.Command, arguments []string) error {
	ctx, problems := cmd.Context(), cmd.ErrOrStderr()
	s.file = cmp.Or(strings.Join(arguments, ""), standardInput)
	settings, err := commandSettings()
	if err != nil {
		return err
	}
	if s.week {
		return s.replayWeek(ctx, settings, cmd.OutOrStdout())
	}
	var plan limits.Plan
	plan, s.from = startingLimits(ctx, settings)
	trees, err := s.trees(plan)
	if err != nil {
		return &UsageError{err}
	}
	var mutes []simulate.Mute
	for _, text := range s.mutes {
		mute, err := simulate.ParseMute(text)
		if err != nil {
			return &UsageError{fmt.Errorf("--mute: %w", err)}
		}
		mutes = append(mutes, mute)
	}
	bar := screen.NewProgress(problems)
	history, err := s.read(ctx, settings, cmd.InOrStdin(), bar)
	bar.Clear()
	if err != nil {
		return err
	}
	reportProblems(problems, history, s.noun())
	var reports []simulate.Report
	for _, tree := range trees {
		limiter := simulate.NewLimiter(simulate.Options{
			Tree: tree, Retention: inspect.Retention(settings), PairTTL: settings.PairTTL, Fold: settings.FoldOf,
			Flap: setup.Flap(settings), Mutes: mutes,
		})
		report, err := history.Replay(ctx, limiter, bar.Stage("evaluating events"))
		bar.Clear()
		if err != nil {
			return err
		}
		reports = append(reports, report)
	}
	if s.json {
		err = s.printJSON(cmd.OutOrStdout(), reports)
	} else {
		err = s.printTable(cmd.OutOrStdout(), trees, reports)
	}
	if err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	if history.Invalid > 0 {
		return fmt.Errorf("%d of %d %ss could not be used", history.Invalid, history.Read, s.noun())
	}
	return nil
}

// replayWeek prints what the limits of the settings here, and variants of them, make of a generated week.
func (s *simulation) replayWeek(ctx context.Context, settings config.Config, out io.Writer) error {
	variants, err := simulate.WeekVariants(settings.Limits.Plan(), inspect.Retention(settings), settings.PairTTL)
	if err != nil {
		return &UsageError{err}
	}
	rows, err := simulate.ReplayWeek(ctx, simulate.Week(simulate.WeekSeed), variants)
	if err != nil {
		return err
	}
	if s.json {
		return screen.PrintJSON(out, rows)
	}
	return simulate.WriteWeek(out, rows)
}

// askWorkersFor bounds the wait for workers if the command can work without their answer.
const askWorkersFor = time.Second

// startingLimits returns the limits before the changes of the flags, and their source.
func startingLimits(ctx context.Context, settings config.Config) (plan limits.Plan, from string) {
	const here = "this shell's settings"
	plan = settings.Limits.Plan()
	if settings.Limits.Set {
		return plan, here
	}
	err := withWorkers(ctx, settings, func(connection *stream.Connection, workers inspect.WorkersLimits) error {
		theirs, err := workers.Plan(connection)
		if err == nil {
			plan, from = theirs, workers.String()
		}
		return err
	})
	if err != nil {
		from = here + ": " + plain.Line(err.Error())
	}
	return plan, from
}

// withWorkers has work use the limits of the running workers. It returns the error of work, or why no worker answers in time.
func withWorkers(ctx context.Context, settings config.Config, work func(*stream.Connection, inspect.WorkersLimits) error) error {
	ctx, cancel := context.WithTimeout(ctx, askWorkersFor)
	defer cancel()
	connection, err := setup.DialNATS(ctx, settings.NATS)
	if err != nil {
		return errors.New("nats does not answer")
	}
	defer connection.Conn.Close()
	workers, err := inspect.Workers(ctx, connection, settings)
	switch {
	case err != nil:
		return err
	case len(workers.Reports) == 0:
		return errors.New("no worker answers")
	}
	return work(connection, workers)
}

func (s *simulation) noun() string {
	if s.fromStream {
		return "message"
	}
	return "line"
}

// trees returns one set of limits, and a second one for --compare. The error names every fault.
func (s *simulation) trees(plan limits.Plan) ([]*limits.Tree, error) {
	changes := [][2]string{{"--limits", s.limits}}
	if s.compare != "" {
		changes = append(changes, [2]string{"--compare", s.compare})
	}
	var (
		trees  []*limits.Tree
		faults []error
	)
	for _, change := range changes {
		flag, text := change[0], change[1]
		var (
			overrides []limits.Override
			wrong     []error
		)
		if strings.TrimSpace(text) != "" {
			overrides, wrong = limits.ParseOverrides(text)
		}
		tree, err := limits.NewTree(plan.With(overrides, limits.FromEnvironment))
		if err != nil && len(wrong) == 0 {
			wrong = []error{err}
		}
		for _, fault := range wrong {
			faults = append(faults, fmt.Errorf("%s: %w", flag, fault))
		}
		trees = append(trees, tree)
	}
	return trees, errors.Join(faults...)
}

func (s *simulation) read(ctx context.Context, settings config.Config, in io.Reader, bar *screen.Progress) (*simulate.History, error) {
	decoder := setup.Decoder(settings)
	if s.fromStream {
		return readStream(ctx, settings.NATS, decoder, bar.Stage("reading messages"))
	}
	var (
		history *simulate.History
		err     error
	)
	finished := make(chan struct{})
	progress := bar.Stage("reading bytes")
	go func() { // a read from a silent input cannot be interrupted
		history, err = s.readFile(ctx, decoder, in, progress)
		close(finished)
	}()
	select {
	case <-finished:
		return history, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *simulation) readFile(ctx context.Context, decoder event.Decoder, in io.Reader, progress simulate.Progress) (*simulate.History, error) {
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

func readStream(ctx context.Context, settings config.NATS, decoder event.Decoder, progress simulate.Progress) (*simulate.History, error) {
	connection, err := setup.DialNATS(ctx, settings)
	if err != nil {
		return nil, fmt.Errorf("nats: %s", setup.ExplainNATS(err))
	}
	defer connection.Conn.Close()
	history, err := simulate.ReadStream(ctx, setup.JetStream(connection), settings.Stream, decoder, progress)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w (may this user publish to $JS.API.STREAM.INFO.%s and $JS.API.STREAM.MSG.GET.%[2]s?)", err, settings.Stream)
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
	if s.compare != "" {
		return screen.PrintJSON(out, map[string]any{"a": reports[0], "b": reports[1], "limits_from": s.from})
	}
	reports[0].LimitsFrom = s.from
	return screen.PrintJSON(out, reports[0])
}

func (s *simulation) printTable(out io.Writer, trees []*limits.Tree, reports []simulate.Report) error {
	r := reports[0]
	span := "no events"
	if n := r.Total.Seen; n > 0 {
		span = fmt.Sprintf("events from %s to %s: %d", r.From.Format(time.RFC3339), r.To.Format(time.RFC3339), n)
	}
	if s.compare == "" {
		_, _ = fmt.Fprintf(out, "%s\nlimits from %s\nlimits: %s\n\n", span, s.from, describe(trees[0]))
		return simulate.WriteTable(out, r, s.top)
	}
	_, _ = fmt.Fprintf(out, "%s\nlimits from %s\na: %s\nb: %s\n\n", span, s.from, describe(trees[0]), describe(trees[1]))
	return simulate.WriteComparison(out, r, reports[1], s.top)
}

// describe returns the limits in the form of --limits, and the guarantees.
func describe(tree *limits.Tree) string {
	var entries, guarantees []string
	for _, level := range tree.AllLevels() {
		entries = append(entries, level.Level+"="+level.Limits.String())
	}
	for _, guarantee := range tree.Guarantees() {
		guarantees = append(guarantees, fmt.Sprintf("%s=%d", guarantee.Path, guarantee.Slots))
	}
	text := strings.Join(entries, ",")
	if len(guarantees) > 0 {
		text += "; guarantees: " + strings.Join(guarantees, ",")
	}
	return text
}

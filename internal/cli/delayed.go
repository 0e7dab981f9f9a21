package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/delayed"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
)

const longestOperator = 100

func newDelayedCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "delayed",
		Short: "List, release or drop events that wait",
		Long: "Events wait in a stream of their own (NOTIFIER_ROOM_STREAM): for a slot of a full limit, for the event that they\n" +
			"resolve, for Redis, for their turn to be decoded, or for their channel. PATH is a category with all below it, or '>'\n" +
			"for everything.",
		Example: "  notifier delayed list payments\n" +
			"  notifier delayed release payments.refunds\n" +
			"  notifier delayed release payments order-4711\n" +
			"  notifier delayed drop payments --yes",
	}
	command.AddCommand(newDelayedListCommand(), newReleaseCommand(), newDelayedDropCommand())
	return command
}

// delayedCommand runs one of the delayed commands. connected sets the fields below the flags.
type delayedCommand struct {
	by    string
	limit int
	json  bool
	yes   bool

	settings config.Config
	store    *delayed.Store
	in       io.Reader
	out      io.Writer
	problems io.Writer
	bar      *screen.Progress
}

func newDelayedListCommand() *cobra.Command {
	d := &delayedCommand{}
	command := &cobra.Command{
		Use:   "list [PATH]",
		Short: "List events that wait, the oldest first",
		Long:  "List events that wait, the oldest first: their age, what they wait for, and for how long still. An event whose reason is 'due' has waited long enough, and the next worker takes it.",
		Args:  cobra.MatchAll(cobra.MaximumNArgs(1), checkPath, notNegative(&d.limit)),
		RunE:  d.connected(d.list),
	}
	command.Flags().BoolVar(&d.json, "json", false, "print one JSON object")
	command.Flags().IntVar(&d.limit, "limit", defaultLetters, "how many events to show; 0 for all")
	return command
}

func newReleaseCommand() *cobra.Command {
	return newOrderCommand(delayedOrder{action: room.Release, doing: "releasing", done: "released", without: "without slots"}, &cobra.Command{
		Short: "Post events that wait at once, without slots",
		Long: "Post events that wait at once and without slots, whatever the limits say. Mutes apply: a muted event is dropped.\n" +
			"An event with an ID is released alone. A resolved event does not wait for its firing event any more. The next worker\n" +
			"posts the events: an event goes out once, and the journal has the operator's name. The pace of the channels applies.\n\n" +
			"An event that waits for its channel has its slots, and goes out as soon as Slack takes it.",
		Example: "  notifier delayed release payments.refunds\n  notifier delayed release payments order-4711 --as alice",
	})
}

func newDelayedDropCommand() *cobra.Command {
	return newOrderCommand(delayedOrder{action: room.Drop, doing: "dropping", done: "dropped", without: "without a notification"}, &cobra.Command{
		Short: "Drop events that wait",
		Long: "Drop events that wait: they end without a notification, with the level 'operator' in metrics, digests and the journal,\n" +
			"which has the operator's name. An event with an ID is dropped alone.\n\n" +
			"An event that waits for its channel has its slots, and is not dropped.",
		Example: "  notifier delayed drop payments\n  notifier delayed drop payments order-4711 --yes",
	})
}

type delayedOrder struct {
	action               room.Action
	doing, done, without string
}

func newOrderCommand(o delayedOrder, command *cobra.Command) *cobra.Command {
	d := &delayedCommand{}
	command.Use = string(o.action) + " PATH [ID...]"
	command.Long += "\n\nThe command needs the permissions of the user replayer in configs/nats/notifier.conf."
	command.Args = cobra.MatchAll(numberOfArguments(1, math.MaxInt), checkPath, somebodyToAsk(&d.yes))
	command.RunE = d.connected(func(ctx context.Context, arguments []string) error { return d.order(ctx, o, arguments) })
	command.Flags().BoolVar(&d.yes, "yes", false, "do not ask")
	command.Flags().StringVar(&d.by, "as", "", "name of the operator in the journal (default: the user of the NATS connection, else user@host)")
	return command
}

func checkPath(_ *cobra.Command, arguments []string) error {
	if len(arguments) == 0 || arguments[0] == event.Everything {
		return nil
	}
	return event.ValidatePath(arguments[0])
}

// connected returns a command's RunE, which reads the settings, opens the room and then works.
func (d *delayedCommand) connected(work func(ctx context.Context, arguments []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, arguments []string) error {
		ctx := cmd.Context()
		return withNATS(ctx, func(settings config.Config, connection *stream.Connection) (err error) {
			d.settings, d.in, d.out, d.problems = settings, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			d.bar = screen.NewProgress(d.problems)
			d.store, err = delayed.Open(ctx, setup.JetStream(connection), settings.Room.Stream, setup.Decoder(settings))
			if err == nil {
				err = work(ctx, arguments)
				d.bar.Clear()
			}
			return explainLetters(err, connection)
		})
	}
}

// read returns the events of a path that wait. With IDs, it returns only their events.
func (d *delayedCommand) read(ctx context.Context, path string, ids []string) ([]delayed.Event, error) {
	all, err := d.store.List(ctx, d.bar.Stage("reading events that wait"))
	d.bar.Clear()
	if path == event.Everything {
		path = ""
	}
	var shown []string
	for _, id := range ids {
		shown = append(shown, event.ShownAs(id)...)
	}
	return slices.DeleteFunc(all, func(e delayed.Event) bool {
		return !event.IsBelow(e.Category, path) || len(ids) > 0 && !slices.Contains(shown, e.ID)
	}), err
}

// delayedList is what delayed list prints as JSON.
type delayedList struct {
	Total  int             `json:"total"` // including events beyond --limit
	Events []delayed.Event `json:"events"`
}

func (d *delayedCommand) list(ctx context.Context, arguments []string) error {
	events, err := d.read(ctx, append(arguments, event.Everything)[0], nil)
	if err != nil {
		return err
	}
	list := delayedList{Total: len(events), Events: append([]delayed.Event{}, events...)}
	if d.limit > 0 {
		list.Events = list.Events[:min(d.limit, list.Total)]
	}
	if d.json {
		return screen.PrintJSON(d.out, list)
	}
	rows := [][]string{{"AGE", "REASON", "STILL", "CATEGORY", "ID", "TITLE"}}
	for _, e := range list.Events {
		still := "-"
		if !e.Due.IsZero() {
			still = screen.Age(time.Until(e.Due))
		}
		rows = append(rows, []string{screen.Age(time.Since(e.Stored)), e.Reason, still, e.Category, plain.Line(e.ID), plain.Short(e.Title, widest)})
	}
	return printList(d.out, rows, "no event waits", list.Total-len(list.Events))
}

// Times of an order.
const (
	decidedWithin = 15 * time.Second       // how long an order waits, after its first pass, for events that a worker is deciding
	orderAgain    = 500 * time.Millisecond // how often it looks for them
)

// order gives an order to the events of a path. An event that a worker is deciding gets the order afterwards, if it then waits again.
func (d *delayedCommand) order(ctx context.Context, o delayedOrder, arguments []string) error {
	path, ids := arguments[0], arguments[1:]
	events, err := d.read(ctx, path, ids)
	if err != nil {
		return err
	}
	missing := d.reportMissing(ids, events)
	held := len(events)
	events = slices.DeleteFunc(events, func(e delayed.Event) bool { return !e.Undecided() })
	if held -= len(events); held > 0 {
		_, _ = fmt.Fprintf(d.problems, "%s not %s: they are on their way to a channel or to a worker\n", countEvents(held), o.done)
	}
	by := cmp.Or(d.by, setup.NATSUser(d.settings.NATS), setup.UserAtHost(), "unknown")
	orders := &orders{
		store: d.store, problems: d.problems, bar: d.bar, held: held, words: o,
		order: room.Order{Action: o.action, By: plain.Short(plain.Header(by), longestOperator)},
	}
	events = orders.withoutOrdered(events)
	if len(events) > 0 && !d.yes {
		question := fmt.Sprintf("%s %s %s?", capital(string(o.action)), countEvents(len(events)), o.without)
		if agreed, err := screen.Confirm(ctx, d.in, d.problems, question); !agreed {
			return err
		}
	}
	err = orders.give(ctx, events, func() ([]delayed.Event, error) { return d.read(ctx, path, ids) })
	_, _ = fmt.Fprintf(d.out, "%s %s\n", o.done, countEvents(orders.given))
	if orders.gone > 0 {
		_, _ = fmt.Fprintf(d.out, "(a worker has decided %s meanwhile)\n", countEvents(orders.gone))
	}
	if err == nil && (missing > 0 || len(ids) > 0 && orders.held+orders.gone > 0) {
		err = errReported
	}
	return err
}

// reportMissing prints the IDs that no event has, and returns their number.
func (d *delayedCommand) reportMissing(ids []string, events []delayed.Event) (missing int) {
	for _, id := range ids {
		shown := event.ShownAs(id)
		if !slices.ContainsFunc(events, func(e delayed.Event) bool { return slices.Contains(shown, e.ID) }) {
			_, _ = fmt.Fprintf(d.problems, "%s: no such event waits\n", plain.Line(id))
			missing++
		}
	}
	return missing
}

func countEvents(n int) string { return screen.Numbered(n, "event", "events") }

// orders gives one order to many events.
type orders struct {
	store interface {
		Clock(ctx context.Context) (func() time.Time, error)
		Order(ctx context.Context, e delayed.Event, order room.Order, now time.Time) (ordered bool, err error)
	}
	problems    io.Writer
	bar         *screen.Progress
	order       room.Order
	words       delayedOrder
	given, gone int
	held        int // events that the order does not reach
}

// withoutOrdered removes the events that have an order already, unless they wait with another one. It prints who gave these orders.
func (o *orders) withoutOrdered(events []delayed.Event) (left []delayed.Event) {
	ordered := make(map[room.Order]int)
	for _, e := range events {
		if e.Order.Action == "" || e.Scheduled() && e.Order.Action != o.order.Action {
			left = append(left, e)
		} else {
			ordered[e.Order]++
		}
	}
	for order, n := range ordered {
		_, _ = fmt.Fprintf(o.problems, "%s already ordered: %s by %s\n", countEvents(n), order.Action, plain.Line(order.By))
		if order.Action != o.order.Action {
			o.held += n
		}
	}
	return left
}

// give gives the order to events. It reads again which of them wait as long as workers are deciding some of them.
func (o *orders) give(ctx context.Context, events []delayed.Event, read func() ([]delayed.Event, error)) error {
	var end time.Time
	for len(events) > 0 {
		now, err := o.store.Clock(ctx)
		if err != nil {
			return err
		}
		undecided := make(map[string]bool)
		err = changeEach(ctx, events, o.bar, o.words.doing, countEvents, func(ctx context.Context, e delayed.Event) error {
			ordered, err := o.store.Order(ctx, e, o.order, now())
			switch {
			case err != nil:
				return fmt.Errorf("event %s of %s: %w", plain.Line(e.ID), e.Category, err)
			case ordered:
				o.given++
			default:
				undecided[e.Entry.Origin.String()+e.Identity] = true
			}
			return nil
		})
		if err != nil || len(undecided) == 0 {
			return err
		}
		switch { // a pass over many events may take longer than the wait
		case end.IsZero():
			end = time.Now().Add(decidedWithin)
		case time.Now().After(end):
			return fmt.Errorf("%s left: no worker has decided about them in time; run the command again", countEvents(len(undecided)))
		}
		if !await.For(ctx, orderAgain) {
			return context.Cause(ctx)
		}
		if events, err = read(); err != nil {
			return err
		}
		events = slices.DeleteFunc(events, func(e delayed.Event) bool {
			return !undecided[e.Entry.Origin.String()+e.Identity] || !e.Undecided()
		})
		o.gone += len(undecided) - len(events)
		events = o.withoutOrdered(events)
	}
	return nil
}

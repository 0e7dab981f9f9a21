package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/schedule"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

type muteCommand struct {
	command limitsCommand // its flags, and what it is connected to

	until  string
	every  string
	reason string
	spares string
	weekly schedule.Weekly // of every
}

func newMuteCommands() []*cobra.Command {
	m := &muteCommand{}
	mute := &cobra.Command{
		Use:   "mute PATH",
		Short: "Send nothing of a path and everything below it for some time",
		Long: "Drop the events of a path, or a pattern, and of everything below it until an end. Soon after the end, each\n" +
			"channel gets a digest of the drops of the mute. Resolved events of messages that are out are still sent.\n" +
			"When the command returns, no worker sends an event of the path any more. > is the path of all events.\n\n" +
			"With --every, the mute recurs: days (Mon, Mon-Fri, Sat,Sun or daily), times and a time zone. A path may have several\n" +
			"such schedules, which add up.",
		Example: "  notifier mute payments --for 2h --reason 'ledger migration'\n" +
			"  notifier mute 'payments.*' --until 18:00 --reason 'ledger migration'\n" +
			"  notifier mute payments --until 2026-12-01T06:00:00+01:00 --reason 'provider is down' --except critical\n" +
			"  notifier mute db --every 'Tue 02:00-04:00 Europe/Paris' --reason 'weekly vacuum'",
		Args: cobra.MatchAll(numberOfArguments(1, 1), m.check),
		RunE: m.command.connected(stores, m.mute),
	}
	unmute := &cobra.Command{
		Use:   "unmute PATH",
		Short: "End the mutes of a path, or remove a recurring one",
		Long: "End the mutes of a path that are in force. With --every, remove that schedule of the path, and end the mute that it has\n" +
			"begun. Without it, the schedules of the path stay: they mute the path again at their next time.",
		Example: "  notifier unmute payments\n" +
			"  notifier unmute db --every 'Tue 02:00-04:00 Europe/Paris'",
		Args: cobra.MatchAll(numberOfArguments(1, 1), m.checkSchedule),
		RunE: m.command.connected(removes, m.unmute),
	}
	list := &cobra.Command{
		Use:   "mutes",
		Short: "List the mutes in force and the recurring ones",
		RunE:  m.command.connected(reads, m.list),
	}
	flags := mute.Flags()
	durationVar(mute, &m.command.lasts, "for", "how long, such as 30m, 2h or 7d; at most 30d")
	flags.StringVar(&m.until, "until", "", "until when: 18:00 today, or a time such as 2026-12-01T06:00:00+01:00")
	flags.StringVar(&m.reason, "reason", "", "why; workers show it in digests, the journal and notifier why")
	flags.StringVar(&m.spares, "except", "", "severity of events that are sent anyway: critical")
	flags.BoolVar(&m.command.yes, "yes", false, "mute all events (>), or replace a mute by one that ends earlier or has another exception")
	for _, changing := range []*cobra.Command{mute, unmute} {
		changing.Flags().StringVar(&m.every, "every", "", "schedule, such as 'Tue 02:00-04:00 Europe/Paris'")
		changing.Flags().StringVar(&m.command.by, "as", "", "name of the author (default: the user of the NATS connection, else user@host)")
	}
	list.Flags().BoolVar(&m.command.asJSON, "json", false, "print one line of JSON")
	return []*cobra.Command{mute, unmute, list}
}

const longestReason = 200

func (m *muteCommand) check(cmd *cobra.Command, arguments []string) error {
	ends := 0
	for _, flag := range []string{"for", "until", "every"} {
		if cmd.Flags().Changed(flag) {
			ends++
		}
	}
	lasts := time.Duration(m.command.lasts)
	switch m.reason = strings.TrimSpace(m.reason); {
	case ends != 1:
		return errors.New("expected one of --for, --until and --every: a mute has an end")
	case m.reason == "":
		return errors.New("expected --reason: people will want to know why nothing is sent")
	case len([]rune(m.reason)) > longestReason || plain.Line(m.reason) != m.reason:
		return fmt.Errorf("--reason has more than %d characters or more than one line", longestReason)
	case cmd.Flags().Changed("for") && (lasts < shortestLength || lasts > limits.LongestMute):
		return fmt.Errorf("--for %s is not between 1s and 30d", &m.command.lasts)
	case m.spares != "" && m.spares != string(event.SeverityCritical):
		return fmt.Errorf("--except %.40s: only critical can be excepted", m.spares)
	case isLevel(arguments[0]):
		return fmt.Errorf("%q is a limit and no path of events; '>' mutes all events", arguments[0])
	case isEverything(arguments[0]) && !m.command.yes:
		return errors.New("this mutes all events: confirm with --yes")
	}
	if err := emptyFlag(cmd, "until", "except"); err != nil {
		return err
	}
	if _, err := m.end(time.Now()); err != nil {
		return err
	}
	return m.checkSchedule(cmd, arguments)
}

// checkSchedule reads --every.
func (m *muteCommand) checkSchedule(cmd *cobra.Command, arguments []string) (err error) {
	if err := emptyFlag(cmd, "every"); err != nil {
		return err
	}
	if !isEverything(arguments[0]) {
		if _, err := event.ParsePattern(arguments[0]); err != nil {
			return err
		}
	}
	if m.every != "" {
		m.weekly, err = schedule.Parse(m.every)
	}
	return err
}

func isEverything(path string) bool { return path == event.Everything || path == "*" }

func patternOf(path string) string {
	if isEverything(path) {
		return "*"
	}
	return path
}

// end returns the end of a mute that does not recur, by the clock whose time is now. --until is by the clock of this host.
func (m *muteCommand) end(now time.Time) (time.Time, error) {
	if m.until == "" {
		return now.Add(time.Duration(m.command.lasts)), nil
	}
	here := time.Now()
	until, err := time.Parse(time.RFC3339, m.until)
	if err != nil {
		clock, isClock := time.ParseInLocation("15:04", m.until, time.Local)
		if isClock != nil {
			return until, fmt.Errorf("--until %.40s is neither a time of today, such as 18:00, nor one such as %s", m.until, here.Format(time.RFC3339))
		}
		until = time.Date(here.Year(), here.Month(), here.Day(), clock.Hour(), clock.Minute(), 0, 0, time.Local)
		if !until.After(here) {
			tomorrow := time.Date(here.Year(), here.Month(), here.Day()+1, clock.Hour(), clock.Minute(), 0, 0, time.Local)
			return until, fmt.Errorf("--until %s is in the past; for tomorrow, --until %s", m.until, tomorrow.Format(time.RFC3339))
		}
	}
	switch {
	case !until.After(here):
		return until, fmt.Errorf("--until %s is in the past", m.until)
	case until.Sub(here) > limits.LongestMute:
		return until, fmt.Errorf("--until %s is more than 30d from now", m.until)
	}
	return until, nil
}

// mute stores a mute. It returns when no worker sends an event of the path any more.
func (m *muteCommand) mute(ctx context.Context, arguments []string) error {
	mute := overrides.NewMute(patternOf(arguments[0]), m.reason, m.spares)
	if m.every != "" {
		mute = mute.Recurring(m.weekly)
	}
	bucket, s, err := m.command.load(ctx)
	if err != nil {
		return err
	}
	until, _ := m.end(s.Read) // checked before
	if err := m.replace(s, mute.Name, until); err != nil {
		return err
	}
	set, err := bucket.SetMute(ctx, s, mute, until)
	if err != nil {
		return err
	}
	err = m.command.enforce(ctx, bucket)
	path := set.Name.MutedPath()
	m.command.warnOfPath(path)
	if m.every != "" {
		_, _ = fmt.Fprintf(m.command.out, "%s is muted %s, next at %s\n", path, set.Muting.Every, screen.Local(nextWindow(m.weekly)))
	}
	if !set.Until.IsZero() {
		_, _ = fmt.Fprintf(m.command.out, "%s is muted until %s%s\n", path, screen.Local(set.Until), spared(set.Muting.Spare))
	}
	if err != nil || set.Until.IsZero() {
		return err
	}
	if !await.For(ctx, throttle.MutedAfter) { // workers whose limits were confirmed just before may be posting
		return fmt.Errorf("the mute is in force, but posts that had begun before may still arrive: %w", context.Cause(ctx))
	}
	return nil
}

// replace prints the mute in force that a mute replaces. It returns an error if that changes what is muted now, unless the user has confirmed.
func (m *muteCommand) replace(s overrides.Snapshot, name overrides.Name, until time.Time) error {
	for _, mute := range setup.Mutes(s) {
		switch {
		case name.Kind != overrides.Mute || mute.Path != name.MutedPath() || mute.Rule != "":
			continue
		case !m.command.yes && (until.Before(mute.Until) || m.spares != mute.Spare):
			return &UsageError{fmt.Errorf("%s; to end this mute earlier, or to change its exception, confirm with --yes", mutedText(mute))}
		}
		_, _ = fmt.Fprintf(m.command.out, "replaced: %s\n", mutedText(mute))
	}
	return nil
}

func mutedText(m *limits.Mute) string {
	return fmt.Sprintf("%s is muted until %s%s, by %s: %s", m.Path, screen.Local(m.Until), spared(m.Spare), author(m.By), m.Reason)
}

func spared(severity string) string {
	if severity == "" {
		return ""
	}
	return ", except " + plain.Line(severity) + " events"
}

// unmute ends the mutes of a path or removes one of its schedules.
func (m *muteCommand) unmute(ctx context.Context, arguments []string) error {
	bucket, err := m.command.limits.Bucket()
	if err != nil {
		return err
	}
	pattern, rule := patternOf(arguments[0]), ""
	if m.every != "" {
		rule = overrides.NewMute(pattern, "", "").Recurring(m.weekly).Name.Rule
	}
	ended, schedules := 0, []string(nil)
	// A worker may begin the mute of a schedule until the schedule is removed, so the mutes are read afterwards.
	for _, kind := range []overrides.Kind{overrides.Recurring, overrides.Mute} {
		s, err := bucket.Load(ctx)
		if err != nil {
			return err
		}
		for _, c := range s.Mutes {
			switch {
			case c.Name.Pattern != pattern || c.Name.Kind != kind:
				continue
			case kind == overrides.Recurring && rule == "" && !c.Lost:
				schedules = append(schedules, "'"+plain.Line(c.Muting.Every)+"'")
				continue
			case rule != "" && c.Name.Rule != rule:
				continue
			}
			revision, err := bucket.Unset(ctx, s, c.Name)
			if err != nil {
				return err
			}
			ended++
			_, _ = fmt.Fprintf(m.command.out, "the %s is removed (revision %d): %s\n", c.Name, revision, plain.Line(c.Value))
		}
	}
	if len(schedules) > 0 {
		_, _ = fmt.Fprintf(m.command.out, "%s is still muted every %s (remove that with --every)\n", arguments[0], strings.Join(schedules, " and "))
	}
	switch {
	case ended == 0 && rule != "":
		return fmt.Errorf("%s has no such schedule; notifier mutes lists its schedules", arguments[0])
	case ended == 0:
		return fmt.Errorf("%s has no mute of its own in force; notifier mutes lists all mutes", arguments[0])
	}
	return m.command.enforce(ctx, bucket)
}

type shownMute struct {
	Path   string    `json:"path"`
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	Spare  string    `json:"except,omitempty"`
	Every  string    `json:"every,omitempty"`   // its schedule
	Since  time.Time `json:"since,omitzero"`    // of a mute in force
	Until  time.Time `json:"until,omitzero"`    // of a mute in force
	Next   time.Time `json:"next,omitzero"`     // of a schedule: when its next window begins
	Fault  string    `json:"ignored,omitempty"` // why workers ignore it
}

func (m *muteCommand) list(ctx context.Context, _ []string) error {
	s, _, err := m.command.limits.InForce(ctx)
	if err != nil {
		return err
	}
	if err := m.unlisted(); err != nil {
		return err
	}
	shown := []shownMute{}
	for _, c := range s.Mutes {
		shown = append(shown, newShownMute(c))
	}
	if m.command.asJSON {
		return screen.PrintJSON(m.command.out, shown)
	}
	rows := [][]string{{"PATH", "MUTED", "BY", "EXCEPT", "REASON"}}
	for _, mute := range shown {
		when := "until " + screen.Local(mute.Until)
		switch {
		case mute.Until.IsZero():
			when = mute.Every + ", next " + screen.Local(mute.Next)
		case !mute.Until.After(time.Now()):
			when += ", and in force until a worker has stored its end"
		}
		if mute.Fault != "" {
			when = "not at all: " + mute.Fault
		}
		rows = append(rows, []string{mute.Path, when, author(mute.By), cmp.Or(mute.Spare, "-"), mute.Reason})
	}
	return printList(m.command.out, rows, "nothing is muted", 0)
}

// unlisted returns an error if the bucket is absent and the running workers apply mutes of it.
func (m *muteCommand) unlisted() error {
	if _, err := m.command.limits.Bucket(); err != nil && len(m.command.theirs.Reports) > 0 {
		if kept := len(status.Newest(m.command.theirs.Reports).Mutes); kept > 0 {
			return fmt.Errorf("%w; the workers keep %s, which notifier status shows", err, screen.Numbered(kept, "mute", "mutes"))
		}
	}
	return nil
}

func newShownMute(c overrides.Change) shownMute {
	shown := shownMute{
		Path: c.Name.MutedPath(), Reason: plain.Line(c.Value), By: c.By, Spare: plain.Line(c.Muting.Spare), Every: plain.Line(c.Muting.Every), Until: c.Until,
	}
	if c.Lost {
		shown.Fault = "forged messages have replaced it; set it again or remove it with notifier unmute"
		return shown
	}
	if c.Name.Kind == overrides.Mute {
		shown.Since = c.Changed.UTC()
		if c.Until.IsZero() {
			shown.Fault = "it has no end"
		}
		return shown
	}
	weekly, err := schedule.Parse(c.Muting.Every)
	if err != nil {
		shown.Fault = plain.Line(err.Error())
		return shown
	}
	shown.Next = nextWindow(weekly).UTC()
	return shown
}

// nextWindow returns when the next window begins. The present window is a mute of its own, unless somebody has ended it.
func nextWindow(weekly schedule.Weekly) time.Time {
	now := time.Now()
	begin, end := weekly.Next(now)
	if !begin.After(now) {
		begin, _ = weekly.Next(end)
	}
	return begin
}

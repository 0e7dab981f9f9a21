package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// weekStart is the Monday on which the generated week begins.
var weekStart = time.Date(2026, time.January, 5, 0, 0, 0, 0, time.UTC)

// WeekSeed is the seed of the week that the command and the page show.
const WeekSeed = 1

const weekHours = 7 * 24

// Week returns the events of an on-call week. The seed determines them: quiet working days, a storm of 40 alerts on 50 hosts, a check that
// flaps for six hours, a deployment, and a night with a single alert.
func Week(seed uint64) *History {
	w := week{history: new(History), random: rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // the week is no secret
	for day := range 5 {
		for _, category := range []string{"payments", "search", "orders.mail"} {
			for at := 9 * time.Hour; at < 18*time.Hour; at += w.about(80 * time.Minute) {
				w.add(time.Duration(day)*24*time.Hour+at, Event{Category: category})
			}
		}
	}
	w.storm(26*time.Hour + 14*time.Minute) // Tuesday, 02:14
	w.flaps(57 * time.Hour)                // Wednesday, 09:00
	w.deploys(87 * time.Hour)              // Thursday, 15:00
	const alert = 99*time.Hour + 40*time.Minute
	w.alert(alert, "database", "disk of db-1", true) // Friday, 03:40
	w.alert(alert+30*time.Minute, "database", "disk of db-1", false)
	return w.history
}

type week struct {
	history *History
	random  *rand.Rand
}

// about returns a time near the given one.
func (w week) about(d time.Duration) time.Duration {
	return d/2 + time.Duration(w.random.Int64N(int64(d)))
}

func (w week) add(at time.Duration, e Event) {
	e.Number = uint64(len(w.history.events) + 1)
	e.At, e.Cost = weekStart.Add(at).Truncate(time.Microsecond), 1
	e.Identity = e.Category + " " + strconv.FormatUint(e.Number, 10)
	w.history.events = append(w.history.events, e)
}

func (w week) alert(at time.Duration, category, key string, fires bool) {
	w.add(at, Event{Category: category, Key: key, Fires: fires, Resolves: !fires})
}

// storm has 40 alerts fire on each of 50 hosts within ten minutes. Each is repeated every ten minutes, and is resolved after about an hour.
func (w week) storm(begin time.Duration) {
	const alerts, hosts, repeats = 40, 50, 6
	for alert := range alerts {
		for host := range hosts {
			key := fmt.Sprintf("alert-%d on host-%d", alert, host)
			at := begin + time.Duration(w.random.Int64N(int64(10*time.Minute)))
			for range repeats {
				w.alert(at, "hosts", key, true)
				at += 10 * time.Minute
			}
			w.alert(at, "hosts", key, false)
		}
	}
}

// flaps has one check change every two minutes or so, for six hours.
func (w week) flaps(begin time.Duration) {
	fires := true
	for at := begin; at < begin+6*time.Hour; at += w.about(2 * time.Minute) {
		w.alert(at, "checks", "health of web-3", fires)
		fires = !fires
	}
}

// deploys has 30 services report three steps each within a quarter of an hour.
func (w week) deploys(begin time.Duration) {
	for service := range 30 {
		at := begin + time.Duration(w.random.Int64N(int64(10*time.Minute)))
		for range 3 {
			w.add(at, Event{Category: "deploys", Key: fmt.Sprint("service-", service)})
			at += w.about(time.Minute)
		}
	}
}

// Variant is a way to handle the events of a week.
type Variant struct {
	Name string
	Reporter
}

// Reporter is an Evaluator that also reports which keys are steady, at the times that Reports returns: a [Limiter].
type Reporter interface {
	Evaluator
	Reports(upto time.Time) []time.Time
}

// WeekVariants returns four variants: the limits of a plan, and the same limits with one more for each key, with repeated events folded, or
// with a rule for flapping.
func WeekVariants(plan limits.Plan, retention, pairTTL time.Duration) ([]Variant, error) {
	ofKeys, _ := limits.ParseOverrides("*@key=1/1h") // the text is valid
	var variants []Variant
	for _, v := range []struct {
		name      string
		overrides []limits.Override
		fold      time.Duration
		flap      store.Flap
	}{
		{name: "the limits of the settings"},
		{name: "with *@key=1/1h", overrides: ofKeys},
		{name: "with NOTIFIER_FOLD=>=1h", fold: time.Hour},
		{name: "with NOTIFIER_FLAP=4/20m", flap: store.Flap{Changes: 4, Window: 20 * time.Minute}},
	} {
		tree, err := limits.NewTree(plan.With(v.overrides, limits.FromEnvironment))
		if err != nil {
			return nil, err
		}
		fold := func(string) time.Duration { return v.fold }
		variants = append(variants, Variant{v.name, NewLimiter(Options{Tree: tree, Retention: retention, PairTTL: pairTTL, Fold: fold, Flap: v.flap})})
	}
	return variants, nil
}

// WeekRow is what a variant makes of a week.
type WeekRow struct {
	Name     string         `json:"name"`
	Events   int            `json:"events"`
	Sent     int            `json:"sent"`
	Steady   int            `json:"steady"`         // reports that a flapping key is steady, which are messages too
	Keys     int            `json:"keys"`           // of the events that were sent: how many different keys
	Folded   int            `json:"folded"`         // events that are counted in a message that was sent
	Digested int            `json:"in_digests"`     // dropped events, which digests report
	Never    int            `json:"never_reported"` // events that neither a message nor the count in a message nor a digest shows
	Silence  time.Duration  `json:"-"`              // the longest time in which events of one category were dropped and no event of it was sent
	PerHour  [weekHours]int `json:"sent_per_hour"`  // messages sent
}

// ReplayWeek replays a week by each variant.
func ReplayWeek(ctx context.Context, h *History, variants []Variant) ([]WeekRow, error) {
	rows := make([]WeekRow, len(variants))
	for i, variant := range variants {
		counting := weekCounter{Evaluator: variant.Reporter, row: &rows[i], keys: make(map[string]bool), quiet: make(map[string]time.Time), shown: make(map[string]int64)}
		report, err := h.Replay(ctx, counting, func(_, _ int64) {})
		if err != nil {
			return nil, err
		}
		made := variant.Reports(weekStart.Add(weekHours * time.Hour))
		for _, at := range made {
			rows[i].PerHour[min(int(at.Sub(weekStart)/time.Hour), weekHours-1)]++
		}
		rows[i].Steady = len(made)
		total := report.Total
		rows[i].Name, rows[i].Keys = variant.Name, len(counting.keys)
		rows[i].Events, rows[i].Sent, rows[i].Folded, rows[i].Digested = total.Seen, total.Sent, total.Folded, total.Drops()
	}
	return rows, nil
}

// weekCounter counts what a report does not have.
type weekCounter struct {
	Evaluator
	row   *WeekRow
	keys  map[string]bool
	quiet map[string]time.Time // by category: the first drop since an event was sent
	shown map[string]int64     // by category and key: how many events the newest message that is not resolved shows; 0: there is no message
}

// reports returns false if nothing reports the event: no message, no next number in a message of its key, and no digest.
func (c weekCounter) reports(e Event, verdict Verdict) bool {
	key := e.Category + "\n" + e.Key
	switch verdict.Outcome {
	case Sent:
		if c.shown[key] = 1; e.Resolves || e.Key == "" {
			delete(c.shown, key)
		}
		return true
	case Folded:
		if c.shown[key] == 0 || verdict.Number != c.shown[key]+1 {
			return false
		}
		c.shown[key]++
		return true
	case Dropped:
		return verdict.Level != ""
	}
	return false // a duplicate: but each event of a week has an identity of its own
}

// Evaluate implements [Evaluator].
func (c weekCounter) Evaluate(events []Event) ([]Verdict, error) {
	verdicts, err := c.Evaluator.Evaluate(events)
	for i, verdict := range verdicts {
		e := events[i]
		if !c.reports(e, verdict) {
			c.row.Never++
		}
		since, isQuiet := c.quiet[e.Category]
		switch verdict.Outcome {
		case Sent:
			delete(c.quiet, e.Category)
			c.row.PerHour[int(e.At.Sub(weekStart)/time.Hour)]++
			if e.Key != "" {
				c.keys[e.Key] = true
			}
		case Dropped:
			if !isQuiet {
				since, isQuiet = e.At, true
				c.quiet[e.Category] = since
			}
		case Folded: // the message of its key shows it
			delete(c.quiet, e.Category)
		}
		if isQuiet {
			c.row.Silence = max(c.row.Silence, e.At.Sub(since))
		}
	}
	return verdicts, err
}

// MarshalJSON returns the form for programs.
func (r WeekRow) MarshalJSON() ([]byte, error) {
	type fields WeekRow
	return json.Marshal(struct {
		fields
		Silence float64 `json:"longest_silence_seconds"`
	}{fields(r), r.Silence.Seconds()})
}

// WriteWeek prints a line for each row.
func WriteWeek(out io.Writer, rows []WeekRow) error {
	table := [][]string{{"on-call week", "events", "messages sent", "different keys", "folded", "in digests", "longest silence", "never reported"}}
	for _, row := range rows {
		table = append(table, []string{
			row.Name, strconv.Itoa(row.Events), strconv.Itoa(row.Sent + row.Steady), strconv.Itoa(row.Keys), strconv.Itoa(row.Folded), strconv.Itoa(row.Digested),
			formatSpan(row.Silence), strconv.Itoa(row.Never),
		})
	}
	return writeColumns(out, table, 0)
}

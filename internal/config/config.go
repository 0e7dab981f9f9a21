package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/kelseyhightower/envconfig"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Values of Config.Sink.
const (
	SinkSlack   = "slack"
	SinkConsole = "console"
)

// Values of Redis.Failure: what a worker does while Redis is unavailable.
const (
	FailureHold   = "hold"   // wait; events stay in JetStream
	FailureLocal  = "local"  // wait for the grace, then count on its own
	FailureOpen   = "open"   // send everything
	FailureClosed = "closed" // drop everything
)

// Values of Redis.Scripting: how the scripts run.
const (
	ScriptingEval     = "eval"
	ScriptingFunction = "function"
)

// Config is the settings of one process, checked.
type Config struct {
	NATS                 NATS
	Stream               Stream
	Room                 Room
	DLQ                  DLQ
	Redis                Redis
	Limits               Limits
	Sink                 string // SinkSlack or SinkConsole
	Slack                Slack
	SummaryInterval      time.Duration // at least 1s; 0 for no summaries
	PairTTL              time.Duration // above 0
	Delay                Delay
	Event                Event
	Concurrency          int // posts at once to one channel, 1 to 1024
	HTTP                 HTTP
	Log                  Log
	ShutdownTimeout      time.Duration // above 0
	MetricsMaxCategories int           // 1 to 10000
}

// NATS is the server that events come from.
type NATS struct {
	URL       Secret // comma-separated URLs of one deployment; they may hold credentials
	URLSet    bool   // URL is not the default
	CredsFile string // "" for none, and so with User, Password and Token
	User      string
	Password  Secret
	Token     Secret
	TLS       TLS

	Stream    string
	Subject   string // prefix: events come on it and on everything below it
	Consumer  string
	Provision bool          // create what is absent
	AckWait   time.Duration // longer than one Slack request and one Redis call together
	Replicas  int           // of what is created: 1, 3 or 5; 0: what the cluster allows
	Inbox     string        // prefix of the subjects on which replies come
}

// Stream bounds the producers' stream, where it is created.
type Stream struct {
	MaxBytes int64         // 0 for no bound
	MaxAge   time.Duration // 0 for no bound
}

// Room is the workers' own stream. It overlaps neither the stream nor the subjects of NATS and DLQ; its subjects are below
// the one of NATS with "-room" appended.
type Room struct {
	Stream string
	Max    int // events of one first-level category that wait at once, 1 to 1,000,000
}

// DLQ is where dead letters go. It overlaps neither the streams nor the subjects of NATS and Room.
type DLQ struct {
	Stream        string
	Subject       string        // prefix: dead letters go to <Subject>.<reason>.<first level of the category>
	MaxPerSubject int           // 1 to 1,000,000
	MaxBytes      int64         // 0 for no bound
	MaxAge        time.Duration // 0 for no bound
}

// Redis is the server that holds the shared budget.
type Redis struct {
	URL      Secret // redis:// or rediss://; it may hold credentials
	URLSet   bool   // URL is not the default
	Password Secret // "" for none, or for the one in URL
	TLS      TLS
	Prefix   string        // of every key, and its hash tag; without braces
	Timeout  time.Duration // of one call, above 0
	Failure  string        // one of the Failure constants
	Grace    time.Duration // 0 for none

	Scripting string // one of the Scripting constants
}

// Limits is the budget.
type Limits struct {
	Global       limits.Limits
	Category     limits.Limits      // of each first-level category that no rule matches
	Rules        []limits.Rule      // in the order given, no pattern twice
	Guarantees   []limits.Guarantee // that the global limit can keep
	ShadowLimits []limits.Override  // none: no shadow
	Bucket       string             // of live overrides
	DenyCacheTTL time.Duration      // 0 for no cache
	Shadow       bool               // decide and measure, but forward everything

	origins map[string]limits.Origin
}

// Plan is what the limits in force are built from, but for live overrides.
func (l Limits) Plan() limits.Plan {
	return limits.Plan{Global: l.Global, Category: l.Category, Rules: l.Rules, Guarantees: l.Guarantees, Origins: l.origins}
}

// Slack is how notifications are posted. With SinkSlack there is either a token and a channel
// or a webhook; with SinkConsole there may be neither.
type Slack struct {
	Token      Secret
	Channel    string              // where no route matches
	Routes     event.Table[string] // channels
	WebhookURL Secret
	APIURL     string        // "" for Slack's own
	Timeout    time.Duration // of one request, above 0

	Rate     limits.Limit          // of each channel: a count above 0 and a window; the zero Limit for none
	Burst    int                   // of each channel, 1 to 100
	Mentions event.Table[[]string] // without the "@": here, channel, everyone, IDs of users and groups, handles of groups

	TemplateFile string // "" for the default template
	Template     string // what the file holds
}

// Delay is how long denied events wait for a slot instead of being dropped.
type Delay struct {
	Longest event.Scopes[time.Duration] // above 0, up to 366 days
}

// MostPatient is the longest that an event of any category may wait; 0 if none does.
func (d Delay) MostPatient() time.Duration {
	var longest time.Duration
	for _, entry := range d.Longest.Entries() {
		longest = max(longest, entry.Value)
	}
	return longest
}

// For is how long denied events of a category may wait; 0 if they do not.
func (d Delay) For(category string) time.Duration {
	longest, _ := d.Longest.Lookup(category)
	return longest
}

// Event bounds what is accepted.
type Event struct {
	MaxAge   time.Duration // since JetStream stored it; 0 for no bound
	MaxBytes int           // of a body, 1 to 64 MiB
}

// HTTP is the server for metrics and probes.
type HTTP struct {
	Addr    string // host:port; "" for no server
	AddrSet bool   // Addr is not the default
}

// Log is how the log is written.
type Log struct {
	Level  slog.Level
	Format string // "json" or "text"
}

// Options are defaults that depend on the command.
type Options struct {
	Sink     string // where neither a sink nor Slack is set; "" makes that a fault
	HTTPAddr string // instead of the usual default; "" keeps that, and so below
	LogLevel,
	LogFormat string

	// CheckTemplate, if set, says what is wrong with a template for messages. What it says is a fault of the setting.
	CheckTemplate func(text string) error
}

// Load reads the settings of the process. The texts it returns are warnings, each of one line.
// The error is a *Faults with every fault found; the Config is then the zero Config.
func Load(o Options) (Config, []string, error) {
	v, settings := newVariables()
	v.HTTP.Addr.fallback = cmp.Or(o.HTTPAddr, v.HTTP.Addr.fallback)
	v.Log.Level.fallback = cmp.Or(o.LogLevel, v.Log.Level.fallback)
	v.Log.Format.fallback = cmp.Or(o.LogFormat, v.Log.Format.fallback)
	if err := envconfig.Process(prefix, v); err != nil {
		panic(fmt.Sprintf("config: a field of the settings cannot be read at all: %v", err))
	}

	var faults Faults
	for _, s := range settings {
		faults = append(faults, s.resolve()...)
	}
	sink, betweenFaults := v.between(o)
	faults = append(faults, betweenFaults...)
	faults = append(faults, unknown(settings)...)
	if len(faults) > 0 {
		return Config{}, nil, &faults
	}

	c := v.config()
	c.Sink = sink
	return c, v.warnings(c), nil
}

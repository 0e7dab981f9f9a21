package config

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Values of Config.Sink.
const (
	SinkSlack   = "slack"
	SinkConsole = "console"
)

// Values of Slack.LookUp.
const (
	LookUpAuto = "auto"
	LookUpOff  = "off"
)

// Config is the settings of one process, checked.
//
// A field with a form is a setting. Its tags: env is the name of the variable without NOTIFIER_, and below the env of its group if the
// group has one; form names an entry of forms; default applies if the variable is not set; secret allows a file instead; shared says that
// all workers of a deployment need the same value; desc is for the table of settings, where single quotes enclose literal text.
type Config struct {
	NATS            NATS
	Stream          Stream
	Room            Room
	DLQ             DLQ
	Journal         Journal
	Redis           Redis
	Limits          Limits
	PairTTL         time.Duration               `env:"PAIR_TTL" form:"window" shared:"true" default:"7d" desc:"how long a firing event can be resolved, counted from its newest message or repetition"`
	Remind          time.Duration               `env:"REMIND" form:"reminder" shared:"true" default:"0" desc:"a firing event that is repeated so long after its newest message, and is not resolved, is posted again; '0': never"`
	Fold            event.Scopes[time.Duration] `env:"FOLD" form:"folds" shared:"true" desc:"an event whose key has a message of that age or younger, which is not resolved, is counted in that message instead of being posted: 'path=duration,…' or 'path=off'; 'path.>' stands for all paths below, '>' for everything; not set: off"`
	Flap            Flap                        `env:"FLAP" form:"flap" shared:"true" default:"off" desc:"a key that changes so often between firing and resolved within the window is flapping: its message says so, and further changes are counted in that message until it is steady for a window: '<changes>/<window>', or 'off'"`
	SummaryInterval time.Duration               `env:"SUMMARY_INTERVAL" form:"summary interval" shared:"true" default:"30m" desc:"shortest time between two digests of dropped events in a channel; '0': no digests"`
	Delay           Delay
	Sink            string `env:"SINK" form:"sink" shared:"true" desc:"'slack', or 'console', which prints one line for each message; not set: 'slack' if a Slack token or webhook is set, else an error"`
	Slack           Slack
	Event           Event
	Concurrency     int `env:"CONCURRENCY" form:"concurrency" default:"8" desc:"largest number of concurrent posts to one channel, up to 1024"`
	HTTP            HTTP
	Page            Page
	Ingest          Ingest
	Log             Log

	Drain                time.Duration `env:"DRAIN" form:"duration" default:"5s" desc:"how long 'notifier ingest' keeps accepting events after SIGTERM while it is not ready"`
	ShutdownTimeout      time.Duration `env:"SHUTDOWN_TIMEOUT" form:"positive" default:"25s" desc:"time for the deliveries under way after SIGTERM, then they are given back to JetStream; of 'notifier ingest', for the requests under way after NOTIFIER_DRAIN"`
	MetricsMaxCategories int           `env:"METRICS_MAX_CATEGORIES" form:"categories" default:"50" desc:"categories with a label value of their own in the metrics, up to 10000: those named in settings, then the first that come; all others are 'other'"`

	Shared Shared // the settings that all workers need alike
}

// NATS is the server that events come from. The streams and subjects of NATS, Room, DLQ and Journal do not overlap.
type NATS struct {
	URL       Secret `env:"NATS_URL" form:"NATS servers" default:"nats://127.0.0.1:4222" secret:"true" desc:"NATS servers, comma separated: 'nats://', 'tls://', 'ws://' or 'wss://'"`
	URLSet    bool   // URL is not the default
	CredsFile string `env:"NATS_CREDS_FILE" form:"file" desc:"credentials file of the NATS user"`
	User      string `env:"NATS_USER" form:"text" desc:"name of the NATS user"`
	Password  Secret `env:"NATS_PASSWORD" form:"secret" secret:"true" desc:"password of the NATS user"`
	Token     Secret `env:"NATS_TOKEN" form:"secret" secret:"true" desc:"NATS token, instead of a user"`
	TLS       TLS    `env:"NATS_TLS"`

	Stream    string        `env:"NATS_STREAM" form:"stream" shared:"true" default:"NOTIFICATIONS" desc:"stream that producers publish to"`
	Subject   string        `env:"NATS_SUBJECT" form:"subject" shared:"true" default:"notify" desc:"subject prefix of events: 'notify' stands for 'notify' and 'notify.>'"`
	Consumer  string        `env:"NATS_CONSUMER" form:"stream" shared:"true" default:"notifier" desc:"durable pull consumer of the stream, shared by all workers"`
	Provision bool          `env:"NATS_PROVISION" form:"boolean" default:"true" desc:"create absent streams, consumers and the limits bucket; existing ones are never altered ('notifier provision' updates them)"`
	AckWait   time.Duration `env:"NATS_ACK_WAIT" form:"positive" shared:"true" default:"30s" desc:"time that a worker has for an event before another one gets it; longer than one post may take: 'NOTIFIER_SLACK_TIMEOUT' and twice 'NOTIFIER_REDIS_TIMEOUT', or with 'NOTIFIER_SLACK_MENTIONS' twice and three times"`
	Replicas  int           `env:"NATS_REPLICAS" form:"replicas" default:"auto" desc:"replicas of every stream, bucket and consumer that is created: '1', '3', '5', or 'auto' (three in a cluster of three servers or more, else one)"`
	Inbox     string        `env:"NATS_INBOX" form:"subject" default:"_INBOX_notifier" desc:"subject prefix of replies; each NATS user has one of its own"`
}

// TLS is the files that a client needs for TLS. The server is always verified, against the system's authorities where there
// is no CAFile. CertFile and KeyFile come together or not at all.
type TLS struct {
	CAFile   string `env:"CA_FILE" form:"authorities" desc:"certificate authorities to trust, PEM"`
	CertFile string `env:"CERT_FILE" form:"file" desc:"client certificate, PEM"`
	KeyFile  string `env:"KEY_FILE" form:"file" desc:"key of the client certificate, PEM"`
}

// Stream bounds the producers' stream, where it is created.
type Stream struct {
	MaxBytes int64         `env:"STREAM_MAX_BYTES" form:"size" default:"1GiB" desc:"size of the stream: bytes, or '512MiB', '2GB'; '0': unbounded. A full stream refuses its producers. 'notifier provision' changes it later"`
	MaxAge   time.Duration `env:"STREAM_MAX_AGE" form:"max age" default:"7d" desc:"how long the stream keeps an event that no worker takes; '0': for ever. 'notifier provision' changes it later"`
}

// Room is the workers' own stream. Its subjects are below the subject of NATS with "-room" appended.
type Room struct {
	Stream string `env:"ROOM_STREAM" form:"stream" shared:"true" default:"NOTIFICATIONS_ROOM" desc:"stream of the workers for events that wait, on 'notify-room.>'"`
	Max    int    `env:"ROOM_MAX" form:"waiting" shared:"true" default:"10000" desc:"events of one first-level category that may wait at once, up to 1000000; further ones are dropped"`
}

// DLQ is where dead letters go.
type DLQ struct {
	Stream        string        `env:"DLQ_STREAM" form:"stream" shared:"true" default:"NOTIFICATIONS_DLQ" desc:"stream of dead letters"`
	Subject       string        `env:"DLQ_SUBJECT" form:"subject" shared:"true" default:"notify-dlq" desc:"subject prefix of dead letters: 'notify-dlq.<reason>.<first level of the category>'"`
	MaxPerSubject int           `env:"DLQ_MAX_PER_SUBJECT" form:"dead letters" shared:"true" default:"1000" desc:"dead letters that are kept of one reason and first-level category, up to 1000000; newer ones push out the oldest"`
	MaxBytes      int64         `env:"DLQ_MAX_BYTES" form:"size" default:"256MiB" desc:"size of the stream of dead letters; '0': unbounded. 'notifier provision' changes it later"`
	MaxAge        time.Duration `env:"DLQ_MAX_AGE" form:"max age" default:"30d" desc:"how long a dead letter is kept; '0': for ever. 'notifier provision' changes it later"`
}

// Journal is the stream in which workers record the outcomes of events. Its subjects are below the subject of NATS with "-journal"
// appended.
type Journal struct {
	Stream   string        `env:"JOURNAL_STREAM" form:"stream" shared:"true" default:"NOTIFICATIONS_JOURNAL" desc:"stream in which workers note what became of every event, on 'notify-journal.>'"`
	Age      time.Duration `env:"JOURNAL_AGE" form:"journal age" default:"24h" desc:"how long it is known what became of an event; '0': no journal. 'notifier provision' changes it later"`
	MaxBytes int64         `env:"JOURNAL_MAX_BYTES" form:"size" default:"256MiB" desc:"size of the journal, in which newer entries push out the oldest; '0': unbounded. 'notifier provision' changes it later"`
}

// Redis is the server that holds the shared budget.
type Redis struct {
	URL      Secret        `env:"REDIS_URL" form:"Redis URL" default:"redis://127.0.0.1:6379/0" secret:"true" desc:"'redis://' or 'rediss://'; Cluster: further nodes as '?addr=host:port'; Sentinel: '?master_name=…&addr=…'"`
	URLSet   bool          // URL is not the default
	Password Secret        `env:"REDIS_PASSWORD" form:"secret" secret:"true" desc:"password of the Redis user"`
	TLS      TLS           `env:"REDIS_TLS"`
	Prefix   string        `env:"REDIS_PREFIX" form:"Redis prefix" shared:"true" default:"notifier" desc:"prefix and hash tag of every key"`
	Timeout  time.Duration `env:"REDIS_TIMEOUT" form:"positive" default:"1s" desc:"timeout of one call to Redis"`
	Failure  string        `env:"REDIS_FAILURE" form:"failure policy" shared:"true" default:"local" desc:"while Redis is unavailable: 'hold' (wait, events stay in JetStream), or after the grace 'local' (each worker applies its share of every limit), 'open' (send all), 'closed' (drop all)"`
	Grace    time.Duration `env:"REDIS_GRACE" form:"duration" shared:"true" default:"5s" desc:"how long Redis may be unavailable before 'local', 'open' or 'closed' acts"`

	Scripting string `env:"REDIS_SCRIPTING" form:"scripting" default:"eval" desc:"how the scripts run: 'eval', or 'function' (Redis 7 or later, where nobody else may load functions)"`
}

// Limits is the budget. The global limit can keep the guarantees.
type Limits struct {
	Global       limits.Limits      `env:"GLOBAL_LIMIT" form:"limits" shared:"true" default:"100/30m" desc:"limit for all events together: '<count>/<window>', several joined with '+', or 'none'"`
	Category     limits.Limits      `env:"CATEGORY_LIMIT" form:"limits" shared:"true" default:"10/30m" desc:"limit for each first-level category"`
	Rules        []limits.Rule      `env:"LIMITS" form:"rules" shared:"true" desc:"limits of single categories: 'path=limit,…'; '*' stands for one level of a path, '@key' behind a path limits each key"`
	Guarantees   []limits.Guarantee `env:"GUARANTEES" form:"guarantees" shared:"true" desc:"slots of each global window that belong to a path: 'path=slots,…'; nobody else can take them"`
	Bucket       string             `env:"LIMITS_BUCKET" form:"bucket" shared:"true" default:"notifier-limits" desc:"JetStream key-value bucket of the limits that 'notifier limits' changes while workers run"`
	ShadowLimits []limits.Override  `env:"SHADOW_LIMITS" form:"overrides" shared:"true" desc:"limits to try out: 'path=limit,…', also 'global' and 'category'; evaluated and counted, without any effect"`
	DenyCacheTTL time.Duration      `env:"DENY_CACHE_TTL" form:"duration" default:"1s" desc:"how long a worker may remember that a limit is full, without asking Redis; '0' turns that off"`
	Shadow       bool               `env:"SHADOW" form:"boolean" shared:"true" default:"false" desc:"decide and count, but send everything"`

	Set     bool // a global limit, a category limit, a rule or a guarantee is set
	origins map[string]limits.Origin
}

// Plan is what the limits in force are built from, but for live overrides.
func (l Limits) Plan() limits.Plan {
	return limits.Plan{Global: l.Global, Category: l.Category, Rules: l.Rules, Guarantees: l.Guarantees, Origins: l.origins}
}

// FoldOf is the age up to which a message takes events of a category; 0: events of the category are not folded.
func (c *Config) FoldOf(category string) time.Duration {
	within, _ := c.Fold.Lookup(category)
	return within
}

// Delay is how long denied events wait for a slot instead of being dropped.
type Delay struct {
	Longest event.Scopes[time.Duration] `env:"DELAY" form:"delays" shared:"true" desc:"longest time that denied events wait for a slot instead of being dropped: 'path=duration,…'; 'path.>' stands for all paths below, '>' for everything"`
}

// MostPatient is the longest time that an event of any category may wait; 0: no event waits.
func (d Delay) MostPatient() time.Duration {
	var longest time.Duration
	for _, entry := range d.Longest.Entries() {
		longest = max(longest, entry.Value)
	}
	return longest
}

// For is the longest time that a denied event of a category may wait; 0: it does not wait.
func (d Delay) For(category string) time.Duration {
	longest, _ := d.Longest.Lookup(category)
	return longest
}

// Slack is how notifications are posted. With SinkSlack the settings have a token and a channel, or they have a webhook. With SinkConsole
// both may be missing. Mentions are without the "@". Template is the text of the file. A zero rate means no limit.
type Slack struct {
	Token      Secret                `env:"SLACK_TOKEN" form:"Slack token" secret:"true" desc:"bot token, for 'chat.postMessage'"`
	Channel    string                `env:"SLACK_CHANNEL" form:"channel" shared:"true" desc:"channel of categories without a route; required with a token"`
	Routes     event.Table[string]   `env:"SLACK_ROUTES" form:"routes" shared:"true" desc:"channels of single categories: 'path=channel,…'; a route applies to all paths below"`
	Mentions   event.Table[[]string] `env:"SLACK_MENTIONS" form:"mentions" shared:"true" desc:"who is mentioned: 'path=@here+@oncall,…', with '@here', '@channel', '@everyone', IDs of users and groups, handles of groups; the most specific path counts, and applies to all paths below"`
	Template   string                `env:"SLACK_TEMPLATE_FILE" form:"template" shared:"true" desc:"file of a Go template for messages; not set: the default template"`
	WebhookURL Secret                `env:"SLACK_WEBHOOK_URL" form:"webhook" secret:"true" desc:"URL of an incoming webhook, instead of a token"`
	APIURL     string                `env:"SLACK_API_URL" form:"API URL" desc:"URL of a proxy or a test server; not set: Slack itself"`
	Timeout    time.Duration         `env:"SLACK_TIMEOUT" form:"positive" default:"10s" desc:"timeout of one request to Slack"`
	LookUp     string                `env:"SLACK_LOOKUP" form:"look-up" shared:"true" default:"auto" desc:"before an event is posted that an earlier attempt may have posted, look for it in its channel: 'auto' (where the token has the scope 'channels:history' or 'groups:history'), or 'off'"`
	Settle     time.Duration         `env:"SLACK_SETTLE" form:"duration" shared:"true" default:"2s" desc:"time after which a look-up finds a message that Slack took"`

	// How many requests all workers make together.
	Rate          limits.Limit `env:"SLACK_RATE" form:"rate" shared:"true" default:"1/s" desc:"posts to one channel, by all workers together: '<count>/<window>', or 'none'"`
	Burst         int          `env:"SLACK_BURST" form:"burst" shared:"true" default:"1" desc:"posts that a quiet channel takes at once, up to 100; Slack may hide messages of a burst"`
	WorkspaceRate limits.Limit `env:"SLACK_WORKSPACE_RATE" form:"rate" shared:"true" default:"5/s" desc:"posts to all channels, by all workers together: '<count>/<window>', or 'none'; channels share it fairly"`
	UpdateRate    limits.Limit `env:"SLACK_UPDATE_RATE" form:"rate" shared:"true" default:"50/1m" desc:"updates of messages, by all workers together: '<count>/<window>', or 'none'"`
	LookUpRate    limits.Limit `env:"SLACK_LOOKUP_RATE" form:"rate" shared:"true" default:"50/1m" desc:"requests that look for posts, by all workers together: '<count>/<window>', or 'none'"`
}

// Event bounds what is accepted.
type Event struct {
	MaxAge   time.Duration `env:"EVENT_MAX_AGE" form:"duration" shared:"true" default:"1h" desc:"an event stored longer ago than this is 'expired', not sent; where NOTIFIER_DELAY is longer, that and a minute count instead; '0': no limit"`
	MaxBytes int           `env:"EVENT_MAX_BYTES" form:"body size" shared:"true" default:"262144" desc:"a larger body is 'too_large'; up to 67108864"`
}

// HTTP is the server for metrics and probes. There is none if Addr is "".
type HTTP struct {
	Addr    string `env:"HTTP_ADDR" form:"address" default:":8080" desc:"address of '/metrics', '/healthz' and '/readyz' ('dev': '127.0.0.1:8080'); 'off' turns them off"`
	AddrSet bool   // Addr is not the default
}

// Page is the live page. There is none if Addr is "".
type Page struct {
	Addr    string `env:"PAGE_ADDR" form:"address" desc:"address of the live page, such as '127.0.0.1:8081' (default of 'dev'); not set or 'off': no page"`
	AddrSet bool   // Addr is not the default
	Token   Secret `env:"PAGE_TOKEN" form:"secret" secret:"true" desc:"token that readers of the live page need; not set: everybody who reaches the page reads it"`
}

// Ingest is the server for events over HTTP, of `notifier ingest` and dev. There is none if Addr is "". A zero Rate means no limit.
type Ingest struct {
	Addr       string       `env:"INGEST_ADDR" form:"address" default:":8082" desc:"address on which 'notifier ingest' takes events over HTTP ('dev': '127.0.0.1:8082', or 'off')"`
	AddrSet    bool         // Addr is not the default
	TokensFile string       `env:"INGEST_TOKENS_FILE" form:"file" desc:"file with the tokens of the producers, lines of 'name token-hash path-pattern'; required unless the address is on loopback"`
	TLS        IngestTLS    `env:"INGEST_TLS"`
	MaxBytes   int          `env:"INGEST_MAX_BYTES" form:"body size" default:"16777216" desc:"size of the largest group of alerts over HTTP; each alert of it is an event, which NOTIFIER_EVENT_MAX_BYTES bounds"`
	Rate       limits.Limit `env:"INGEST_RATE" form:"rate" default:"1000/s" desc:"events that one instance of 'notifier ingest' takes of each token: '<count>/<window>', or 'none'"`
}

// IngestTLS is the files of the server for events. CertFile and KeyFile come together or not at all; ClientCAFile needs both.
type IngestTLS struct {
	CertFile     string `env:"CERT_FILE" form:"file" desc:"certificate of 'notifier ingest', PEM; not set: no TLS"`
	KeyFile      string `env:"KEY_FILE" form:"file" desc:"key of that certificate, PEM"`
	ClientCAFile string `env:"CLIENT_CA_FILE" form:"authorities" desc:"certificate authorities of clients, PEM; each client then needs a certificate beside its token"`
}

// Log is how the log is written.
type Log struct {
	Level  slog.Level `env:"LOG_LEVEL" form:"log level" default:"info" desc:"'debug', 'info', 'warn' or 'error'"`
	Format string     `env:"LOG_FORMAT" form:"log format" default:"json" desc:"'json', or 'text' for people"`
}

// SendTimeout is the maximum duration of one attempt to post. An attempt asks Redis for the usage and for a mention, then posts. With
// mentions it may ask Slack for the ID of a group, and return an unneeded mention.
func (c *Config) SendTimeout() time.Duration {
	longest := c.Slack.Timeout + 2*c.Redis.Timeout
	if len(c.Slack.Mentions.Entries()) > 0 {
		longest += c.Slack.Timeout + c.Redis.Timeout
	}
	return longest
}

// Options are defaults that depend on the command.
type Options struct {
	Sink     string            // where neither a sink nor Slack is set; "" makes that a fault
	Defaults map[string]string // by variable, instead of the usual ones

	// CheckTemplate, if set, returns what is wrong with a template for messages. Its error becomes a fault of the setting.
	CheckTemplate func(text string) error
}

// Load reads the settings of the process. The texts it returns are warnings, each of one line.
// The error is a *Faults with every fault found; the Config is then the zero Config.
func Load(o Options) (Config, []string, error) {
	l := newLoader()
	for _, s := range l.all {
		s.Default = cmp.Or(o.Defaults[s.Variable], s.Default)
	}
	l.read()
	l.checkBetween(o)
	l.config.Shared = sharedOf(l.all) // with what is derived from other settings, such as the sink
	l.faults = append(l.faults, unknown(l.all)...)
	if len(l.faults) > 0 {
		return Config{}, nil, &l.faults
	}
	return l.config, l.warnings(), nil
}

// Categories lists the categories that settings name by their exact path, each once: the categories of limits first, then the categories of
// guarantees, routes, delays, folds and mentions.
func (c Config) Categories() []string {
	var paths []string
	add := func(path string) {
		if !strings.ContainsAny(path, "*>") && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	for _, rule := range c.Limits.Rules {
		add(rule.Pattern.String())
	}
	for _, override := range c.Limits.ShadowLimits {
		if override.Level != limits.LevelGlobal && override.Level != limits.LevelCategory {
			path, _ := limits.SplitKey(override.Level)
			add(path)
		}
	}
	for _, guarantee := range c.Limits.Guarantees {
		add(guarantee.Path)
	}
	for _, route := range c.Slack.Routes.Entries() {
		add(route.Pattern.String())
	}
	for _, delay := range c.Delay.Longest.Entries() {
		add(delay.Scope.String())
	}
	for _, fold := range c.Fold.Entries() {
		add(fold.Scope.String())
	}
	for _, mention := range c.Slack.Mentions.Entries() {
		add(mention.Pattern.String())
	}
	return paths
}

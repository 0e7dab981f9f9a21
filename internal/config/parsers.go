package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/prometheus/common/model"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// A form parses one kind of text. Its error names the fault and the expected form, without the text of a secret. Each part of a joined error
// is a fault.
type form func(text string) (any, error)

// forms has each form by its name in the tags of Config.
var forms = map[string]form{
	"text":    as(oneLine),
	"boolean": as(boolean),

	"concurrency":  as(upTo(1024)),
	"body size":    as(upTo(64 << 20)), // the largest message that a NATS server can be set to take
	"categories":   as(upTo(10_000)),   // times the outcomes and levels, about what one scrape can carry
	"burst":        as(upTo(100)),      // a larger burst would flood a channel
	"waiting":      as(upTo(1_000_000)),
	"dead letters": as(upTo(1_000_000)),
	"size":         as(size),
	"replicas":     as(replicas),

	"positive":         as(duration(1, "not a duration above 0 and up to 366d; expected one such as 500ms, 10s or 1m30s")),
	"duration":         as(duration(0, "not a duration up to 366d; expected 0, or one such as 500ms, 10s or 1h30m")),
	"window":           as(window),
	"summary interval": as(noneOr(time.Second, "not a duration from 1s to 366d; expected one such as 30m, 12h or 1d, or 0 for no summaries")),
	"reminder":         as(noneOr(time.Second, "not a duration from 1s to 366d; expected one such as 90m, 4h or 1d, or 0 for no reminders")),
	"journal age":      as(noneOr(time.Minute, "not a duration from 1m to 366d; expected one such as 12h or 1d, or 0 for no journal")),
	"max age":          as(noneOr(time.Minute, "not a duration from 1m to 366d; expected one such as 12h, 7d or 1d12h, or 0 for no bound")),

	"failure policy": as(oneOf("hold", "local", "open", "closed")), // as a throttle.Policy
	"scripting":      as(oneOf("eval", "function")),                // as a script.Scripting
	"look-up":        as(oneOf(LookUpAuto, LookUpOff)),
	"sink":           as(oneOf(SinkSlack, SinkConsole)),
	"log format":     as(oneOf("json", "text")),
	"log level":      as(logLevel),

	"limits":     as(limits.Parse),
	"rules":      as(joined(limits.ParseRules)),
	"guarantees": as(joined(limits.ParseGuarantees)),
	"overrides":  as(joined(limits.ParseOverrides)),
	"rate":       as(rate),
	"flap":       as(flap),

	"routes":   assigned(routes, event.NewTable[string]),
	"mentions": assigned(mentions, event.NewTable[[]string]),
	"delays":   assigned(delays, event.NewScopes[time.Duration]),
	"folds":    assigned(folds, event.NewScopes[time.Duration]),
	"channel":  as(channel),

	"stream":       as(streamName),
	"bucket":       as(bucketName),
	"subject":      as(subject),
	"Redis prefix": as(redisPrefix),

	"secret":       hidden(oneLine),
	"NATS servers": hidden(natsServers),
	"Redis URL":    hidden(redisURL),
	"Slack token":  hidden(slackToken),
	"webhook":      hidden(webhook),
	"API URL":      as(apiURL),
	"address":      as(listenAddress),

	"file":        as(file),
	"authorities": as(authorities),
	"template":    as(template),
}

func as[T any](parse func(text string) (T, error)) form {
	return func(text string) (any, error) { return parse(text) }
}

// hidden is the form of a secret.
func hidden(parse func(text string) (string, error)) form {
	return func(text string) (any, error) {
		plain, err := parse(text)
		return NewSecret(plain), err
	}
}

func joined[T any](parse func(text string) (T, []error)) func(text string) (T, error) {
	return func(text string) (T, error) {
		parsed, faults := parse(text)
		return parsed, errors.Join(faults...)
	}
}

// oneLine takes any text without a line end. A file of variables with the line ends of Windows leaves one at the end of each value.
func oneLine(text string) (string, error) {
	if strings.ContainsAny(text, "\r\n") {
		return "", errors.New("holds a line end; expected one line")
	}
	return text, nil
}

func boolean(text string) (bool, error) {
	switch text {
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	return false, errors.New("not a truth value; expected true, false, 1 or 0")
}

// upTo parses a decimal number from 1 to most, with or without leading zeros.
func upTo(most int) func(text string) (int, error) {
	return func(text string) (int, error) {
		n, err := strconv.Atoi(text)
		switch {
		case err != nil && !errors.Is(err, strconv.ErrRange):
			return 0, fmt.Errorf("not a whole number; expected one from 1 to %d", most)
		case err != nil || n < 1 || n > most:
			return 0, fmt.Errorf("out of range; expected a whole number from 1 to %d", most)
		}
		return n, nil
	}
}

// units of a size: units of two letters are powers of 1000, units of three letters are powers of 1024.
var units = map[string]int64{
	"": 1, "B": 1,
	"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}

// leastSize is the smallest useful size of a stream. A smaller number probably lacks its unit.
const leastSize = 1 << 20

func size(text string) (int64, error) {
	const expected = "expected bytes, or a whole number of kB, KiB, MB, MiB, GB, GiB, TB or TiB, such as 256MiB; 0 for no bound"
	digits := strings.TrimRightFunc(text, unicode.IsLetter)
	unit, known := units[text[len(digits):]]
	n, err := strconv.ParseUint(digits, 10, 63)
	switch {
	case !known || err != nil && !errors.Is(err, strconv.ErrRange):
		return 0, errors.New("not a size; " + expected)
	case err != nil || int64(n) > math.MaxInt64/unit:
		return 0, errors.New("out of range; " + expected)
	}
	bytes := int64(n) * unit
	if bytes != 0 && bytes < leastSize {
		return 0, errors.New("smaller than 1MiB; " + expected)
	}
	return bytes, nil
}

// replicas parses a number of replicas; 0 is auto.
func replicas(text string) (int, error) {
	if text, err := oneOf("auto", "1", "3", "5")(text); err != nil || text == "auto" {
		return 0, err
	}
	return strconv.Atoi(text)
}

func duration(least time.Duration, problem string) func(text string) (time.Duration, error) {
	return func(text string) (time.Duration, error) {
		d, err := model.ParseDuration(text)
		if err != nil || time.Duration(d) < least || time.Duration(d) > limits.MaxWindow {
			return 0, errors.New(problem)
		}
		return time.Duration(d), nil
	}
}

func window(text string) (time.Duration, error) {
	d, err := limits.ParseWindow(text)
	if err != nil {
		return 0, errors.New("not a duration from 1ms to 366d; expected one such as 90m, 12h, 7d or 1d12h")
	}
	return d, nil
}

// noneOr parses 0 and windows of at least the given length.
func noneOr(least time.Duration, problem string) func(text string) (time.Duration, error) {
	return func(text string) (time.Duration, error) {
		if d, err := model.ParseDuration(text); err == nil && d == 0 {
			return 0, nil
		}
		d, err := limits.ParseWindow(text)
		if err != nil || d < least {
			return 0, errors.New(problem)
		}
		return d, nil
	}
}

func oneOf(choices ...string) func(text string) (string, error) {
	return func(text string) (string, error) {
		if slices.Contains(choices, text) {
			return text, nil
		}
		last := len(choices) - 1
		return "", fmt.Errorf("not a choice; expected %s or %s", strings.Join(choices[:last], ", "), choices[last])
	}
}

func logLevel(text string) (level slog.Level, err error) {
	if _, err := oneOf("debug", "info", "warn", "error")(text); err != nil {
		return 0, err
	}
	return level, level.UnmarshalText([]byte(text))
}

// channel parses the name or the ID of a channel. A name has no upper-case letter, and an ID has no lower-case one. A name gets the # that it lacks:
// two spellings of a channel would have a pace each, and would pause the workspace whenever Slack limits both.
func channel(text string) (string, error) {
	if name := strings.TrimPrefix(text, "#"); name == "" || strings.ContainsAny(name, "#,=/:") || strings.ContainsFunc(name, blank) {
		return "", errors.New("not a channel; expected one name such as #alerts or one ID such as C0123456789")
	}
	if strings.HasPrefix(text, "#") || strings.HasPrefix(text, "@") || strings.ToLower(text) != text {
		return text, nil
	}
	return "#" + text, nil
}

// rate parses one limit. An algorithm, a sum of limits and a count of 0 make no sense for a channel.
func rate(text string) (limits.Limit, error) {
	parsed, err := limits.Parse(text)
	switch {
	case err != nil || strings.ContainsAny(text, ":;+") || len(parsed) == 1 && parsed[0].Count == 0:
		return limits.Limit{}, errors.New("not a rate; expected <count>/<window> with a count from 1, such as 1/s or 30/1m, or none")
	case len(parsed) == 0:
		return limits.Limit{}, nil
	}
	return parsed[0], nil
}

// Flap is how often a flapping key changes within a window; the zero Flap means that no key is flapping.
type Flap limits.Limit

func (f Flap) String() string {
	if f.Count == 0 {
		return "off"
	}
	return limits.Limit(f).String()
}

// flap parses a Flap. Redis stores as many changes of each key.
func flap(text string) (Flap, error) {
	if text == "off" {
		return Flap{}, nil
	}
	parsed, err := rate(text)
	if err != nil || parsed.Count < 2 || parsed.Count > 20 || parsed.Window < time.Second || parsed.Window > 24*time.Hour {
		return Flap{}, errors.New("not <changes>/<window> with 2 to 20 changes within 1s to 24h; expected one such as 4/20m, or off")
	}
	return Flap(parsed), nil
}

// maxNameBytes is the longest name of a stream or a consumer in JetStream.
const maxNameBytes = 255

func streamName(text string) (string, error) {
	if len(text) > maxNameBytes || strings.ContainsAny(text, `.*>/\`) || strings.ContainsFunc(text, blank) {
		return "", fmt.Errorf("not a JetStream name; expected up to %d bytes without white space, '.', '*', '>', '/' and '\\'", maxNameBytes)
	}
	return text, nil
}

var bucketForm = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

func bucketName(text string) (string, error) {
	const most = maxNameBytes - len("KV_")
	switch {
	case !bucketForm.MatchString(text):
		return "", errors.New("not the name of a key-value bucket; expected letters, digits, '-' and '_'")
	case len(text) > most:
		return "", fmt.Errorf("not the name of a key-value bucket; expected up to %d bytes", most)
	}
	return text, nil
}

func subject(text string) (string, error) {
	wellFormed := !strings.ContainsAny(text, "*>") && !strings.ContainsFunc(text, blank) &&
		!strings.HasPrefix(text, "$") // the server's own
	for token := range strings.SplitSeq(text, ".") {
		wellFormed = wellFormed && token != ""
	}
	if !wellFormed {
		return "", errors.New("not a subject prefix; expected one such as notify or team.notify, without wildcards, white space and empty tokens, not starting with '$'")
	}
	return text, nil
}

func redisPrefix(text string) (string, error) {
	if strings.ContainsAny(text, "{}") || strings.ContainsFunc(text, blank) {
		return "", errors.New("holds braces or white space; expected a word such as notifier, since it becomes the hash tag of every key")
	}
	return text, nil
}

// blank reports characters that no name may contain: white space and unprintable ones.
func blank(r rune) bool {
	return unicode.IsSpace(r) || unicode.IsControl(r) || r == unicode.ReplacementChar
}

// The forms of URLs drop the errors of net/url, which contain the URL and its secrets.

func natsServers(text string) (string, error) {
	const expected = "expected nats://host:port, or tls://, ws:// or wss://, several separated by commas"
	var hasWebSockets, hasOthers bool
	for server := range strings.SplitSeq(text, ",") {
		u, err := url.Parse(strings.TrimSpace(server))
		if err != nil || u.Hostname() == "" || strings.Contains(u.Host, ";") || !validOptionalPort(u.Port()) {
			return "", errors.New("not the URL of a server; " + expected)
		}
		switch u.Scheme {
		case "nats", "tls":
			hasOthers = true
		case "ws", "wss":
			hasWebSockets = true
		default:
			return "", errors.New("not a scheme of NATS; " + expected)
		}
	}
	if hasWebSockets && hasOthers {
		return "", errors.New("mixes WebSocket and other URLs; expected one kind")
	}
	return text, nil
}

func redisURL(text string) (string, error) {
	const expected = "expected redis://host:port/0 or rediss://host:port/0; special characters of a password are percent-encoded"
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || !validOptionalPort(u.Port()) || strings.ContainsFunc(text, blank) {
		return "", errors.New("not the URL of a server; " + expected)
	}
	if u.Scheme != "redis" && u.Scheme != "rediss" {
		return "", errors.New("not a scheme of Redis; " + expected)
	}
	database := strings.Trim(u.Path, "/")
	if database != "" {
		if _, err := strconv.ParseUint(database, 10, 31); err != nil {
			return "", errors.New("not the number of a database; " + expected)
		}
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", errors.New("not a query; " + expected)
	}
	if query.Has("skip_verify") {
		return "", errors.New("has the option skip_verify; certificates are always verified: name the authority to trust in NOTIFIER_REDIS_TLS_CA_FILE")
	}
	for _, address := range query["addr"] {
		host, port, err := net.SplitHostPort(address)
		if err != nil || host == "" || !validPort(port) {
			return "", errors.New("a further address is not one; expected ?addr=host:port, joined with &")
		}
	}
	if query.Has("master_name") {
		if query.Get("master_name") == "" {
			return "", errors.New("the name of the Sentinel master is empty; expected ?master_name=name&addr=host:port")
		}
	} else if query.Has("addr") && database != "" && database != "0" {
		return "", errors.New("names a database together with further nodes; expected none, since Redis Cluster has only database 0")
	}
	return text, nil
}

func webhook(text string) (string, error) {
	if _, ok := parseWebURL(text); !ok {
		return "", errors.New("not a web address; expected https://hooks.slack.com/services/… as Slack shows it")
	}
	return text, nil
}

func apiURL(text string) (string, error) {
	u, ok := parseWebURL(text)
	if !ok || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("not the address of an API; expected one such as https://slack.example.com/api/, without credentials and query")
	}
	return text, nil
}

func parseWebURL(text string) (u *url.URL, ok bool) {
	u, err := url.Parse(text)
	return u, err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && validOptionalPort(u.Port()) &&
		!strings.ContainsFunc(text, blank)
}

// slackToken checks that the token fits into an HTTP header. Slack may change the form of tokens.
func slackToken(text string) (string, error) {
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r >= unicode.MaxASCII }) {
		return "", errors.New("holds white space or other characters that no token has; expected a bot token such as xoxb-…")
	}
	return text, nil
}

func listenAddress(text string) (string, error) {
	if text == "off" {
		return "", nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil || !validPort(port) || strings.ContainsFunc(host, blank) {
		return "", errors.New("not an address to listen on; expected host:port or :port with a port from 0 to 65535, or off")
	}
	return text, nil
}

func validOptionalPort(port string) bool { return port == "" || validPort(port) }

func validPort(port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}

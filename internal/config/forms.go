package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/prometheus/common/model"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Bounds of whole numbers.
const (
	maxConcurrency = 1024
	maxBodyBytes   = 64 << 20 // the largest message that a NATS server can be set to take
	maxCategories  = 10_000   // times the outcomes and levels, about what one scrape can carry
	maxBurst       = 100      // more at once is what a channel is to be spared
	maxWaiting     = 1_000_000
	maxLetters     = 1_000_000
	maxNameBytes   = 255 // of a stream or a consumer, in JetStream
)

// off is the listen address of no server.
const off = "off"

// hidden is a text of form F that must not be seen.
type hidden[F form[string]] struct{}

func (hidden[F]) parse(text string) (Secret, error) {
	var f F
	plain, err := f.parse(text)
	return NewSecret(plain), err
}

type anyText struct{}

func (anyText) parse(text string) (string, error) { return text, nil }

type boolean struct{}

func (boolean) parse(text string) (bool, error) {
	switch text {
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	return false, errors.New("not a truth value; expected true, false, 1 or 0")
}

type (
	concurrency struct{}
	bodySize    struct{}
	categories  struct{}
	burst       struct{}
	waiting     struct{}
	letters     struct{}
)

func (concurrency) parse(text string) (int, error) { return wholeNumber(text, maxConcurrency) }
func (bodySize) parse(text string) (int, error)    { return wholeNumber(text, maxBodyBytes) }
func (categories) parse(text string) (int, error)  { return wholeNumber(text, maxCategories) }
func (burst) parse(text string) (int, error)       { return wholeNumber(text, maxBurst) }
func (waiting) parse(text string) (int, error)     { return wholeNumber(text, maxWaiting) }
func (letters) parse(text string) (int, error)     { return wholeNumber(text, maxLetters) }

type (
	size     struct{}
	replicas struct{}
)

// units of a size. Those of two letters are powers of 1000, those of three powers of 1024.
var units = map[string]int64{
	"": 1, "B": 1,
	"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}

// leastSize is what a stream of any use takes. A smaller one is a number whose unit was forgotten.
const leastSize = 1 << 20

func (size) parse(text string) (int64, error) {
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

// parse returns 0 for auto.
func (replicas) parse(text string) (int, error) {
	if text, err := oneOf(text, "auto", "1", "3", "5"); err != nil || text == "auto" {
		return 0, err
	}
	return strconv.Atoi(text)
}

// wholeNumber reads a number from 1 on in base 10, whatever zeros it starts with.
func wholeNumber(text string, most int) (int, error) {
	n, err := strconv.Atoi(text)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("not a whole number; expected one from 1 to %d", most)
	case err != nil || n < 1 || n > most:
		return 0, fmt.Errorf("out of range; expected a whole number from 1 to %d", most)
	}
	return n, nil
}

type (
	positive   struct{}
	noNegative struct{}
)

func (positive) parse(text string) (time.Duration, error) {
	d, err := model.ParseDuration(text)
	if err != nil || d == 0 {
		return 0, errors.New("not a duration above 0; expected one such as 500ms, 10s or 1m30s")
	}
	return time.Duration(d), nil
}

func (noNegative) parse(text string) (time.Duration, error) {
	d, err := model.ParseDuration(text)
	if err != nil {
		return 0, errors.New("not a duration; expected 0, or one such as 500ms, 10s or 1h30m")
	}
	return time.Duration(d), nil
}

type (
	window          struct{}
	summaryInterval struct{}
	maxAge          struct{}
)

var errNotWindow = errors.New("not a duration from 1ms to 366d; expected one such as 90m, 12h, 7d or 1d12h")

// parse takes what a limit takes as its window.
func (window) parse(text string) (time.Duration, error) {
	d, err := limits.ParseWindow(text)
	if err != nil {
		return 0, errNotWindow
	}
	return d, nil
}

func (summaryInterval) parse(text string) (time.Duration, error) {
	d, ok := windowOrNone(text, time.Second)
	if !ok {
		return 0, errors.New("not a duration from 1s to 366d; expected one such as 30m, 12h or 1d, or 0 for no summaries")
	}
	return d, nil
}

func (maxAge) parse(text string) (time.Duration, error) {
	d, ok := windowOrNone(text, time.Minute)
	if !ok {
		return 0, errors.New("not a duration from 1m to 366d; expected one such as 12h, 7d or 1d12h, or 0 for no bound")
	}
	return d, nil
}

// windowOrNone reads 0, or a window of at least so long.
func windowOrNone(text string, least time.Duration) (d time.Duration, ok bool) {
	if d, err := model.ParseDuration(text); err == nil && d == 0 {
		return 0, true
	}
	d, err := limits.ParseWindow(text)
	return d, err == nil && d >= least
}

type (
	failurePolicy struct{}
	scripting     struct{}
	sink          struct{}
	logFormat     struct{}
	logLevel      struct{}
)

func (failurePolicy) parse(text string) (string, error) {
	return oneOf(text, FailureHold, FailureLocal, FailureOpen, FailureClosed)
}
func (scripting) parse(text string) (string, error) {
	return oneOf(text, ScriptingEval, ScriptingFunction)
}
func (sink) parse(text string) (string, error)      { return oneOf(text, SinkSlack, SinkConsole) }
func (logFormat) parse(text string) (string, error) { return oneOf(text, "json", "text") }

func (logLevel) parse(text string) (slog.Level, error) {
	name, err := oneOf(text, "debug", "info", "warn", "error")
	if err != nil {
		return 0, err
	}
	var level slog.Level
	return level, level.UnmarshalText([]byte(name))
}

func oneOf(text string, choices ...string) (string, error) {
	if slices.Contains(choices, text) {
		return text, nil
	}
	last := len(choices) - 1
	return "", fmt.Errorf("not a choice; expected %s or %s", strings.Join(choices[:last], ", "), choices[last])
}

type (
	limitList  struct{}
	rules      struct{}
	guarantees struct{}
	overrides  struct{}
)

func (guarantees) parse(text string) ([]limits.Guarantee, error) {
	parsed, faults := limits.ParseGuarantees(text)
	return parsed, errors.Join(faults...)
}

func (overrides) parse(text string) ([]limits.Override, error) {
	parsed, faults := limits.ParseOverrides(text)
	return parsed, errors.Join(faults...)
}

func (limitList) parse(text string) (limits.Limits, error) { return limits.Parse(text) }

func (rules) parse(text string) ([]limits.Rule, error) {
	parsed, faults := limits.ParseRules(text)
	return parsed, errors.Join(faults...)
}

type channel struct{}

func (channel) parse(text string) (string, error) {
	if strings.ContainsAny(text, ",=") || strings.ContainsFunc(text, blank) {
		return "", errors.New("not a channel; expected one name such as #alerts or one ID such as C0123456789")
	}
	return text, nil
}

type rate struct{}

// parse takes a limit without what makes no sense for a channel: algorithms, several at once, a block.
func (rate) parse(text string) (limits.Limit, error) {
	parsed, err := limits.Parse(text)
	switch {
	case err != nil || strings.ContainsAny(text, ":;+") || len(parsed) == 1 && parsed[0].Count == 0:
		return limits.Limit{}, errors.New("not a rate; expected <count>/<window> with a count from 1, such as 1/s or 30/1m, or none")
	case len(parsed) == 0:
		return limits.Limit{}, nil
	}
	return parsed[0], nil
}

type (
	streamName  struct{}
	bucketName  struct{}
	subject     struct{}
	redisPrefix struct{}
)

func (streamName) parse(text string) (string, error) {
	if len(text) > maxNameBytes || strings.ContainsAny(text, `.*>/\`) || strings.ContainsFunc(text, blank) {
		return "", fmt.Errorf("not a JetStream name; expected up to %d bytes without white space, '.', '*', '>', '/' and '\\'", maxNameBytes)
	}
	return text, nil
}

func (bucketName) parse(text string) (string, error) {
	for _, r := range text {
		if r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return "", errors.New("not the name of a key-value bucket; expected letters, digits, '-' and '_'")
		}
	}
	if len(text) > maxNameBytes-len("KV_") {
		return "", fmt.Errorf("not the name of a key-value bucket; expected up to %d bytes", maxNameBytes-len("KV_"))
	}
	return text, nil
}

func (subject) parse(text string) (string, error) {
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

func (redisPrefix) parse(text string) (string, error) {
	if strings.ContainsAny(text, "{}") || strings.ContainsFunc(text, blank) {
		return "", errors.New("holds braces or white space; expected a word such as notifier, since it becomes the hash tag of every key")
	}
	return text, nil
}

// blank reports what may stand in no name: white space, and what does not print.
func blank(r rune) bool {
	return unicode.IsSpace(r) || unicode.IsControl(r) || r == unicode.ReplacementChar
}

type (
	natsServers struct{}
	redisURL    struct{}
	webURL      struct{}
	apiURL      struct{}
	slackToken  struct{}
)

// The errors of net/url are left out of all of these: they print the URL, and with it what is
// secret in it.

func (natsServers) parse(text string) (string, error) {
	const expected = "expected nats://host:port, or tls://, ws:// or wss://, several separated by commas"
	var webSockets, servers int
	for server := range strings.SplitSeq(text, ",") {
		u, err := url.Parse(strings.TrimSpace(server))
		if err != nil || u.Hostname() == "" || !validPort(u.Port(), true) {
			return "", errors.New("not the URL of a server; " + expected)
		}
		switch u.Scheme {
		case "nats", "tls":
		case "ws", "wss":
			webSockets++
		default:
			return "", errors.New("not a scheme of NATS; " + expected)
		}
		servers++
	}
	if webSockets != 0 && webSockets != servers {
		return "", errors.New("mixes WebSocket and other URLs; expected one kind")
	}
	return text, nil
}

func (redisURL) parse(text string) (string, error) {
	const expected = "expected redis://host:port/0 or rediss://host:port/0; special characters of a password are percent-encoded"
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || !validPort(u.Port(), true) || strings.ContainsFunc(text, blank) {
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
		if err != nil || host == "" || !validPort(port, false) {
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

func (webURL) parse(text string) (string, error) {
	if _, err := parseWebURL(text); err != nil {
		return "", errors.New("not a web address; expected https://hooks.slack.com/services/… as Slack shows it")
	}
	return text, nil
}

func (apiURL) parse(text string) (string, error) {
	u, err := parseWebURL(text)
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("not the address of an API; expected one such as https://slack.example.com/api/, without credentials and query")
	}
	return text, nil
}

var errNotWeb = errors.New("not an http or https URL")

func parseWebURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || !validPort(u.Port(), true) ||
		strings.ContainsFunc(text, blank) {
		return nil, errNotWeb
	}
	return u, nil
}

// parse checks no more than that the token can stand in an HTTP header: its form is Slack's to
// change.
func (slackToken) parse(text string) (string, error) {
	for _, r := range text {
		if r <= ' ' || r >= unicode.MaxASCII {
			return "", errors.New("holds white space or other characters that no token has; expected a bot token such as xoxb-…")
		}
	}
	return text, nil
}

type listenAddress struct{}

func (listenAddress) parse(text string) (string, error) {
	if text == off {
		return off, nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil || !validPort(port, false) || strings.ContainsFunc(host, blank) {
		return "", errors.New("not an address to listen on; expected host:port or :port with a port from 0 to 65535, or off")
	}
	return text, nil
}

func validPort(port string, optional bool) bool {
	if port == "" {
		return optional
	}
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}

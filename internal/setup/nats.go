package setup

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/requirements"
)

// dialTimeout bounds how long a command waits for its connection to NATS.
const dialTimeout = 5 * time.Second

// NATS starts to connect to NATS, which lists the connection under the given name. The empty name stands for "notifier". The end of the context
// ends the attempts, unless a connection was established before.
func NATS(ctx context.Context, settings config.NATS, name string, logger *slog.Logger) (*stream.Connection, error) {
	tls, err := settings.TLS.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the TLS files for nats: %w", err)
	}
	return stream.Connect(ctx, stream.ConnectOptions{
		Name: name, URL: settings.URL.Reveal(), CredsFile: settings.CredsFile, User: settings.User,
		Password: settings.Password.Reveal(), Token: settings.Token.Reveal(), TLS: tls, Inbox: settings.Inbox, Logger: logger,
	})
}

// DialNATS connects for a command, and waits until the connection is established. A server that is too old is an error.
func DialNATS(ctx context.Context, settings config.NATS) (*stream.Connection, error) {
	connection, err := NATS(ctx, settings, "", slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	dialling, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for !connection.Conn.IsConnected() {
		if await.For(dialling, 10*time.Millisecond) {
			continue
		}
		connection.Conn.Close()
		if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) { // by a person
			return nil, cause
		}
		return nil, fmt.Errorf("connecting to nats at %s: %w", hosts(settings.URL.Reveal()), cmp.Or(connection.Failure(), context.Cause(dialling)))
	}
	if err := requirements.NATS().Check(connection.Conn.ConnectedServerVersion(), connection.Conn.ConnectedAddr()); err != nil {
		connection.Conn.Close()
		return nil, err
	}
	return connection, nil
}

// hosts returns the hosts of URLs, without users and passwords.
func hosts(urls string) string {
	var hosts []string
	for text := range strings.SplitSeq(urls, ",") {
		if parsed, err := url.Parse(strings.TrimSpace(text)); err == nil {
			hosts = append(hosts, parsed.Host)
		}
	}
	return strings.Join(hosts, ", ")
}

// JetStream returns a client of JetStream on a connection.
func JetStream(connection *stream.Connection, options ...jetstream.JetStreamOpt) jetstream.JetStream {
	js, err := jetstream.New(connection.Conn, options...)
	if err != nil {
		panic(err) // only options can be wrong
	}
	return js
}

// Parts of the errors about certificates, and what to do about them. A server may refuse a client for another reason than its certificate, but
// seldom does.
const (
	unknownAuthority = "certificate signed by unknown authority"              // of the server
	outdated         = "x509: certificate has expired or is not yet valid"    // of the server
	renew            = "renew the server's certificate, or correct the clock" // hint for outdated
	refusedClient    = "remote error: tls: "                                  // the server refuses the client's certificate, or wants one
)

// ExplainNATS returns the text of an error, with the setting to check.
func ExplainNATS(err error) string {
	if _, tooOld := errors.AsType[requirements.TooOld](err); tooOld || errors.Is(err, context.Canceled) {
		return err.Error()
	}
	if strings.Contains(err.Error(), "nkeys: ") {
		return err.Error() + " (check NOTIFIER_NATS_CREDS_FILE)"
	}
	if errors.Is(err, nats.ErrAuthorization) {
		return err.Error() + " (check NOTIFIER_NATS_USER and NOTIFIER_NATS_PASSWORD, NOTIFIER_NATS_CREDS_FILE, NOTIFIER_NATS_TOKEN, or the user in NOTIFIER_NATS_URL)"
	}
	if strings.Contains(err.Error(), unknownAuthority) {
		return err.Error() + " (check NOTIFIER_NATS_TLS_CA_FILE)"
	}
	if strings.Contains(err.Error(), outdated) {
		return err.Error() + " (" + renew + ")"
	}
	if strings.Contains(err.Error(), refusedClient) {
		return err.Error() + " (check NOTIFIER_NATS_TLS_CERT_FILE)"
	}
	if errors.Is(err, nats.ErrSecureConnWanted) {
		return err.Error() + " (check NOTIFIER_NATS_URL; TLS is on: does the server speak TLS?)"
	}
	return err.Error() + " (check NOTIFIER_NATS_URL)"
}

// ExplainDenied is [WithDenied] for a timeout. It returns any other error unchanged.
func ExplainDenied(err error, connection *stream.Connection) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return WithDenied(err, connection)
}

// WithDenied adds the permissions that the server denied to the error of a missing answer: the server does not answer a request that it denies.
func WithDenied(err error, connection *stream.Connection) error {
	denied := strings.Join(connection.Denied(), "; ")
	if denied == "" {
		return err
	}
	if strings.Contains(denied, "for Subscription to") {
		denied += "; NOTIFIER_NATS_INBOX is the prefix below which this user may listen"
	}
	return fmt.Errorf("%w (%s)", err, denied)
}

// NATSUser returns the name of the user that logs in to NATS. It returns "" if the settings name no user: a token has no name.
func NATSUser(settings config.NATS) string {
	return cmp.Or(settings.User, userInURL(settings.URL.Reveal()), userInCreds(settings.CredsFile))
}

// UserAtHost returns the user that runs this program as user@host. It returns "" if the system does not know the user.
func UserAtHost() string {
	current, err := user.Current()
	if err != nil {
		return ""
	}
	host, err := os.Hostname()
	if err != nil {
		return current.Username
	}
	return current.Username + "@" + host
}

// userInURL returns the user of the first URL that has a user with a password. A user without a password is a token.
func userInURL(urls string) string {
	for text := range strings.SplitSeq(urls, ",") {
		parsed, err := url.Parse(strings.TrimSpace(text))
		if err != nil || parsed.User == nil {
			continue
		}
		if _, hasPassword := parsed.User.Password(); hasPassword {
			return parsed.User.Username()
		}
	}
	return ""
}

// userInCreds returns the name of the user in a credentials file. It returns "" if it cannot read the file.
func userInCreds(path string) string {
	text, err := os.ReadFile(path) //nolint:gosec // who runs the program names the file
	if err != nil {
		return ""
	}
	token, err := nkeys.ParseDecoratedJWT(text)
	if err != nil {
		return ""
	}
	var claims struct {
		Name string `json:"name"`
	}
	_, payload, _ := strings.Cut(token, ".")
	payload, _, _ = strings.Cut(payload, ".")
	decoded, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil || json.Unmarshal(decoded, &claims) != nil {
		return ""
	}
	return claims.Name
}

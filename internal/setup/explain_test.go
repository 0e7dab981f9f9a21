package setup

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// If Redis is silent, the explanation names the server, and whether the client uses TLS.
func TestExplainSilence(t *testing.T) {
	t.Parallel()
	const on, off = "TLS is on: does the server speak TLS?", "TLS is off: does the server require TLS?"
	const byFile = "a file of NOTIFIER_REDIS_TLS_… turns TLS on: does the server speak TLS?"
	for _, test := range []struct {
		err  error
		url  string
		tls  config.TLS
		want string
	}{
		{io.EOF, "redis://user:canary@a:1/0", config.TLS{}, "no answer from a:1; " + off},
		{io.EOF, "redis://user:canary@a:1/0", config.TLS{CAFile: "ca.pem"}, "no answer from a:1; " + byFile},
		{context.DeadlineExceeded, "rediss://user:canary@a:1/0", config.TLS{}, "no answer from a:1; " + on},
		{os.ErrDeadlineExceeded, "rediss://user:canary@a:1?addr=b:2", config.TLS{}, "no answer from a:1, b:2; " + on},
	} {
		got := ExplainRedis(fmt.Errorf("asking: %w", test.err), config.Redis{URL: config.NewSecret(test.url), TLS: test.tls})
		testkit.Equal(t, got, fmt.Sprintf("asking: %v (check NOTIFIER_REDIS_URL: %s)", test.err, test.want), "%s", test.url)
	}
}

// The explanation of a server's error names the setting to look at.
func TestExplain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"NOAUTH Authentication required.": "NOTIFIER_REDIS_PASSWORD", "WRONGPASS invalid username-password pair": "NOTIFIER_REDIS_PASSWORD",
		"ERR Protocol error: unauthenticated multibulk length": "(check NOTIFIER_REDIS_PASSWORD", "ERR Protocol error: unauthenticated bulk length": "(check NOTIFIER_REDIS_PASSWORD",
		"NOPERM this user has no permissions": "configs/redis", "WRONGTYPE Operation against a key": "NOTIFIER_REDIS_PREFIX",
		"MOVED 1 127.0.0.1:7000": "?addr=host:port", "CROSSSLOT Keys in request": "?addr=host:port", "i/o timeout": "NOTIFIER_REDIS_URL",
		"ERR SELECT is not allowed in cluster mode":                                        "(a cluster has only database 0: correct the number in NOTIFIER_REDIS_URL)",
		"redis: all sentinels specified in configuration are unreachable: redis: nil":      "(the Sentinels do not know the master_name of NOTIFIER_REDIS_URL)",
		"READONLY You can't write against a read only replica.":                            "(the server is a replica: NOTIFIER_REDIS_URL must lead to its primary)",
		"tls: failed to verify certificate: x509: certificate signed by unknown authority": "(check NOTIFIER_REDIS_TLS_CA_FILE)",
		x509.CertificateInvalidError{Reason: x509.Expired}.Error():                         "(renew the server's certificate, or correct the clock)",
		(&net.OpError{Op: "remote error", Err: tls.AlertError(45)}).Error():                "(check NOTIFIER_REDIS_TLS_CERT_FILE)",
	} {
		got := ExplainRedis(errors.New(text), config.Redis{})
		testkit.Check(t, strings.HasPrefix(got, text) && strings.Contains(got, want), "%q: got %q, want %q in it", text, got, want)
	}
	for err, want := range map[error]string{
		nats.ErrAuthorization: "or the user in NOTIFIER_NATS_URL)", nats.ErrNoServers: "NOTIFIER_NATS_URL", nats.ErrSecureConnWanted: "does the server speak TLS?", nats.ErrTimeout: "",
		nkeys.ErrNoSeedFound: "(check NOTIFIER_NATS_CREDS_FILE)", nkeys.ErrInvalidSeed: "(check NOTIFIER_NATS_CREDS_FILE)",
		x509.UnknownAuthorityError{}:                              "(check NOTIFIER_NATS_TLS_CA_FILE)",
		x509.CertificateInvalidError{Reason: x509.Expired}:        "(renew the server's certificate, or correct the clock)",
		&net.OpError{Op: "remote error", Err: tls.AlertError(45)}: "(check NOTIFIER_NATS_TLS_CERT_FILE)",
	} {
		got := ExplainNATS(fmt.Errorf("connecting to nats: %w", err))
		testkit.Check(t, strings.Contains(got, err.Error()) && strings.Contains(got, want), "%q: got %q, want %q in it", err, got, want)
	}
}

// TestPostNames wants a new token to leave the names of posts as they are: a post may be in doubt when an operator sets it.
func TestPostNames(t *testing.T) {
	t.Parallel()
	named := func(prefix, token string) string {
		var c config.Config
		c.Redis.Prefix, c.Slack.Token = prefix, config.NewSecret(token)
		return PostNames(c)
	}
	testkit.Equal(t, named("notifier", "xoxb-new"), named("notifier", "xoxb-old"), "names after a new token")
	testkit.Equal(t, named("staging", "xoxb-old") == named("notifier", "xoxb-old"), false, "names of two deployments are equal")
}

// TestRoomOutlastsFlapping has a window for flapping that is longer than every delay. The room keeps the report about a key for that time.
func TestRoomOutlastsFlapping(t *testing.T) {
	t.Parallel()
	var c config.Config
	c.Stream.MaxAge, c.Flap.Window = 6*time.Hour, 12*time.Hour
	testkit.Equal(t, Names(c).RoomConfig().MaxAge, 18*time.Hour, "age at which the room forgets a message")
}

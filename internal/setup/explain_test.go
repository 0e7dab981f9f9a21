package setup

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// The explanation of a server's error names the setting to look at.
func TestExplain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"NOAUTH Authentication required.": "NOTIFIER_REDIS_PASSWORD", "WRONGPASS invalid username-password pair": "NOTIFIER_REDIS_PASSWORD",
		"NOPERM this user has no permissions": "configs/redis", "WRONGTYPE Operation against a key": "NOTIFIER_REDIS_PREFIX",
		"MOVED 1 127.0.0.1:7000": "?addr=host:port", "CROSSSLOT Keys in request": "?addr=host:port", "i/o timeout": "NOTIFIER_REDIS_URL",
	} {
		got := ExplainRedis(errors.New(text))
		if !strings.HasPrefix(got, text) || !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q in it", text, got, want)
		}
	}
	for err, want := range map[error]string{
		nats.ErrAuthorization: "NOTIFIER_NATS_USER", nats.ErrNoServers: "NOTIFIER_NATS_URL", nats.ErrTimeout: "",
		nkeys.ErrNoSeedFound: "(check NOTIFIER_NATS_CREDS_FILE)", nkeys.ErrInvalidSeed: "(check NOTIFIER_NATS_CREDS_FILE)",
	} {
		got := ExplainNATS(fmt.Errorf("connecting to nats: %w", err))
		if !strings.Contains(got, err.Error()) || !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q in it", err, got, want)
		}
	}
}

package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// varz is the subject on which a server answers with its state. Only the system account has it, and accounts that import it from there.
const varz = "$SYS.REQ.SERVER.PING.VARZ"

// SyncInterval returns the sync_interval of the first server that answers, "always" or a duration. Most users may not ask for it.
func SyncInterval(ctx context.Context, conn *nats.Conn) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer, err := conn.RequestWithContext(ctx, varz, nil)
	if err != nil {
		return "", fmt.Errorf("ask a server on %s: %w", varz, err)
	}
	var state struct {
		Data struct {
			JetStream struct {
				Config *struct {
					SyncInterval time.Duration `json:"sync_interval"`
					SyncAlways   bool          `json:"sync_always"`
				} `json:"config"`
			} `json:"jetstream"`
		} `json:"data"`
	}
	if err := json.Unmarshal(answer.Data, &state); err != nil {
		return "", fmt.Errorf("read the answer of a server on %s: %w", varz, err)
	}
	switch config := state.Data.JetStream.Config; {
	case config == nil:
		return "", fmt.Errorf("ask a server on %s: it does not run JetStream", varz)
	case config.SyncAlways:
		return "always", nil
	default:
		return config.SyncInterval.String(), nil
	}
}

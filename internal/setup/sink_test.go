package setup

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

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

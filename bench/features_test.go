package bench

import (
	"fmt"
	"testing"
)

// quietly are the ways to be quiet by intent, each of them alone. All events have keys of their own, so no event is folded or muted: what is
// measured is the price of looking.
var quietly = []contestant{
	notifier.quiet("keys", "NOTIFIER_LIMITS=*@key=1000/30m"),
	notifier.quiet("folds", "NOTIFIER_FOLD=>=1h"),
	notifier.quiet("flapping", "NOTIFIER_FLAP=4/20m"),
	notifier.quiet("mutes").after([]string{"provision"}, []string{"mute", "elsewhere", "--for", "1h", "--reason", "bench"}),
}

func (c contestant) quiet(feature string, environment ...string) contestant {
	c.name, c.environment = feature, environment
	return c
}

// after returns the contestant with commands that run before it starts.
func (c contestant) after(commands ...[]string) contestant {
	c.commands = commands
	return c
}

// keyedBody is [eventBody] with a key.
func keyedBody(i int) []byte {
	return fmt.Appendf(nil, `{"title":"disk %d is full","text":"94 %% of /var are used","severity":"error","source":"host%d","key":"disk-%d"}`, i, i%50, i)
}

func (c contestant) keyed() contestant {
	c.body = keyedBody
	return c
}

// BenchmarkFeatures empties a stream that is almost all dropped, and a stream that is all admitted, without features and with each of them.
func BenchmarkFeatures(b *testing.B) {
	for _, load := range []struct {
		name    string
		events  int
		limited func(contestant) contestant
	}{
		{"flood", 200_000, func(c contestant) contestant { return c.limited(100, 10) }},
		{"all admitted", 20_000, contestant.unlimited},
	} {
		contestants := []contestant{load.limited(notifier.keyed())}
		for _, c := range quietly {
			contestants = append(contestants, load.limited(c.keyed()))
		}
		d := drain(b, load.events, false, contestants...)
		for _, c := range quietly {
			conclude("%s with %s on: %.2f of the rate with all features off", load.name, c.name, d.perSecond(c.name)/d.perSecond(notifier.name))
		}
	}
}

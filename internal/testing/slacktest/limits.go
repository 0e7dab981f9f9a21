package slacktest

import "time"

// Limit is a number of requests in any time of that length.
type Limit struct {
	Count  int // 0: no limit
	Window time.Duration
}

// Limits bound the requests as Slack counts them: each method of the workspace, and the posts of a channel and of the workspace. A request
// above a limit gets status 429 with the time until the limit has room again. It does not count.
type Limits struct {
	Methods            map[string]Limit
	Channel, Workspace Limit // of posts
}

// SlackLimits are about what Slack promises an internal app.
func SlackLimits() Limits {
	third := Limit{50, time.Minute}
	return Limits{
		Methods: map[string]Limit{MethodUpdate: third, MethodHistory: third, MethodReplies: third},
		Channel: Limit{60, time.Minute}, Workspace: Limit{300, time.Minute},
	}
}

// WithLimits has the server count requests. Without it there are no limits.
func WithLimits(l Limits) Option { return func(s *Server) { s.limits = l } }

// Limited returns how many requests of a method or "webhook" a limit has refused.
func (s *Server) Limited(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limited[method]
}

// overLimit counts a request against its limits. If one of them is full, the request counts against none, and overLimit returns the time
// until the limit has room, in whole seconds. The channel is used for posts only.
func (s *Server) overLimit(method, channel string, now time.Time) (wait time.Duration) {
	of := map[string]Limit{"method " + method: s.limits.Methods[method]}
	if method == MethodPost || method == MethodWebhook {
		of["channel "+channel], of["workspace"] = s.limits.Channel, s.limits.Workspace
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, limit := range of {
		counted := s.counted[name]
		for len(counted) > 0 && !now.Before(counted[0].Add(limit.Window)) {
			counted = counted[1:]
		}
		s.counted[name] = counted
		if limit.Count > 0 && len(counted) >= limit.Count {
			left := counted[0].Add(limit.Window).Sub(now)
			wait = max(wait, (left + time.Second - 1).Truncate(time.Second))
		}
	}
	if wait > 0 {
		s.limited[method]++
		return wait
	}
	for name, limit := range of {
		if limit.Count > 0 {
			s.counted[name] = append(s.counted[name], now)
		}
	}
	return 0
}

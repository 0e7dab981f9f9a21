//go:build histories

package lua

import (
	"regexp"
	"strings"
)

const (
	timeFunction = "local function deployment_time(calls_key)\n"
	nextFunction = "local function milliseconds(microseconds)\n"

	// A call that is recorded names one key more, the last one. The append-only file then has the calls in the order in which Redis ran them.
	markingTime = `local function deployment_time(calls_key, mark)
  local now, ran_ahead = unmarked_time(calls_key)
  if string.find(mark, ':history:', 1, true) then
    redis.call('SET', mark, integer(now), 'PX', 60000)
  end
  return now, ran_ahead
end

`
)

var timeCall = regexp.MustCompile(`= deployment_time\(([^)]+)\)`)

// marked has a script store its time under its last key, if that is the mark of a recorded call.
func marked(text string) string {
	text = strings.Replace(text, timeFunction, "local function unmarked_time(calls_key)\n", 1)
	text = strings.Replace(text, nextFunction, markingTime+nextFunction, 1)
	return timeCall.ReplaceAllString(text, "= deployment_time($1, KEYS[#KEYS])")
}

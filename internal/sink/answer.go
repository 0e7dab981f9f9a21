package sink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// minRetryAfter stands in where Slack names no usable time: a channel takes about one
	// message a second.
	minRetryAfter = time.Second
	// maxRetryAfter keeps a broken or hostile answer from silencing a channel for good.
	maxRetryAfter = time.Hour
	// maxCode bounds Error.Code, in characters; Slack's own codes are below 50.
	maxCode = 100
	// maxDetail bounds what an error quotes from an answer, in characters.
	maxDetail = 200
)

// codeClasses holds Slack's error codes that are not the message's fault. Every other code,
// known or not, is Rejected: such an event can be replayed from the dead letters.
var codeClasses = map[string]Class{
	"ratelimited":  RateLimited,
	"rate_limited": RateLimited,

	"service_unavailable": Transient,
	"internal_error":      Transient,
	"fatal_error":         Transient,
	"request_timeout":     Transient,
	"team_added_to_org":   Transient, // the workspace is being moved

	"invalid_auth":            Misconfigured,
	"not_authed":              Misconfigured,
	"token_revoked":           Misconfigured,
	"token_expired":           Misconfigured,
	"not_allowed_token_type":  Misconfigured,
	"account_inactive":        Misconfigured,
	"missing_scope":           Misconfigured,
	"no_permission":           Misconfigured,
	"org_login_required":      Misconfigured,
	"team_access_not_granted": Misconfigured,
	"restricted_action":       Misconfigured,
	"channel_not_found":       Misconfigured,
	"not_in_channel":          Misconfigured,
	"is_archived":             Misconfigured,
}

// lostCodes holds Slack's error codes for an update or a reply that say that the first message, or its
// channel, is out of reach, so that nobody would see a reply there.
var lostCodes = map[string]bool{
	"message_not_found":       true,
	"thread_not_found":        true,
	"invalid_thread_ts":       true,
	"cannot_reply_to_message": true,

	"restricted_action_thread_locked":          true,
	"restricted_action_non_threadable_channel": true,

	"channel_not_found": true,
	"not_in_channel":    true,
	"is_archived":       true,
	"is_inactive":       true,
}

// reply is an HTTP answer whose body was cut to maxReply bytes.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// verdict is the judgement on a reply. code and detail are as the other side sent them:
// neither bounded nor redacted.
type verdict struct {
	class      Class
	code       string
	detail     string // in words; may be empty
	retryAfter time.Duration
}

// apiAnswer is the part of a Web API answer that decides.
type apiAnswer struct {
	ok       bool
	channel  string // of a posted message, its ID
	ts       string
	code     string
	needed   string   // the scope that the token lacks
	messages []string // Slack's hints at which part of a message it refused
}

// posted reports whether the answer told of a post all that there is to know.
func (a apiAnswer) posted() bool { return a.ok && a.channel != "" && a.ts != "" }

// decodeAnswer reads the members of the outermost object one by one, up to the first fault, so
// that an answer cut short still counts once it has said what matters. Slack sends the verdict
// first and the posted message, which may be large, last: there it stops.
func decodeAnswer(body []byte) apiAnswer {
	var answer apiAnswer
	decoder := json.NewDecoder(bytes.NewReader(body))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return answer
	}
	for !answer.posted() && decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return answer
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return answer
		}
		switch name {
		case "ok":
			err = json.Unmarshal(value, &answer.ok)
		case "channel":
			_ = json.Unmarshal(value, &answer.channel) // other methods put an object here
		case "ts":
			err = json.Unmarshal(value, &answer.ts)
		case "error":
			err = json.Unmarshal(value, &answer.code)
		case "needed":
			err = json.Unmarshal(value, &answer.needed)
		case "response_metadata":
			var metadata struct {
				Messages []string `json:"messages"`
			}
			if json.Unmarshal(value, &metadata) == nil {
				answer.messages = metadata.Messages
			}
		}
		if err != nil {
			return apiAnswer{}
		}
	}
	return answer
}

// judgePost judges the answer of chat.postMessage: only a timestamp proves a post.
func judgePost(r reply) verdict {
	return judgeAPI(r, func(answer apiAnswer) bool { return answer.ts != "" })
}

// judgeMethod judges the answer of a Web API method that posts nothing.
func judgeMethod(r reply) verdict {
	return judgeAPI(r, func(apiAnswer) bool { return true })
}

func judgeAPI(r reply, proven func(apiAnswer) bool) verdict {
	answer := decodeAnswer(r.body)
	switch {
	case r.status < 200 || r.status >= 300:
		v := judgeStatus(r)
		if class, known := codeClasses[answer.code]; known && !answer.ok && v.class == Rejected {
			return r.judgeCode(answer, class)
		}
		if answer.code != "" {
			v.code, v.detail = answer.code, r.words()
		}
		return v
	case answer.ok && proven(answer):
		return verdict{class: OK}
	case !answer.ok && answer.code != "":
		class, known := codeClasses[answer.code]
		if !known {
			class = Rejected
		}
		return r.judgeCode(answer, class)
	default:
		return verdict{class: Unknown, code: r.words(), detail: "the answer is not one of Slack's"}
	}
}

func (r reply) judgeCode(answer apiAnswer, class Class) verdict {
	v := verdict{class: class, code: answer.code}
	if class == RateLimited {
		v.retryAfter = retryAfter(r.header)
	}
	if answer.needed != "" {
		v.detail = "the token lacks the scope " + answer.needed
	} else if len(answer.messages) > 0 {
		v.detail = answer.messages[0]
	}
	return v
}

// judgeWebhook judges the answer of an incoming webhook, whose body is "ok" or a code as plain
// text. Workflow webhooks answer with the Web API's JSON instead.
func judgeWebhook(r reply) verdict {
	text := strings.TrimSpace(string(r.body))
	if r.status < 200 || r.status > 299 {
		v := judgeStatus(r)
		v.code = r.textCode(text)
		return v
	}
	if text == "ok" {
		return verdict{class: OK}
	}
	return judgeMethod(r)
}

// textCode returns the first line of a plain text answer, or the status where the body is
// empty or markup.
func (r reply) textCode(text string) string {
	if code := decodeAnswer(r.body).code; code != "" {
		return code
	}
	line, _, _ := strings.Cut(text, "\n")
	if line == "" || strings.ContainsAny(line[:1], "<{[") {
		return r.words()
	}
	return line
}

// judgeStatus judges an answer outside 200 to 299 by its status alone.
func judgeStatus(r reply) verdict {
	v := verdict{code: r.words()}
	switch {
	case r.status == http.StatusTooManyRequests:
		v.class, v.retryAfter = RateLimited, retryAfter(r.header)
	case r.status == http.StatusRequestTimeout, r.status >= 500 && r.status < 600:
		v.class = Transient
	case r.status == http.StatusUnauthorized, r.status == http.StatusForbidden,
		r.status == http.StatusNotFound, r.status == http.StatusGone:
		v.class = Misconfigured // this is not where messages are posted, or not with these rights
	case r.status >= 300 && r.status < 400:
		v.class, v.detail = Misconfigured, "redirects are not followed"
	case r.status >= 400 && r.status < 500:
		v.class = Rejected
	default:
		v.class = Unknown
	}
	return v
}

// words returns the status as "503 Service Unavailable".
func (r reply) words() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", r.status, http.StatusText(r.status)))
}

// retryAfter reads the header of that name, in whole seconds, bounded by minRetryAfter and
// maxRetryAfter.
func retryAfter(header http.Header) time.Duration {
	seconds, err := strconv.ParseUint(strings.TrimSpace(header.Get("Retry-After")), 10, 32)
	if errors.Is(err, strconv.ErrRange) {
		return maxRetryAfter
	}
	if err != nil {
		return minRetryAfter
	}
	return min(max(time.Duration(seconds)*time.Second, minRetryAfter), maxRetryAfter)
}

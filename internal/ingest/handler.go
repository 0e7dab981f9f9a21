package ingest

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// Metrics counts what the server does. Any number of goroutines may call it at once.
type Metrics interface {
	Request(status int)                   // a request that this package answered
	Stored(client string, duplicate bool) // an event that JetStream has, newly or as a duplicate
	Limited(client string)                // a request above the rate of its client
	Bytes(n int)                          // of a body that was stored
	Published(took time.Duration)         // from the first publish of a request to its last acknowledgement
	Connections(delta int)                // the number of connections changes
	Evicted()                             // a connection was closed to make room for a newer one
}

// Paths of the interface.
const (
	eventsPath  = "/v1/events/"
	alertsPath  = "/v1/alertmanager/"
	openAPIPath = "/openapi.json"
)

// handler answers requests.
type handler struct {
	decoder event.Decoder
	bodies  bodies
	store   store
	tokens  atomic.Pointer[tokens] // nil: whoever reaches the server may write everything
	open    *client                // of a server without tokens
	metrics Metrics
	origin  *http.CrossOriginProtection
}

// receipt is what the client is told of one event.
type receipt struct {
	ID        string `json:"id,omitempty"`
	Stream    string `json:"stream,omitempty"`
	Sequence  uint64 `json:"sequence,omitempty"`
	Duplicate bool   `json:"duplicate"`
	Problem   string `json:"problem,omitempty"` // why it may not be stored
}

// ServeHTTP answers one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == openAPIPath && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		h.metrics.Request(http.StatusOK)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(openAPI) // the client may have left
		return
	}
	answer, refusal := h.take(r)
	if refusal != nil {
		h.metrics.Request(refusal.Status)
		refusal.write(w)
		return
	}
	h.metrics.Request(http.StatusAccepted)
	w.Header()["Content-Type"] = jsonType
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(answer))} // a long answer would come in chunks
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write(answer) //nolint:gosec // JSON, and of that type; the client may have left
}

var jsonType = []string{"application/json"}

// take does what a request asks for, and returns the body of the answer.
func (h *handler) take(r *http.Request) ([]byte, *problem) {
	path, alerts, refusal := route(r)
	if refusal != nil {
		return nil, refusal
	}
	if err := h.origin.Check(r); err != nil {
		return nil, newProblem(http.StatusForbidden, "browsers may not send events for other sites")
	}
	from, mayWrite := h.authenticate(r)
	if from == nil {
		return nil, newProblem(http.StatusUnauthorized, "expected the header Authorization: Bearer with a token of this server")
	}
	category, _, err := h.decoder.CategoryOf(h.decoder.Prefix + "." + path)
	if err != nil {
		fault, _ := errors.AsType[*event.Fault](err) // CategoryOf says so
		return nil, refused(fault)
	}
	if !mayWrite(category) {
		return nil, newProblem(http.StatusForbidden, "the token may not write to "+category)
	}
	if refusal := h.spend(from, 1); refusal != nil {
		return nil, refusal
	}
	return h.accept(r, from, maker{decoder: h.decoder, category: category, header: r.Header, alerts: alerts})
}

// route returns the category of a path as it is written, and whether its bodies are alerts.
func route(r *http.Request) (category string, alerts bool, refusal *problem) {
	allow := http.MethodPost
	if r.URL.Path == openAPIPath {
		allow = "GET, HEAD" // which ServeHTTP has answered
	} else {
		known := false
		if category, alerts = strings.CutPrefix(r.URL.Path, alertsPath); !alerts {
			category, known = strings.CutPrefix(r.URL.Path, eventsPath)
		}
		if !alerts && !known || category == "" || strings.Contains(category, "/") {
			return "", false, newProblem(http.StatusNotFound, "expected "+eventsPath+"{category} or "+alertsPath+"{category}")
		}
	}
	if r.Method != allow {
		refusal = newProblem(http.StatusMethodNotAllowed, "the method must be "+allow)
		refusal.allow = allow
	}
	return category, alerts, refusal
}

// authenticate returns who a request comes from, nil for nobody, and what it may write.
func (h *handler) authenticate(r *http.Request) (from *client, mayWrite func(category string) bool) {
	inForce := h.tokens.Load()
	if inForce == nil {
		return h.open, func(string) bool { return true }
	}
	scheme, secret, _ := strings.Cut(first(r.Header, "Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, nil
	}
	known := inForce.find(strings.TrimSpace(secret))
	if known == nil {
		return nil, nil
	}
	return known.client, known.mayWrite
}

// spend takes events from the rate of a client. More events than the client ever has at once count as that many.
func (h *handler) spend(from *client, events int) *problem {
	if from.limiter == nil {
		return nil
	}
	now := time.Now()
	reservation := from.limiter.ReserveN(now, min(events, from.limiter.Burst()))
	wait := reservation.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	reservation.CancelAt(now)
	h.metrics.Limited(from.name)
	return newProblem(http.StatusTooManyRequests, "more events than the rate of this token allows").later(wait)
}

// accept reads, publishes and answers.
func (h *handler) accept(r *http.Request, from *client, m maker) ([]byte, *problem) {
	asked, refusal := formOf(r.Header)
	if refusal != nil {
		return nil, refusal
	}
	read, refusal := h.bodies.read(r)
	if refusal != nil {
		return nil, refusal
	}
	if conn := connectionOf(r.Context()); conn != nil {
		conn.work()
		defer conn.answered()
	}
	messages, refusal := h.messages(read.data, asked, m)
	if refusal == nil && len(messages) > 1 {
		refusal = h.spend(from, len(messages)-1)
	}
	if refusal != nil {
		read.release()
		return nil, refusal
	}
	receipts, refusal := h.receipts(messages, from, m)
	if refusal != nil {
		read.drop() // the client library may still send it
		if asked == batchForm {
			refusal.Events = receipts
		}
		return nil, refusal
	}
	h.metrics.Bytes(len(read.data))
	read.release()
	if asked == batchForm {
		answer, _ := json.Marshal(receipts) // cannot fail: texts and numbers
		return answer, nil
	}
	answer, _ := json.Marshal(receipts[0])
	return answer, nil
}

func (h *handler) messages(data []byte, asked form, m maker) ([]*nats.Msg, *problem) {
	if asked == batchForm && !m.alerts {
		return m.batch(data)
	}
	message, refusal := m.message(data, asked, first(m.header, headerKey))
	return []*nats.Msg{message}, refusal
}

// receipts publishes messages, and tells what became of each. The refusal is that of the first that may not be stored.
func (h *handler) receipts(messages []*nats.Msg, from *client, m maker) ([]receipt, *problem) {
	receipts := make([]receipt, len(messages))
	var refusal *problem
	for i, result := range h.store.publish(messages) {
		if result.refusal != nil {
			receipts[i].Problem = result.refusal.Detail
			if refusal == nil {
				refusal = result.refusal
			}
			continue
		}
		ack := result.ack
		h.metrics.Stored(from.name, ack.Duplicate)
		receipts[i] = receipt{ID: m.idOf(messages[i], ack), Stream: ack.Stream, Sequence: ack.Sequence, Duplicate: ack.Duplicate}
	}
	return receipts, refusal
}

// newClient makes a client with a rate of its own; a limit of 0 stands for none.
func newClient(name string, limit rate.Limit, burst int) *client {
	c := &client{name: name}
	if limit > 0 {
		c.limiter = rate.NewLimiter(limit, burst)
	}
	return c
}

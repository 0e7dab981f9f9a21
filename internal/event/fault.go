package event

// Reason is the class of a Fault: the label of the dead-letter metric and the last token of
// the dead letter's subject.
type Reason string

// The closed set of reasons for a dead letter. Decoding returns all but ReasonSlackRejected.
const (
	ReasonBadJSON       Reason = "bad_json"
	ReasonBadUTF8       Reason = "bad_utf8"
	ReasonEmpty         Reason = "empty"
	ReasonTooLarge      Reason = "too_large"
	ReasonBadCategory   Reason = "bad_category"
	ReasonBadField      Reason = "bad_field"
	ReasonBadCloudEvent Reason = "bad_cloudevent"
	ReasonSlackRejected Reason = "slack_rejected"
)

// Reasons returns the closed set, always in the same order.
func Reasons() []Reason {
	return []Reason{
		ReasonBadJSON, ReasonBadUTF8, ReasonEmpty, ReasonTooLarge,
		ReasonBadCategory, ReasonBadField, ReasonBadCloudEvent, ReasonSlackRejected,
	}
}

// maxDetailBytes keeps a detail fit for one log line and one message header.
const maxDetailBytes = 200

// Fault is why an event can never be delivered as it is.
type Fault struct {
	Reason Reason
	// Detail says in words what is wrong and what was expected: one line, printable, valid
	// UTF-8, at most 200 bytes. It may quote a short excerpt of the producer's value.
	Detail string
	Err    error // the cause, may be nil
}

// NewFault returns a Fault whose Detail keeps its promise whatever detail holds: what is not
// printable is replaced, what is too long is cut with a mark.
func NewFault(reason Reason, detail string, err error) *Fault {
	detail = printable(detail)
	if len(detail) > maxDetailBytes {
		detail = cut(detail, maxDetailBytes-len(mark)) + mark
	}
	return &Fault{Reason: reason, Detail: detail, Err: err}
}

// Error returns the reason and the detail; the detail covers the cause.
func (f *Fault) Error() string { return string(f.Reason) + ": " + f.Detail }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }

package event

// Reason is the class of a Fault: the label of the dead-letter metric and the last token of the dead letter's subject.
type Reason string

// The closed set of reasons for a dead letter. Decoding returns all but ReasonRejected.
const (
	ReasonBadJSON       Reason = "bad_json"
	ReasonBadUTF8       Reason = "bad_utf8"
	ReasonEmpty         Reason = "empty"
	ReasonTooLarge      Reason = "too_large"
	ReasonBadCategory   Reason = "bad_category"
	ReasonBadField      Reason = "bad_field"
	ReasonBadCloudEvent Reason = "bad_cloudevent"
	ReasonRejected      Reason = "rejected"
)

// Reasons returns the closed set in a fixed order.
func Reasons() []Reason {
	return []Reason{
		ReasonBadJSON, ReasonBadUTF8, ReasonEmpty, ReasonTooLarge,
		ReasonBadCategory, ReasonBadField, ReasonBadCloudEvent, ReasonRejected,
	}
}

// maxDetailBytes is the longest detail, which fits into one log line and one message header.
const maxDetailBytes = 200

// Fault is the reason why an event can never be delivered unchanged.
type Fault struct {
	Reason Reason
	// Detail describes the error and the expected value: one line, printable, valid UTF-8, at most 200 bytes. It may quote a short excerpt
	// of the producer's value.
	Detail string
}

// NewFault returns a Fault with a valid Detail: it replaces unprintable characters of detail, and truncates a long detail with a mark.
func NewFault(reason Reason, detail string) *Fault {
	detail = printable(detail)
	if len(detail) > maxDetailBytes {
		detail = cut(detail, maxDetailBytes-len(mark)) + mark
	}
	return &Fault{reason, detail}
}

// Error returns the reason and the detail.
func (f *Fault) Error() string { return string(f.Reason) + ": " + f.Detail }

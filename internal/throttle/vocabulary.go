package throttle

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// The questions and answers of the stores.
type (
	Request        = store.Request
	Message        = store.Message
	Decision       = store.Decision
	ShadowDecision = store.ShadowDecision
	Verdict        = store.Verdict
	Denial         = store.Denial
	Grant          = store.Grant
	Lease          = store.Lease
	Settings       = store.Settings
	Postponement   = store.Postponement
	DelayVerdict   = store.DelayVerdict
	Stay           = store.Stay
	Recorded       = store.Recorded
	Explanation    = store.Explanation
	PairState      = store.PairState
)

// The stores, and what they report.
type (
	Redis       = store.Redis
	Memory      = store.Memory
	Store       = store.Store
	BatchResult = store.BatchResult
	SelfTest    = store.SelfTest
	Explanatory = store.Explanatory
	LevelUse    = store.LevelUse
)

// The verdicts about requests; see [store.Verdict].
const (
	Admitted        = store.Admitted
	Denied          = store.Denied
	ExceedsCapacity = store.ExceedsCapacity
	Reclaimed       = store.Reclaimed
	Leased          = store.Leased
	Done            = store.Done
	Duplicate       = store.Duplicate
	Unknown         = store.Unknown
	Unpaired        = store.Unpaired
	Deferred        = store.Deferred
	Planned         = store.Planned
)

// The verdicts about delays; see [store.DelayVerdict].
const (
	ComesBack      = store.ComesBack
	TooMany        = store.TooMany
	TooLate        = store.TooLate
	AlreadyWaiting = store.AlreadyWaiting
)

// The states of a pair; see [store.PairState].
const (
	NoPair       = store.NoPair
	PairOpen     = store.PairOpen
	PairUnderWay = store.PairUnderWay
	PairWaits    = store.PairWaits
)

// Levels of drops without a limit.
const (
	LevelClosed   = store.LevelClosed
	LevelUnpaired = store.LevelUnpaired
	LevelRoom     = store.LevelRoom
)

// Denials without a limit.
var (
	DeniedUnpaired = store.DeniedUnpaired
	DeniedByRoom   = store.DeniedByRoom
)

// MaxBatch is how many events one script call carries at most.
const MaxBatch = store.MaxBatch

// NewRedis is [store.NewRedis].
func NewRedis(runner *script.Runner, s Settings) *Redis { return store.NewRedis(runner, s) }

// NewMemory is [store.NewMemory].
func NewMemory(s Settings, clock func() time.Time, share func() int) *Memory {
	return store.NewMemory(s, clock, share)
}

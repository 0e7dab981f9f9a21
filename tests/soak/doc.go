// Package soak runs a deployment under random faults for a given time, and then checks every promise of the program. The evidence comes from
// outside: the ledger of the publisher, the accepted posts of Slack, the messages left in JetStream, and the append-only file of Redis, which
// has every admission that Redis has kept. The workers also record their calls to Redis, which TestRecordedHistory of internal/throttle/store
// compares with the in-memory limiter.
//
// A hostile producer attacks all the time with package hostile. Its NATS user may publish below one subject. Half of the seeds put that user
// into the account of the workers. After the faults the soak measures the latency of another category, twice with the attacks and twice
// without. A phase in which other processes use the machine is measured again, and the latency is not judged if that never ends.
//
// The test has the build tag soak: `make soak`, `make soak DURATION=4h`, `make soak SEED=7`. A seed repeats the events,
// the faults, Slack's answers and the attacks, each at its planned time. It cannot repeat how the operating system schedules the processes:
// which worker gets an event, how long a step takes, and so what a step that takes long delays. `make soak HOSTILE=false` leaves the hostile producer out, to measure the latency of other categories under the same faults.
package soak

// Package inspect asks a running deployment about itself, for commands and for the live page: which limits its workers have in force
// and what became of events.
//
// It owns the choice between the settings of the running workers and the settings of the process that asks. If a worker answers, the
// workers' settings win. The package changes nothing in NATS or Redis, with one exception: [OpenLimits] creates an absent bucket if its
// options allow it. All functions may run at once. Their errors name the setting or the permission to look at.
package inspect
